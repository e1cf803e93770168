"""How much a file from a stranger may hold: checked while it is read, before anything is made of it."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from foretell.errors import InputError

FACTOR: Final = "FORETELL_LIMITS"
# docs/reference/limits.md has the same table, with the largest that is known of each.
LIMITS: Final[Mapping[str, int]] = {
    "bytes of a graph file": 64 * 2**20,
    "bytes of a graph file, unpacked": 256 * 2**20,
    "values in a JSON file": 1_000_000,
    "bytes of a JSON file": 64 * 2**20,
    "bytes of a TOML file": 2**16,
    "bytes of a configuration": 2**18,
    "bytes of a file of arrays": 512 * 2**20,
    "bytes of a table of steps": 16 * 2**20,
    "bytes of a table of prices": 64 * 2**20,
    "ops of a graph": 250_000,
    "tensors of a graph": 500_000,
    "storages of a graph": 500_000,
    "tensors that all ops of a graph read or write": 5_000_000,
    "micro-steps of a step": 2**16,
    "bytes of a graph's storages": 2**56,
    "characters of a name": 1_000,
    "levels of a module's name": 100,
    "devices of a question": 2**17,
    "nodes of a question": 2**14,
}

_MAX_DOTS: Final = 100  # on a line of TOML, whose parser takes the square of a dotted key's length


def limit(what: str) -> int:
    """By its name in the table, times $FORETELL_LIMITS."""
    text = os.environ.get(FACTOR, "1")
    try:
        return int(LIMITS[what] * float(text))
    except (ValueError, OverflowError):
        raise InputError(f"${FACTOR} must be a number that limits are multiplied by, like 4, got {text!r}.") from None


def check_limit(what: str, got: int) -> None:
    """Refuse, as a ValueError that a reader makes its own error of, what is beyond a limit."""
    if got > (most := limit(what)):
        raise ValueError(f"{what}: at most {most:,}, got {got:,}; ${FACTOR}=4 allows four times as much")


def read_bytes(path: str | os.PathLike[str], what: str) -> bytes:
    """A file whose size is checked first. What is no plain file, a pipe or a device, is not read: it may never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # a pipe would wait
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no plain file")
        check_limit(what, about.st_size)
        return file.read(limit(what) + 1)


def read_json(path: Path, *, finite: bool = True) -> Any:
    return parse_json(read_bytes(path, "bytes of a JSON file"), finite=finite)


def read_toml(path: Path) -> dict[str, Any]:
    text = read_bytes(path, "bytes of a TOML file").decode()
    if max(line.count(".") for line in text.split("\n")) > _MAX_DOTS:
        raise ValueError(f"a line with more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("tables inside tables, too deep") from None


def parse_yaml(text: str) -> Any:
    """YAML without references: merged into each other, a few lines of them take all of a machine's memory."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise ValueError("it refers to another part of itself (*name). Write the values out")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader)  # nosec B506  # a SafeLoader
    except yaml.YAMLError as problem:
        where = getattr(problem, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        raise ValueError(f"no YAML{line}: {getattr(problem, 'problem', None) or problem}") from None
    except RecursionError:
        raise ValueError("lists inside lists, too deep") from None
    except ValueError:
        raise
    except (AttributeError, LookupError, TypeError, ArithmeticError) as problem:  # of its makers of dates and numbers
        raise ValueError(f"no YAML: a value is not of the kind that it looks like ({problem})") from None


def check_plain(path: str | os.PathLike[str]) -> int:
    """The bytes of a plain file. A pipe or a device may never end, and is not read."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is no plain file")
    return about.st_size


def parse_json(data: bytes, *, finite: bool = True) -> Any:
    """JSON whose values are counted before they take a hundred times their place; and, where `finite`, no NaN."""
    check_limit("bytes of a JSON file", len(data))
    check_limit("values in a JSON file", data.count(b",") + data.count(b"[") + data.count(b"{"))
    try:
        return json.loads(data, parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise ValueError("lists inside lists, too deep") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
