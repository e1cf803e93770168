"""Processes that compile side by side, all but one stopped while that one takes its times."""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from foretell_bench.measuring.compiled.step import CompiledStep

Answer = tuple[str, Any]
_SETTLES: Final = 0.1  # seconds until kernels that stopped processes had launched are done
_TURN: Final = 30.0  # seconds that taking times may last


def serve(link: Any, point: dict[str, Any], path: Path, device: str) -> None:
    """One point; its process ends with it, so that no tracer is left in one that times a step."""
    os.setpgid(0, 0)  # a group with the compilers it starts: they stop with it
    try:
        one = CompiledStep(point, device)
        one.prepare()
        link.send(("prepared", None))
        link.recv()
        one.take()
        link.send(("taken", None))
        row = one.finish()
    except BaseException as error:
        link.send(("failed", f"{type(error).__name__}: {str(error)[:2000]}"))
        return
    path.write_bytes(packed(row))
    line = {k: row.get(k) for k in ("source", "settings", "mode", "compile_seconds")}
    steps = {way: row[way]["step_seconds"] for way in ("eager", "compiled")}
    link.send(("written", f"{line} {steps} {len(row.get('kernels', ()))} kernels"))


def packed(row: dict[str, Any]) -> bytes:
    """Packed files one after the other are one packed file."""
    return gzip.compress((json.dumps(row, separators=(",", ":"), default=str) + "\n").encode(), compresslevel=6)


class Worker:
    """A process that compiles one point, takes its times when it is its turn, and ends."""

    def __init__(self, point: dict[str, Any], path: Path, device: str, now: float) -> None:
        self.point, self.path, self.began = point, path, now
        self.timed = False  # it has its times, and writes its row
        self.link, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")  # the libraries are loaded, the device is not touched
        self.process = context.Process(target=serve, args=(theirs, point, path, device))
        self.process.start()
        with contextlib.suppress(OSError):  # it may have done so itself
            os.setpgid(self._pid, self._pid)
        theirs.close()

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear(self, seconds: float = 0.0) -> Answer | None:
        """What it says next; None where it says nothing for so long."""
        try:
            return self.link.recv() if self.link.poll(seconds) else None
        except (EOFError, OSError):
            return "failed", "the process ended"

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join()
        self.link.close()


class Crew:
    """So many workers, and a clock that stands still while they are stopped."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._paused = 0.0

    def now(self) -> float:
        return time.monotonic() - self._paused

    def end(self, worker: Worker) -> None:
        self.workers.remove(worker)
        worker.end()

    def heard(self, seconds: float) -> list[tuple[Worker, Answer]]:
        """What workers say within so many seconds: all that there is as soon as one has."""
        multiprocessing.connection.wait([worker.link for worker in self.workers], seconds)
        return [(worker, answer) for worker in self.workers if (answer := worker.hear()) is not None]

    def in_turn(self, ready: Sequence[Worker]) -> Iterator[tuple[Worker, Answer]]:
        """Each takes its times, alone; what it says then."""
        with self._stopped():
            for worker in ready:
                worker.signal(signal.SIGCONT)
                worker.link.send("take")
                yield worker, worker.hear(_TURN) or ("failed", "taking its times lasted too long")
                worker.signal(signal.SIGSTOP)

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        began = time.monotonic()
        for worker in self.workers:
            worker.signal(signal.SIGSTOP)
        time.sleep(_SETTLES)
        try:
            yield
        finally:
            for worker in self.workers:
                worker.signal(signal.SIGCONT)
            self._paused += time.monotonic() - began
