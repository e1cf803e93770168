"""Files that are not on this machine and are read with `json` or `pickle`: whatever they are called, they have a document in them."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files import evaluated
from foretell.capture.script.pretend.files.checkpoints import NotHere
from foretell.capture.script.pretend.files.guessed import INSIDE
from foretell.capture.script.pretend.files.shapeless import Unshaped
from foretell.capture.script.pretend.files.unknown import Document, Record
from foretell.capture.script.session import Session

MARK: Final = '{"foretell stands in": 0}'


class _Opened(io.BytesIO):
    """A file of ours, which its reader knows by its path."""

    path = ""


def marked(file: Any, path: str) -> Any:
    """The file, so that who reads it knows that it stands in."""
    if type(file) is not io.BytesIO:
        return file
    made = _Opened(file.getvalue())
    made.path = path
    return made


def install(session: Session) -> None:
    _read_texts()
    evaluated.install()
    load: Callable[..., Any] = pickle.load

    def loaded(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, _Opened):
            try:
                return load(file, *args, **kwargs)
            except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError):
                session.stand_in(f"contents of {file.path}")
                return _document(session, file.path)
        made = load(file, *args, **kwargs)
        return _document(session, file.name) if isinstance(file, NotHere) and isinstance(made, Document) else made

    replace(pickle, "load", loaded)


def _document(session: Session, path: str) -> Document:
    made = Document()
    made.part = lambda name: Unshaped(session, f"{path}{INSIDE}{name}")
    return made


def _read_texts() -> None:
    read: Callable[..., Any] = json.loads

    def loads(s: Any, *args: Any, **kwargs: Any) -> Any:
        text = s.decode() if isinstance(s, bytes | bytearray) else s
        if isinstance(text, str) and text.startswith(MARK):
            return Record() if text.strip() == MARK else Document()
        return read(s, *args, **kwargs)

    json.loads = loads
