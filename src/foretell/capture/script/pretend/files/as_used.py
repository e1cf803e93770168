"""A value of a row that is a number where it is counted with, and a name where it is written."""

from __future__ import annotations

from typing import Any

_LIMITS: dict[Any, float] = {}  # that numbers at a place in their rows have been compared with


class AsUsed:
    """A number is the limit that its like is compared with: a row is neither too long nor too short for its reader."""

    _row: int
    _at: Any

    @property
    def _count(self) -> Any:
        return _LIMITS.get(self._at, self._row % 2)

    def __int__(self) -> int:
        return int(self._count)

    __index__ = __int__

    def __float__(self) -> float:
        return float(self._count)

    def __str__(self) -> str:
        return f"{self._row:05}"

    __fspath__ = __str__

    def __format__(self, how: str) -> str:
        return format(self._count if how.endswith(("d", "f", "e", "g")) else str(self), how)

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return bool(self._count == other) if isinstance(other, int | float) else str(self) == str(other)

    def __lt__(self, other: Any) -> bool:
        return bool(self._compared_with(other) < float(other))

    def __le__(self, other: Any) -> bool:
        return bool(self._compared_with(other) <= float(other))

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def _compared_with(self, other: Any) -> Any:
        if isinstance(other, int | float):
            _LIMITS.setdefault(self._at, other)
        return self._count

    def __add__(self, other: Any) -> Any:
        return str(self) + other if isinstance(other, str) else self._count + other

    def __radd__(self, other: Any) -> Any:
        return other + str(self) if isinstance(other, str) else other + self._count

    def __mul__(self, other: Any) -> Any:
        return self._count * other

    def __truediv__(self, other: Any) -> Any:
        return self._count / other

    __rmul__ = __mul__
