"""What a capture took to be so where it could not know, in words, for whoever wants to check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

Topic = Literal["batch", "precision", "plan", "stand-in", "kernel", "cut-short", "value", "left-out"]
TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)
_LONGEST: Final = 2000  # letters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing, and what it was taken to be."""

    topic: Topic
    what: str
    taken: str = ""
    decides_size: bool = False  # the model's size rests on it

    def __post_init__(self) -> None:
        if self.topic not in TOPICS:
            raise ValueError(f"a note on {str(self.topic)[:100]!r}, which is none of {', '.join(TOPICS)}")
        if not all(isinstance(text, str) and len(text) <= _LONGEST for text in (self.what, self.taken)):
            raise ValueError("a note is no text, or too long")
        if not isinstance(self.decides_size, bool):
            raise ValueError("a note decides the size of a model, or does not")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Note:
        return cls(**entries)

    @classmethod
    def brief(cls, topic: Topic, what: str, taken: str = "", *, decides_size: bool = False) -> Note:
        """Of texts of any length."""
        return cls(topic=topic, what=what[:_LONGEST], taken=taken[:_LONGEST], decides_size=decides_size)
