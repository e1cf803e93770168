"""Why an answer of this version may differ from the last release: each defect that was mended, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field of one answer that two versions give differently."""

    question: Mapping[str, Any]
    field: str
    before: Any
    after: Any

    @property
    def text(self) -> str:
        of = self.question
        settings = " ".join(f"{name}={value}" for name, value in {**of["settings"], **of["conditions"]}.items())
        return f"{of['verb']} {of['source']} {settings} on {of['on']} {of['plan'] or ''}".rstrip()

    @property
    def change(self) -> float | None:
        """How much it changed, relative to what it was; None where it is no number."""
        if not isinstance(self.before, int | float) or not isinstance(self.after, int | float) or not self.before:
            return None
        return abs(self.after - self.before) / abs(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A mended defect in words, and which differences it explains."""

    text: str
    explains: Callable[[Difference], bool]


REASONS: Final[tuple[Reason, ...]] = ()
