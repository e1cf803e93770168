"""What stand-ins for kernels leave out of what they were asked for: a caveat, never silence."""

from __future__ import annotations

from foretell.capture.script.session import Session
from foretell.graph import Caveat

_sessions: list[Session] = []  # the one that runs is last


def begin(session: Session) -> None:
    _sessions.append(session)


def note(text: str) -> None:
    if _sessions:
        _sessions[-1].find_caveats(Caveat("kernel-settings-not-modelled", f"{text}."))


def note_unless(fine: bool, text: str) -> None:
    if not fine:
        note(text)
