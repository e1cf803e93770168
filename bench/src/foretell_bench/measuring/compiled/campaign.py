"""Compiled steps beside eager ones: points compiled without pause, each timed alone.

Compiling takes a host far longer than timing takes the device: workers compile points side by side; when one is ready,
the others are stopped until it has its times.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell.sources import named as zoo
from foretell_bench.measuring.compiled.crew import Answer, Crew, Worker, packed
from foretell_bench.measuring.compiled.points import later, points

_FILES: Final = 7
_LOADED: Final = ("timm/resnet18", "torchvision/resnet18", "hf/bert-base", "hf/llama-small", "generated/1")
_FULL: Final = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)
_LATER: Final = 10
_LAST: Final = 4.0  # seconds for rows that are being written when the time is up


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    done: frozenset[str] = frozenset()  # keys of points that are measured already
    later: bool = False  # the part that is blind as a whole, drawn over what was measured before it
    seconds: float = 560.0  # until all ends
    limit: float = 120.0  # seconds that compiling a point may take; none pass while others take their times
    workers: int = 14
    device: str = "cuda"


def run(out: Path, options: Options) -> None:
    """Measure what is not done until the time is up; a few packed files of rows are left in `out`."""
    until = time.monotonic() + options.seconds
    out.mkdir(parents=True, exist_ok=True)
    for name in _LOADED:
        zoo.workload_function(*name.split("/"))()  # loads what every worker needs, slow from a cold disk
    with tempfile.TemporaryDirectory() as place:
        campaign = _Campaign(out, Path(place), options)
        try:
            campaign.run(until)
        finally:
            campaign.end()


class _Campaign:
    def __init__(self, out: Path, place: Path, options: Options) -> None:
        self.out, self.place, self.options = out, place, options
        self.queue = deque(later(options.done) if options.later else points(options.done))
        self.retried: list[Any] = []
        self.crew = Crew()
        self.began, self.rows = 0, 0

    def run(self, until: float) -> None:
        while time.monotonic() < until and (self.queue or self.crew.workers):
            self._fill()
            heard = self.crew.heard(min(1.0, max(0.0, until - time.monotonic())))
            ready = [worker for worker, answer in heard if answer[0] == "prepared"]
            for worker, answer in heard:
                self._answer(worker, answer)
            if ready:
                for worker, answer in self.crew.in_turn(ready):
                    self._answer(worker, answer)
            self._give_up()

    def _fill(self) -> None:
        while self.queue and len(self.crew.workers) < self.options.workers:
            self.began += 1
            path = self.place / f"{self.began}.gz"
            self.crew.workers.append(Worker(self.queue.popleft(), path, self.options.device, self.crew.now()))

    def _answer(self, worker: Worker, answer: Answer) -> None:
        what, more = answer
        if what == "taken":
            worker.timed = True
        elif what == "written":
            self._keep(worker.path.read_bytes())
            self.crew.end(worker)
            print(more, flush=True)
        elif what == "failed":
            self._failed(worker, more)

    def _failed(self, worker: Worker, reason: str) -> None:
        self.crew.end(worker)
        print("failed", worker.point, reason[:300], flush=True)
        if _FULL.search(reason) and worker.point not in self.retried:  # with others beside it, it may fit
            self.retried.append(worker.point)
            self.queue.insert(_LATER, worker.point)
        else:
            self._keep(packed({**worker.point, "error": reason}))

    def _give_up(self) -> None:
        for worker in list(self.crew.workers):
            if not worker.timed and self.crew.now() - worker.began > self.options.limit:
                self._failed(worker, f"not compiled after {self.options.limit:.0f} s")

    def _keep(self, row: bytes) -> None:
        with (self.out / f"all-{self.rows % _FILES}.jsonl.gz").open("ab") as file:
            file.write(row)
        self.rows += 1

    def end(self) -> None:
        """Rows that are being written are waited for; what compiles is not."""
        until = time.monotonic() + _LAST
        while any(worker.timed for worker in self.crew.workers) and (left := until - time.monotonic()) > 0:
            for worker, answer in self.crew.heard(min(left, 0.5)):
                self._answer(worker, answer)
        for worker in list(self.crew.workers):
            self.crew.end(worker)
        print(f"{self.rows} rows; {len(self.queue)} points left", flush=True)
