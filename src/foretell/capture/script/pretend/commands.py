"""Other programs that a script starts, and the terminal it asks: looks are answered, and nothing is changed or fetched.

What a library starts itself runs. Of what the script starts, programs that only look run too; `nvidia-smi` is one of
ours, which knows the device that is asked about; another Python is refused, since that is what should be forecast;
all others are taken to have succeeded without a word.
"""

from __future__ import annotations

import builtins
import getpass
import json
import os
import pdb
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.pretend import overlay
from foretell.capture.script.session import Session
from foretell.errors import WorkloadError
from foretell.units import MIB

_LOOKS: Final = frozenset(
    """hostname uname whoami id which lscpu nproc free ldconfig gcc g++ cc c++ ld file date pwd ls cat head tail wc echo
    printf env printenv true false df du grep find sort uniq awk nvcc type command""".split()
)
_GIT_LOOKS: Final = frozenset("rev-parse describe status log diff show ls-files symbolic-ref".split())
_STARTS: Final = (
    "python",
    "torchrun",
    "accelerate",
    "deepspeed",
    "mpirun",
    "horovodrun",
    "srun",
    "sbatch",
    "lightning",
)
_SHELL: Final = ("/bin/sh", "-c")
_ROWS, _COLUMNS = 24, 80
_ANSWERS: Final = {"stty": f"{_ROWS} {_COLUMNS}\n", "tput": f"{_COLUMNS}\n"}
_BETWEEN: Final = frozenset((";", "&&", "||", "|", "&", "(", ")", ";;"))
_PASSED: Final = frozenset(
    "stdin stdout stderr universal_newlines text encoding errors bufsize close_fds pipesize start_new_session".split()
)


def install(session: Session) -> None:
    folder = tempfile.mkdtemp(prefix="foretell-programs-")
    _write_nvidia_smi(Path(folder), session)
    os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")
    _follow_programs()
    _follow_terminal()


# The terminal


def _follow_terminal() -> None:
    size = os.get_terminal_size

    def get_terminal_size(*descriptor: int) -> os.terminal_size:
        try:
            return size(*descriptor)
        except OSError:
            return os.terminal_size((_COLUMNS, _ROWS))

    os.get_terminal_size = get_terminal_size
    builtins.input = lambda prompt="": "y"
    getpass.getpass = lambda *args, **kwargs: ""
    pdb.set_trace = sys.breakpointhook = lambda *args, **kwargs: None


# Programs


def _follow_programs() -> None:
    start: Any = subprocess.Popen.__init__

    def init(self: Any, args: Any, *rest: Any, **how: Any) -> None:
        if not _by_the_script():
            start(self, args, *rest, **how)
            return
        answer = _answer(args)
        if answer is None:
            if "nvidia-smi" in str(args):  # whose answer may go to a file of the script's
                how["cwd"] = os.path.dirname(overlay.made("here"))
                os.makedirs(how["cwd"], exist_ok=True)
            start(self, args, *rest, **how)
            return
        kept = {name: value for name, value in how.items() if name in _PASSED}
        start(self, [*_SHELL, 'printf "%s" "$0"', answer], **kept)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]
    os.system = lambda command: subprocess.call([*_SHELL, command])


def _by_the_script() -> bool:
    """Whether the script itself starts a program, be it through `os.popen` or one of the functions of `subprocess`."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("subprocess", "os", __name__):
        frame = frame.f_back
    return frame is not None and not is_library(frame.f_code.co_filename)


def _commands(args: Any) -> list[list[str]] | None:
    """The words of each program of a line; None for a line that a shell would have to make first."""
    if not isinstance(args, str | bytes | os.PathLike):
        words = [os.fsdecode(word) for word in args]
        if len(words) != 3 or os.path.basename(words[0]) not in ("sh", "bash") or words[1] != "-c":
            return [words]
        args = words[2]
    line = os.fsdecode(args)
    if "`" in line or "$(" in line:
        return None
    commands: list[list[str]] = [[]]
    try:
        for word in shlex.shlex(line, posix=True, punctuation_chars=True):
            if word in _BETWEEN:
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # an open quote
        return None
    return [command for command in commands if command]


def _program(words: list[str]) -> str:
    """Without settings before it."""
    names = [word for word in words if "=" not in word and word not in ("sudo", "exec")]
    return os.path.basename(names[0]) if names else ""


def _answer(args: Any) -> str | None:
    """What a line is taken to print; None: it runs."""
    commands = _commands(args)
    if not commands:
        return ""
    first = _program(commands[0])
    for words in commands:
        if _program(words).startswith(_STARTS) and "--version" not in words and "-V" not in words:
            raise WorkloadError(
                f"the script starts another program: {' '.join(words)[:200]}. Forecast that one: foretell predict its "
                "script, with its arguments after --, or the whole line with --launch."
            )
    if first in _ANSWERS:
        return _ANSWERS[first]
    return None if all(map(_only_looks, commands)) else ""


def _only_looks(words: list[str]) -> bool:
    program, writes = _program(words), bool({">", ">>"} & set(words))
    if program == "git":
        return bool(_GIT_LOOKS & set(words[1:4]))
    return program == "nvidia-smi" or program in _LOOKS if not writes else program in ("nvidia-smi", "grep")


# A driver's program


def _write_nvidia_smi(folder: Path, session: Session) -> None:
    chip = session.script.accelerator
    device = {"name": chip.name, "memory": chip.memory // MIB, "capability": ".".join(map(str, chip.capability))}
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable} -IS\n{_NVIDIA_SMI.replace('@', json.dumps([device] * session.devices))}")
    program.chmod(0o755)


_NVIDIA_SMI: Final = """
import sys
devices = @
words = " ".join(sys.argv[1:])
query = next((w.partition("=")[2] for w in sys.argv if w.startswith("--query-gpu=")), "")
total = {"memory.total", "memory.free"}
if query:
    fields = [field.strip() for field in query.split(",")]
    units = "nounits" not in words
    if "noheader" not in words:
        print(", ".join(fields))
    for index, device in enumerate(devices):
        known = {"name": device["name"], "gpu_name": device["name"], "index": str(index), "count": str(len(devices)),
                 "uuid": f"GPU-{index}", "gpu_uuid": f"GPU-{index}", "compute_cap": device["capability"],
                 "driver_version": "570.00"}
        memory = " MiB" if units else ""
        print(", ".join(f"{device['memory']}{memory}" if f in total else f"0{memory}" if f.startswith("memory")
                        else known.get(f, "0") for f in fields))
elif "--query-compute-apps" in words:
    pass
elif "-L" in sys.argv:
    for index, device in enumerate(devices):
        print(f"GPU {index}: {device['name']} (UUID: GPU-{index})")
elif "-q" in sys.argv:
    for index, device in enumerate(devices):
        name = "" if "-d" in sys.argv else f"    Product Name : {device['name']}\\n"
        print(f"GPU 00000000:0{index}:00.0\\n{name}    FB Memory Usage\\n"
              f"        Total : {device['memory']} MiB\\n        Used : 0 MiB\\n        Free : {device['memory']} MiB")
else:
    print("NVIDIA-SMI 570.00    Driver Version: 570.00    CUDA Version: 12.8")
    for index, device in enumerate(devices):
        print(f"|   {index}  {device['name']}  | 0MiB / {device['memory']}MiB | 0% Default |")
"""
