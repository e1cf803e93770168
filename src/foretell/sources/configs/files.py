"""The text of a configuration: JSON, YAML, TOML, or the arguments of a shell script, read within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError
from foretell.limits import parse_yaml, read_bytes, read_json, read_toml
from foretell.sources.configs.shell import Arguments, arguments

SUFFIXES: Final = (".json", ".yaml", ".yml", ".toml", ".sh", ".txt", ".args")
_BYTES: Final = "bytes of a configuration"


def is_file(path: Path) -> bool:
    """Whether there is one; a name that no system takes is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def found_near(name: str, folder: Path) -> Path:
    """A file that a configuration names: from its own folder, from where the command runs, or from the top of its project."""
    near = (folder / name, Path(name), *(parent / name for parent in folder.resolve().parents[:6]))
    found = next((path for path in near if is_file(path)), None)
    if found is None:
        raise SourceError(
            f"the file {name[:200]!r}, which the configuration names, is not there. Put it beside the configuration, or run the "
            "command from the folder that its path begins in."
        )
    return found


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
    return entries if isinstance(entries, Arguments) else {str(key): value for key, value in entries.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".json":
        return read_json(path, finite=False)
    if path.suffix == ".toml":
        return read_toml(path)
    text = read_bytes(path, _BYTES).decode()
    return parse_yaml(text) if path.suffix in (".yaml", ".yml") else arguments(text, path.parent)
