"""Where points are measured: the protocol of executors, and the one that has this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Protocol

from foretell.campaign.worker import INSTRUMENT, DeviceGone, Place, Worker, WorkerDied, accelerators
from foretell.errors import ForetellError
from foretell.measure.record import Point, Record
from foretell.units import Seconds


class ClusterUnreachable(ForetellError):
    """The devices that an executor measures on do not answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came back from a place: a record, or why there is none."""

    place: str
    record: Record | None = None
    trouble: str = ""
    counts: bool = True  # as a try; a device that was gone before it began is not the point's fault


def attempt(worker: Worker, place: str, point: Point, limit: Seconds) -> Ended:
    try:
        return Ended(place=place, record=worker.measure(point, limit))
    except WorkerDied as error:
        return Ended(place=place, trouble=str(error))
    except DeviceGone as error:
        return Ended(place=place, trouble=str(error), counts=False)


class Executor(Protocol):
    """Where points are measured. `start` is only called for a place that has nothing to do."""

    patience: Seconds  # how long to wait for a device when none fits

    @property
    def troubles(self) -> Mapping[str, str]: ...  # places that cannot be used, and why

    def places(self) -> Sequence[Place]: ...
    def start(self, place: Place, point: Point, limit: Seconds) -> None: ...
    def wait(self, seconds: Seconds) -> Sequence[Ended]: ...
    def close(self) -> None: ...


class LocalExecutor:
    """One worker for each device of this machine: all accelerators; the CPU where there is none, or if it is wanted.

    Args:
        devices: Torch's names of those to use; none: all.
        wanted: Devices that a campaign's jobs are wanted on.
        instrument: The module that measures.
        seconds: Of measuring for each point; None: the instrument's own.

    Examples:
        >>> foretell.LocalExecutor(["cpu"]).devices
        ['cpu']
    """

    patience = 0.0

    def __init__(
        self,
        devices: Sequence[str] = (),
        *,
        wanted: Iterable[str] = (),
        instrument: str = INSTRUMENT,
        seconds: Seconds | None = None,
    ) -> None:
        self.devices, self.wanted, self.instrument, self.seconds = devices, frozenset(wanted), instrument, seconds
        self.troubles: dict[str, str] = {}
        self._workers: dict[str, Worker] = {}
        self._places: dict[str, Place] | None = None
        self._measuring: set[futures.Future[Ended]] = set()

    def places(self) -> Sequence[Place]:
        if self._places is None:
            self._places = self._open()
        return list(self._places.values())

    def _open(self) -> dict[str, Place]:
        devices = list(dict.fromkeys(self.devices)) or self._devices_here()
        self._workers = {device: Worker(device, instrument=self.instrument, seconds=self.seconds) for device in devices}
        self._pool = futures.ThreadPoolExecutor(len(devices))
        starting = {device: self._pool.submit(worker.start) for device, worker in self._workers.items()}
        places = {}
        for device, start in starting.items():
            try:
                takes_any = device != "cpu" or devices == ["cpu"]
                places[device] = Place(id=device, columns=start.result(), takes_any=takes_any)
            except DeviceGone as error:
                self.troubles[device] = str(error)
        return places

    def _devices_here(self) -> list[str]:
        found = accelerators() if self.wanted != {"cpu"} else []
        return [*found, "cpu"] if "cpu" in self.wanted or not found else found

    def start(self, place: Place, point: Point, limit: Seconds) -> None:
        self._measuring.add(self._pool.submit(attempt, self._workers[place.id], place.id, point, limit))

    def wait(self, seconds: Seconds) -> Sequence[Ended]:
        if not self._measuring:
            time.sleep(seconds)
        ready, self._measuring = futures.wait(self._measuring, timeout=seconds, return_when=futures.FIRST_COMPLETED)
        ended = [future.result() for future in ready]
        for end in ended:
            if not end.counts and self._places is not None:
                del self._places[end.place]
                self.troubles[end.place] = end.trouble
        return ended

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()
        if self._workers:
            self._pool.shutdown(cancel_futures=True)
