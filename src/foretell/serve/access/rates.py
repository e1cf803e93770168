"""How often one caller may ask: a bucket that fills at its rate and holds a few seconds of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

_BURST: Final = 4.0  # seconds of the rate that may come at once
_MAX_BUCKETS: Final = 10_000  # buckets; the fullest are forgotten first, as they say nothing


@dataclass(slots=True)
class Rates:
    rate: float  # per second
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # what is left, and when that was

    def take(self, who: str) -> float:
        """0 where the request may go on, else seconds until one may."""
        full, at = max(self.rate * _BURST, 1.0), time.monotonic()
        left, before = self._left.get(who, (full, at))
        left = min(left + (at - before) * self.rate, full)
        if len(self._left) >= _MAX_BUCKETS and who not in self._left:
            self._left = dict(sorted(self._left.items(), key=lambda item: item[1][0])[: _MAX_BUCKETS // 2])
        if left < 1.0:
            self._left[who] = (left, at)
            return (1.0 - left) / self.rate
        self._left[who] = (left - 1.0, at)
        return 0.0
