"""Windows of a watched job on their way to the store, in a thread of their own: the job waits for no disk."""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from foretell.measure.machine import Machine
from foretell.measure.record import Record, StepRow
from foretell.measure.timing import clock_of
from foretell.store.place import RecordPlace, opened
from foretell.units import KIB, Bytes, Seconds
from foretell.watching.expected import Expected, world_size
from foretell.watching.posting import Poster
from foretell.watching.stopwatch import Stopwatch, Window

_PATIENCE: Final = 60.0  # seconds that the end of a job waits for the store


class Keeper:
    """Times one job and keeps its windows. Whatever goes wrong is said once, and the job goes on."""

    def __init__(self, expected: Expected, store: Path | None, every: Seconds, poster: Poster | None = None) -> None:
        self._expected, self._every, self._poster = expected, every, poster
        self._stopwatch: Stopwatch | None = None
        self._process = os.getpid()  # in a fork of it there is nothing to keep
        self._queue: queue.SimpleQueue[tuple[Window, dict[str, Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._kept: RecordPlace | None = None
        self._failed = False
        self._graph = expected.graph
        with self._reporting():
            out = store if store is not None and store.suffix == ".jsonl" else None
            self._kept = opened(None if out else store, out, _warn)

    def step(self) -> None:
        if self._stopwatch is None:  # at the first step it is certain what the job runs on
            cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
            self._device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
            self._machine = Machine(self._device)
            self._stopwatch = Stopwatch(clock_of(self._device), self._every)
        if (window := self._stopwatch.step()) is not None:
            self._keep(window)

    def pause(self) -> None:
        if self._stopwatch is not None:
            self._stopwatch.pause()

    def close(self) -> None:
        """Keep what is left. The job may have ended in any way, so nothing is raised here either."""
        stopwatch, self._stopwatch = self._stopwatch, None
        if stopwatch is None or os.getpid() != self._process:
            return
        with self._reporting():
            rest = [self._with_memory(window) for window in stopwatch.rest()]
            if self._thread is not None:
                self._queue.put(None)
                self._thread.join(_PATIENCE)
            for each in rest:  # here: a process that ends may start no thread any more
                self._append(*each)

    def _keep(self, window: Window) -> None:
        with self._reporting():
            self._queue.put(self._with_memory(window))
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="foretell-watch", daemon=True)
                self._thread.start()

    def _with_memory(self, window: Window) -> tuple[Window, dict[str, Any]]:
        return window, _memory(self._device) | {"date": datetime.now(UTC).isoformat(timespec="milliseconds")}

    def _write(self) -> None:
        while (each := self._queue.get()) is not None:
            with self._reporting():
                self._append(*each)

    def _append(self, window: Window, columns: dict[str, Any]) -> None:
        timing, left_out = window.timing, f"{window.pauses} pauses left out"
        marks = (*self._machine.marks(), *timing.marks, *([left_out] if window.pauses else []))
        row = {
            **self._expected.columns,
            **self._machine.provenance(),
            **timing.columns,
            **columns,
            "world_size": world_size(),
            "steps_before": window.before,
            "marks": marks,
        }
        step = StepRow(**row)
        if self._poster is not None:
            self._post(self._poster, step)
        if self._kept is not None:
            self._kept.append([Record(step=step, graph=self._graph)])
            self._graph = None  # it is there now

    def _post(self, poster: Poster, step: StepRow) -> None:
        """A service that does not answer is not asked again; the store has everything."""
        try:
            poster.post(step)
        except Exception as error:
            _warn(f"foretell.watch posts no more of this job: {error}")
            self._poster = None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """An error inside is said, the first time, and does not leave."""
        try:
            yield
        except Exception as error:
            if not self._failed:
                _warn(f"foretell.watch keeps no record of this job from here on: {error}")
            self._failed, self._kept = True, None


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _memory(device: torch.device) -> dict[str, Bytes | None]:
    """Of the job so far. Its counters are its own, so they are read and never reset."""
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return {"peak_allocated": allocated, "peak_reserved": reserved}
    unit = 1 if sys.platform == "darwin" else KIB
    return {"process_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
