"""The text of a configuration: JSON, YAML, TOML, or the arguments of a shell script, read within limits."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.limits import read_bytes, read_json, read_toml

SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml", ".sh", ".txt", ".args")
_BYTES: Final = "bytes of a configuration"
_ASSIGNED: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(?!\()(\S*)\s*(?:#.*)?$")
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^}]*))?\})")
_PLAIN: Final = re.compile(r"[^\s\"'$(){}`]*")


def is_file(path: Path) -> bool:
    """Whether there is one; a name that no system takes is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_entries(path: Path) -> dict[str, Any]:
    """What a configuration says, as a table by key."""
    try:
        entries = _read(path)
    except (OSError, ValueError) as problem:
        raise SourceError(f"'{path}' cannot be read as a configuration: {problem}.") from None
    if not isinstance(entries, dict):
        raise SourceError(
            f"'{path}' is not a configuration: it holds a {type(entries).__name__}, not keys with values."
        )
    return {str(key): value for key, value in entries.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".json":
        return read_json(path, finite=False)
    if path.suffix == ".toml":
        return read_toml(path)
    text = read_bytes(path, _BYTES).decode()
    return _yaml(text) if path.suffix in (".yaml", ".yml") else arguments(text)


def _yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """References are refused: merged into each other, a few lines of them take all of a machine's memory."""

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


def arguments(text: str) -> dict[str, Any]:
    """`--key value` words of a command or shell script, run by nobody: variables are put in that it sets itself, or that the
    environment has."""
    text = text.replace("\\\n", " ")
    known = _assignments(text)
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name = None  # values end with their line
        for word in _words(_expanded(line, known)):
            if word.startswith("--") and word[2:3].isalpha():
                name, equals, value = word.removeprefix("--").partition("=")
                found[name] = value if equals else True
            elif word.endswith(".py"):  # what is started
                found["script"], name = word.rpartition("/")[2], None
            elif word.startswith("$"):  # what is not known
                name = None
            elif name is not None:
                found[name] = word if found[name] is True else f"{found[name]} {word}"
    return found


def _assignments(text: str) -> dict[str, str]:
    known: dict[str, str] = {}
    for line in text.splitlines():
        if (match := _ASSIGNED.match(line)) is not None:
            value = _expanded(match[2].strip("\"'"), known)
            if _PLAIN.fullmatch(value):
                known[match[1]] = value
    return known


def _expanded(line: str, known: Mapping[str, str]) -> str:
    """As a shell would: what the text sets goes before the environment, and that before a default (`${NAME:-1}`)."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        return known.get(name) or os.environ.get(name) or (match[0] if default is None else default)

    return _VARIABLE.sub(value, line)


def _words(line: str) -> list[str]:
    line = re.sub(r"^\s*[A-Za-z_]\w*\+?=\(", "", line)  # the start of an array of arguments
    line = re.sub(r"^\s*[A-Za-z_]\w*=[\"'](?=\s*--)", "", line)  # or of a text of them
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quotation that ends on another line
        words = line.replace('"', " ").replace("'", " ").split()
    return [word.rstrip(")") for word in words if word != ")"]
