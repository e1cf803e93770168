"""Functions of ruamel.yaml that read and write settings until its version 0.18, and that only raise since."""

from __future__ import annotations

import io
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_REMOVED: Final = (0, 18)
_KINDS: Final = {"safe_": "safe", "round_trip_": "rt", "": "safe"}  # how a function's name begins, and who reads then


def install(session: Session) -> None:
    once_imported("ruamel.yaml", _ruamel)


def _ruamel(module: Any) -> None:
    if tuple(module.version_info[:2]) < _REMOVED:
        return
    for begins, kind in _KINDS.items():
        setattr(module, f"{begins}load", _reading(module, kind, "load"))
        setattr(module, f"{begins}load_all", _reading(module, kind, "load_all"))
        setattr(module, f"{begins}dump", _writing(module, kind))


def _reading(module: Any, kind: str, name: str) -> Any:
    def read(stream: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(module.YAML(typ=kind, pure=True), name)(stream)

    return read


def _writing(module: Any, kind: str) -> Any:
    def write(data: Any, stream: Any = None, *args: Any, **kwargs: Any) -> Any:
        """To a stream, or as a text where there is none."""
        into = io.StringIO() if stream is None else stream
        module.YAML(typ=kind, pure=True).dump(data, into)
        return into.getvalue() if stream is None else None

    return write
