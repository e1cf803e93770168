"""The arguments of what a launch script starts, by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell.limits import read_bytes
from foretell.sources.configs.shell.reading import Reader
from foretell.sources.configs.shell.variables import UNKNOWN, CallerValue, Variables

# Of launchers, what says how many devices there are or which file goes with them; their other arguments cost nothing.
_OF_LAUNCHERS: Final = (
    "nproc_per_node", "nproc-per-node", "nnodes", "num_processes", "num_machines", "config_file", "num_gpus", "num_nodes", "use_fsdp",
    "use_deepspeed", "mixed_precision", "multi_gpu", "tensor_parallel",
)  # fmt: skip
_LAUNCHING_MODULES: Final = (
    "torch.distributed.launch",
    "torch.distributed.run",
    "accelerate.commands.launch",
    "deepspeed",
)
_SHOWING: Final = ("printf", "mkdir", "cd", "rm", "cp", "mv", "set", "ls", "pip", "wget", "curl", "sleep", "kill")
_NUMBER: Final = re.compile(r"-?\.?[0-9].*")
_PLAIN: Final = re.compile(r"[\w.+-]{1,32}")
_COUNTED: Final = re.compile(rf"--?(nproc[_-]per[_-]node|num[_-]processes|num[_-]gpus)={UNKNOWN}")  # by a command
_ITS_FOLDER: Final = re.compile(r"""\$\(\s*dirname\s+"?\$(0|BASH_SOURCE|\{0\}|\{BASH_SOURCE(\[0\])?\})"?\s*\)""")
_MOST_BYTES: Final = "bytes of a configuration"


class Arguments(dict[str, Any]):
    """Words of a launch by name; `taken`: variables among them that the script leaves to its caller."""

    taken: tuple[CallerValue, ...] = ()


def arguments(text: str, folder: Path | None = None, given: Sequence[str] = ()) -> Arguments:
    """`--key value` words of a command or shell script, run by nobody: variables are put in that it sets itself, or that the
    environment has."""
    reader = Reader(Variables(given), lambda name: _sourced(name, folder))
    reader.read(text)
    commands = [c for c in reader.commands if c[0].rpartition("/")[2] not in _SHOWING]
    started = max(filter(_starts_something, commands), key=_options, default=None)
    if started is not None:
        found = _of_command(started)
    else:
        words = [word for command in commands if command[0].startswith("-") for word in command]
        found = _named(words or [w for values in reader.variables.own.values() for w in _opened(values)])
    _written_files(found, reader.written)
    made = Arguments(found)
    used = {word for value in found.values() if isinstance(value, str) for word in value.split()}
    made.taken = tuple(t for t in reader.variables.taken.values() if t.value in used and _may_be_shown(t))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A Python program that a script starts, with all words of its command, and the variables that were set by its end."""

    program: str
    words: Sequence[str]
    environment: Mapping[str, str]


def programs_of(text: str, folder: Path, given: Sequence[str], environment: Mapping[str, str]) -> list[Started]:
    """What a script starts, in order; it is run by nobody. What only a command would tell is called
    unknown, and where it is a number of devices, `gpu`: all there are."""
    reader = Reader(Variables(given), lambda name: _sourced(name, folder))
    for name, value in environment.items():
        reader.variables.assign(name, [value])
    reader.read(_ITS_FOLDER.sub(lambda found: str(folder), text))
    commands = [c for c in reader.commands if _starts_something(c)]
    known = {name: " ".join(words) for name, words in reader.variables.own.items()}
    known = {name: value for name, value in known.items() if UNKNOWN not in value}
    return [
        Started(
            program=next(words[n] for n in range(len(words)) if _is_script(words, n)),
            words=[word.replace(UNKNOWN, "gpu" if _COUNTED.fullmatch(word) else "unknown") for word in words],
            environment=known,
        )
        for words in commands
        if any(_is_script(words, n) for n in range(len(words)))
    ]


def _may_be_shown(taken: CallerValue) -> bool:
    """Numbers and plain words; paths say nothing of a cost, and secrets are nobody's business."""
    secret = any(part in taken.name.upper() for part in ("KEY", "TOKEN", "SECRET", "PASS"))
    return bool(_PLAIN.fullmatch(taken.value)) and taken.name[:1].isalpha() and not secret


def _sourced(name: str, folder: Path | None) -> str | None:
    for path in () if folder is None else (folder / name, Path(name)):
        try:
            if path.is_file():
                return read_bytes(path, _MOST_BYTES).decode()
        except (OSError, ValueError):
            return None
    return None


def _starts_something(command: Iterable[str]) -> bool:
    return any(word.endswith(".py") for word in command) or "-m" in command


def _options(command: Iterable[str]) -> int:
    return sum(word.startswith("--") for word in _opened(command))


def _of_command(command: Sequence[str]) -> dict[str, Any]:
    """Arguments of the script, and those of its launcher that matter."""
    words = list(_opened(command))
    at = next((n for n, word in enumerate(words) if _is_script(words, n)), 0)
    launcher = {name: value for name, value in _named(words[:at]).items() if name in _OF_LAUNCHERS}
    return {**launcher, **_named(words[at + 1 :]), "script": words[at].rpartition("/")[2]}


def _is_script(words: Sequence[str], at: int) -> bool:
    if words[at].endswith(".py"):
        return True
    return at > 0 and words[at - 1] == "-m" and words[at] not in _LAUNCHING_MODULES


def _opened(words: Iterable[str]) -> Iterable[str]:
    """`"--vocab-size 128256"` is two words: lists of such are given to trainers without quotations."""
    for word in words:
        yield from word.split() if word.lstrip().startswith("--") and "=" not in word.split()[0] else [word]


def _named(words: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = None
    for word in _opened(words):
        if word.startswith("--") and word[2:3].isalpha():
            name, equals, value = word.removeprefix("--").partition("=")
            found[name] = value if equals and UNKNOWN not in value else True
        elif UNKNOWN in word or (word.startswith("-") and not _NUMBER.fullmatch(word)):
            name = None
        elif name is not None:
            found[name] = word if found[name] is True else f"{found[name]} {word}"
    return found


def _written_files(found: dict[str, Any], written: dict[str, str]) -> None:
    """A file of DeepSpeed's that the script writes itself stands in the arguments as what it says."""
    for name in ("deepspeed", "deepspeed_config", "deepspeed-config"):
        text = written.get(str(found.get(name)))
        try:
            entries = None if text is None else json.loads(text.replace(UNKNOWN, ""))
        except (ValueError, RecursionError):
            continue
        if isinstance(entries, dict):
            found[name] = entries
