"""A worker: a process that holds one device and measures one point after another while its parent watches the clock.

    parent                          worker
      Worker.start()       ───▶     describes its device         ◀─── ready {columns of a StepRow}
      Worker.measure(point) ──▶     waits for its turn           ◀─── begun
                                    measures, tidies up          ◀─── record {line}  or  lost {why}

Libraries and the device's context stay warm from point to point; a process that crashed, hung or lost its context is
replaced by a fresh one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import gc
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from foretell.errors import CatalogError, ForetellError
from foretell.measure.record import Point, Record, StepRow
from foretell.supervisor import Child, ChildEnded
from foretell.units import Seconds, show_seconds

INSTRUMENT: Final = (
    "foretell.measure.instrument"  # a module with measure(point, *, device[, seconds]) and perhaps describe(device)
)
START_LIMIT: Final[Seconds] = 300.0  # torch from a cold network disk takes its time
_WORDS: Final = 1500  # characters of a worker's last words


class WorkerDied(ForetellError):
    """The process ended in the middle of a point: a fresh one may do better."""


class DeviceGone(ForetellError):
    """No worker can be started on the device."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device to measure on, and what a record says of it."""

    id: str  # cuda:0; on a cluster, with its node before it
    columns: Mapping[str, Any] = dataclasses.field(hash=False)  # of a StepRow: device, device_name, torch, …
    takes_any: bool = True  # also points that ask for no device; a CPU beside an accelerator does not

    @property
    def device(self) -> str:
        """Its type as the store knows it: the name in the catalog, else what the driver says."""
        return str(self.columns.get("device") or self.columns.get("device_name") or self.id)

    def fits(self, wanted: str) -> bool:
        if not wanted:
            return self.takes_any
        if wanted.lower() == "cpu":
            return self.id.endswith("cpu")
        known, name = str(self.columns.get("device", "")), str(self.columns.get("device_name", ""))
        return (known != "" and known == _catalog_name(wanted)) or wanted.lower() in name.lower()

    def __str__(self) -> str:
        return f"{self.id} ({self.device})"


@functools.cache
def _catalog_name(text: str) -> str | None:
    from foretell.hardware import device

    with contextlib.suppress(CatalogError):
        return device(text).name
    return None


def failure(point: Point, outcome: str, error: str, columns: Mapping[str, Any]) -> Record:
    """The record of a point that gave no measurement, made by whoever is left."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    result = {"outcome": outcome, "error": error[:4000], "date": now}
    return Record(step=StepRow(**{**columns, **point.columns, **result}))


class Worker:
    """The parent's side. `measure` blocks; `end` may be called from another thread meanwhile."""

    def __init__(self, device: str, *, instrument: str = INSTRUMENT, seconds: Seconds | None = None) -> None:
        """`seconds`: of repetitions, if not as many as the instrument takes by itself."""
        self.device, self.instrument, self.seconds = device, instrument, seconds
        self.columns: Mapping[str, Any] = {}  # what the worker says of its device, once it has started
        self._child: Child | None = None
        self._ended = False

    def start(self) -> Mapping[str, Any]:
        if self._ended:
            raise DeviceGone(f"the worker on {self.device} was ended.")
        seconds = "" if self.seconds is None else str(self.seconds)
        self._child = child = Child.fresh("foretell.campaign.worker:serve", self.device, self.instrument, seconds)
        try:
            kind, body = _message(child, START_LIMIT)
        except ChildEnded as ended:
            kind, body = "failed", f"the measuring process {ended}"
        except TimeoutError:
            kind, body = "failed", f"it does not answer within {show_seconds(START_LIMIT)}"
        if kind != "ready":
            self._drop()
            raise DeviceGone(f"no worker starts on {self.device}: {body}")
        self.columns = json.loads(body)
        return self.columns

    def measure(self, point: Point, limit: Seconds) -> Record:
        """Its record, whatever became of it; WorkerDied where a fresh process may do better."""
        if self._child is None:
            self.start()
        child = self._child
        assert child is not None
        try:
            child.send(json.dumps(dataclasses.asdict(point)).encode())
            _message(child)  # "begun": it has the device to itself, and now the time counts
            kind, body = _message(child, limit)
        except TimeoutError:
            self._drop()
            text = f"it ran longer than {show_seconds(limit)} and was stopped. Raise the limit, or ask for less work."
            return failure(point, "time-limit", text, self.columns)
        except ChildEnded as ended:
            kind, body = "lost", f"the measuring process {ended}"
        if kind == "lost":
            self._drop()
            raise WorkerDied(body)
        return Record.from_line(body)

    def end(self) -> None:
        self._ended = True
        self._drop()

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _message(child: Child, limit: Seconds = math.inf) -> tuple[str, str]:
    kind, _, body = child.receive(limit).partition(b" ")
    return kind.decode(), body.decode()


def accelerators() -> list[str]:
    """The accelerators torch sees here, asked in a process of its own: this one stays without a context."""
    code = "import torch; print(*(f'cuda:{i}' for i in range(torch.cuda.device_count())))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ForetellError(f"torch cannot be asked for its devices:\n{ended.stderr.strip()[-_WORDS:]}")
    return ended.stdout.split()


@contextlib.contextmanager
def alone_on(device: str) -> Iterator[None]:
    """One worker at a time on a device, whichever campaign it is of; on a CPU, no other worker on the whole host."""
    with contextlib.ExitStack() as locks:
        locks.enter_context(_lock("host", fcntl.LOCK_EX if device == "cpu" else fcntl.LOCK_SH))
        if device != "cpu":
            locks.enter_context(_lock(_identity(device), fcntl.LOCK_EX))
        yield


def _identity(device: str) -> str:
    """The same in every process; cuda:0 of one may be cuda:3 of another."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


@contextlib.contextmanager
def _lock(name: str, how: int) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"foretell-{name}.lock"
    with contextlib.suppress(FileExistsError):
        new = os.open(path, os.O_CREAT | os.O_EXCL)
        os.fchmod(new, 0o644)  # whatever the umask: other users wait here too
        os.close(new)
    with open(path, "rb") as file:
        fcntl.flock(file, how)
        yield


# The worker's side


def serve(link: Connection, device: str, instrument: str, seconds: str) -> None:
    try:
        module = importlib.import_module(instrument)
        measure = functools.partial(module.measure, seconds=float(seconds)) if seconds else module.measure
        columns = getattr(module, "describe", _describe)(device)
    except Exception as error:
        link.send_bytes(f"failed {error}".encode())
        return
    link.send_bytes(b"ready " + json.dumps(columns).encode())
    while True:
        point = Point(**json.loads(link.recv_bytes()))
        with alone_on(device):
            link.send_bytes(b"begun ")
            answer = _answer(point, measure, device, columns)
        link.send_bytes(answer)


def _describe(device: str) -> dict[str, Any]:
    import torch

    from foretell.measure.machine import Machine, pick_device

    here = pick_device(device)
    torch.empty(1, device=here)  # a device in use for someone else alone says so here, not at every point
    return Machine(here).provenance()


def _answer(point: Point, measure: Callable[..., Record], device: str, columns: Mapping[str, Any]) -> bytes:
    try:
        record = measure(point, device=device)
        record.check()
    except (Exception, SystemExit) as error:
        record = failure(point, *_outcome_of(error), columns)
    try:
        _tidy()
    except Exception as error:  # an accelerator that failed in a kernel is of no more use to this process
        return f"lost the device was lost: {error}. {record.step.error}".encode()
    return b"record " + record.to_line().encode()


def _outcome_of(error: BaseException) -> tuple[str, str]:
    """The outcome, and what to say of it."""
    if isinstance(error, ForetellError):
        return "error", str(error)
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # torch has one of its own
        return "out-of-memory", str(error) or "the host's memory is full"
    from foretell.capture.explain import explain

    return "error", explain(error)


def _tidy() -> None:
    """Leave to the next point a device as empty as this one found it."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # says so if the context is lost
        torch.cuda.empty_cache()
