"""Stand-ins for files that are not on this machine (`--fake-data`): all kinds of them, in order."""

from __future__ import annotations

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.files import (
    checkpoints,
    downloads,
    frames,
    numbers,
    of_arrays,
    pictures,
    solids,
    sounds,
    stores,
    tables,
)
from foretell.capture.script.pretend.files.contents import Contents
from foretell.capture.script.pretend.files.line_parts import WORDS
from foretell.capture.script.pretend.files.tree import MissingFolders
from foretell.capture.script.pretend.reading import Note, or_else, or_else_offline
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import PICTURE

__all__ = ["PICTURE", "WORDS", "Note", "install", "or_else", "or_else_offline"]


def install(session: Session) -> None:
    """Give files and folders that are not there contents of their kind, where the user wants that."""
    if not session.script.fake_data:
        return
    contents = Contents(session)
    contents.apply()
    MissingFolders(session).apply()
    for kind in (numbers, checkpoints, pictures, solids, frames, sounds, stores, of_arrays):
        kind.install(session)
    downloads.install(session, contents)
    once_imported("pandas", lambda module: tables.install(session, module))
