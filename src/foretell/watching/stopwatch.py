"""The times of a job's steps, window by window, at the price of a mark a step: nothing here waits for a device."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from foretell.measure.timing import Clock, Timing, quantile
from foretell.units import Seconds

WARM_UP: Final = 5  # steps of a job that are not timed
FEWEST: Final = 5  # steps of a window
MAX_TIMED_STEPS: Final = 200  # steps of a window that are timed; later ones are only counted
_PAUSE: Final = 5.0  # times the median: not a step but a checkpoint, an evaluation or a machine that slept


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Steps that followed one another, but for pauses."""

    before: int  # steps of the job before the first of these
    timing: Timing
    pauses: int  # times between two steps that were left out


@dataclass(slots=True)
class _Open:
    """A window whose last mark the device may not have reached."""

    before: int
    spans: list[tuple[Any, Any]]
    began: float
    ended: float = 0.0


class Stopwatch:
    """`step` after each step; `pause` where what follows is no part of one."""

    def __init__(self, clock: Clock, seconds: Seconds) -> None:
        self.steps = 0
        self._clock, self._seconds = clock, seconds
        self._last: Any = None  # the mark of the step before
        self._window = _Open(0, [], time.monotonic())
        self._closed: deque[_Open] = deque()

    def step(self) -> Window | None:
        """A window, when one is complete and the device has run it."""
        self.steps += 1
        if self.steps < WARM_UP:
            return None
        spans = self._window.spans
        if len(spans) < MAX_TIMED_STEPS:
            mark = self._clock.mark()
            if self._last is not None:
                spans.append((self._last, mark))
            else:
                self._window.before = self.steps if not spans else self._window.before
            self._last = mark
        else:
            self._last = None  # not timed until the next window
        if len(spans) >= FEWEST and time.monotonic() - self._window.began >= self._seconds:
            self._close()
        return self._ready() if self._closed else None

    def pause(self) -> None:
        self._last = None

    def rest(self) -> list[Window]:
        """The windows that are left, the last perhaps a short one. Waits for the device."""
        if len(self._window.spans) >= FEWEST:
            self._close()
        if self._closed:
            self._clock.wait()
        closed, self._closed = self._closed, deque()
        return [self._timed(window) for window in closed]

    def _close(self) -> None:
        self._window.ended = time.monotonic()
        self._closed.append(self._window)
        self._window = _Open(self.steps, [], self._window.ended)

    def _ready(self) -> Window | None:
        if not self._clock.passed(self._closed[0].spans[-1][1]):
            return None
        return self._timed(self._closed.popleft())

    def _timed(self, window: _Open) -> Window:
        every = [self._clock.seconds(begin, end) for begin, end in window.spans]
        limit = _PAUSE * quantile(every, 0.5)
        steps = tuple(seconds for seconds in every if seconds <= limit)
        timing = Timing(steps=steps, parts={}, window=(window.began, window.ended))
        return Window(before=window.before, timing=timing, pauses=len(every) - len(steps))
