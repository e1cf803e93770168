"""What stand-ins for kernels leave out of what they were asked for: a caveat, never silence."""

from __future__ import annotations

from foretell.capture.script.session import Session
from foretell.graph import Caveat
from foretell.precision import Recipe

_sessions: list[Session] = []  # the one that runs is last


def begin(session: Session) -> None:
    _sessions.append(session)


def scaled(recipe: Recipe) -> None:
    """Products of linear layers are in 8 bits."""
    if _sessions:
        _sessions[-1].find(fp8=recipe)


def note(text: str) -> None:
    if _sessions:
        _sessions[-1].find_caveats(Caveat("kernel-settings-not-modelled", f"{text}."))


def note_unless(fine: bool, text: str) -> None:
    if not fine:
        note(text)
