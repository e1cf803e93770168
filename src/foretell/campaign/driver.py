"""A campaign: many points measured on the devices there are, on this machine or on a Ray cluster, into one store.

`run` is the driver. It alone writes to the store, a record as soon as it is there, so whatever dies takes with it no
more than the points being measured, and the same call goes on from there. An executor only knows places and points:
`LocalExecutor` has a worker for each device of this machine, `RayExecutor` one for each device of a cluster.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

from foretell.campaign.executor import Ended, Executor, LocalExecutor
from foretell.campaign.jobs import Campaign, Job
from foretell.campaign.worker import INSTRUMENT, DeviceLost, Place, Worker, WorkerLost, failure
from foretell.errors import ForetellError, InputError, StoreError
from foretell.measure.record import FINAL, Point, Record, StepRow
from foretell.store.lines import RecordFile
from foretell.units import Seconds, show_seconds

__all__ = [
    "Campaign",
    "CampaignStopped",
    "Executor",
    "Job",
    "LocalExecutor",
    "Progress",
    "RayExecutor",
    "Records",
    "Summary",
    "rescue",
    "run",
]

RETRIES: Final = 2
LIMIT: Final[Seconds] = 1800.0
_AGAIN: Final[Seconds] = 1.0  # until a point that another campaign measures is looked at again
_RESUME: Final = "Run the same command to go on: what is stored is not measured again."


class CampaignStopped(ForetellError):
    """The campaign cannot go on; what was measured is kept, and the text says where."""


class ClusterLost(ForetellError):
    """The cluster does not answer any more."""


class Records(Protocol):
    """What a campaign asks of a store."""

    def append(self, records: Iterable[Record], /) -> object: ...
    def claim(self, name: str, /) -> AbstractContextManager[bool]: ...
    def done(self, device: str | None = None, /) -> frozenset[str]: ...
    def steps(self, where: str | None = None, /) -> Iterator[StepRow]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    done: int  # with those that were stored before
    total: int
    failed: int
    running: int
    seconds_left: Seconds | None  # unknown before the first point
    said: str  # what just happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    outcomes: Mapping[str, int]  # of what was measured now
    skipped: int  # stored before, or by another campaign meanwhile
    retried: int
    left: tuple[tuple[Job, str], ...]  # not measured, and why
    seconds: Seconds

    @property
    def measured(self) -> int:
        return self.outcomes.get("ok", 0)

    @property
    def failed(self) -> int:
        return sum(self.outcomes.values()) - self.measured

    def __str__(self) -> str:
        parts = [f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()) if outcome != "ok"]
        parts = [f"{self.measured} measured", *parts]
        for count, what in ((self.skipped, "stored before"), (self.retried, "retried"), (len(self.left), "left")):
            parts += [f"{count} {what}"] if count else []
        return f"{', '.join(parts)} in {show_seconds(self.seconds)}"


def run(
    campaign: Campaign,
    store: Records,
    executor: Executor,
    *,
    retries: int = RETRIES,
    limit: Seconds = LIMIT,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Measure what the store does not hold yet, and close the executor.

    A point is tried again `retries` times when the process or node that measures it dies, and stopped after `limit`
    seconds. Two campaigns may share a store: each waits for what the other measures.
    """
    driver = _Driver(campaign, store, executor, retries, limit, progress or (lambda progress: None))
    try:
        driver.drive()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted: {driver.so_far()}. {_RESUME}") from None
    except ClusterLost as error:
        raise CampaignStopped(f"{error} {driver.so_far()}. {_RESUME}") from error
    finally:
        executor.close()  # before the claims: another campaign may begin where ours has ended
        driver.release()
    return driver.summary()


@dataclass(frozen=True, slots=True)
class _Turn:
    """One of the times a job is measured."""

    job: Job
    number: int

    def claim(self, store: Records, place: Place) -> ExitStack | None:
        """Keeps other campaigns from measuring it meanwhile; None while one of them does."""
        claims = ExitStack()
        for device in (place.device,) if self.job.device else (place.device, "any"):
            if not claims.enter_context(store.claim(f"{self.job.point.key} {self.number} {device}")):
                claims.close()
                return None
        return claims


@dataclass(slots=True)
class _Running:
    turn: _Turn
    place: Place
    claim: ExitStack
    began: float


@dataclass(slots=True)
class _Driver:
    campaign: Campaign
    store: Records
    executor: Executor
    retries: int
    limit: Seconds
    tell: Callable[[Progress], None]
    waiting: dict[_Turn, None] = field(init=False)  # in order
    aside: dict[_Turn, float] = field(default_factory=dict)  # claimed by another campaign; when to look again
    running: dict[str, _Running] = field(default_factory=dict)  # by place
    tries: Counter[_Turn] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    left: list[tuple[Job, str]] = field(default_factory=list)
    stored: dict[str, frozenset[str]] = field(default_factory=dict)  # device → points, when last asked
    skipped: int = 0
    retried: int = 0
    busy: Seconds = 0.0  # of all places together
    total: int = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        jobs = self.campaign.jobs
        most = max((job.repeat for job in jobs), default=0)
        self.waiting = {_Turn(job, n): None for n in range(most) for job in jobs if n < job.repeat}
        self.total = len(self.waiting)

    def drive(self) -> None:
        idle_since = time.monotonic()
        while self.waiting or self.running:
            self._give_out()
            if self.running:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= self.executor.patience:
                self._leave_what_fits_nowhere()
            if self.waiting or self.running:
                self._take(self.executor.wait(_AGAIN))

    def _give_out(self) -> None:
        for place in self.executor.places():
            if place.id not in self.running and (found := self._next_for(place)) is not None:
                turn, claim = found
                del self.waiting[turn]
                self.running[place.id] = _Running(turn, place, claim, time.monotonic())
                self.executor.start(place, turn.job.point, self.limit)
                self._say(f"{turn.job.point} on {place}")

    def _next_for(self, place: Place) -> tuple[_Turn, ExitStack] | None:
        """The first turn that fits the place and that nobody has measured or measures; with our claim to it."""
        for turn in list(self.waiting):
            if not place.fits(turn.job.device) or self.aside.get(turn, 0.0) > time.monotonic():
                continue
            if self._is_stored(turn, place):
                self._skip(turn)
                continue
            claim = turn.claim(self.store, place)
            if claim is None:
                self.aside[turn] = time.monotonic() + _AGAIN
                continue
            self.stored.clear()  # another campaign may have stored it just before our claim
            if self._is_stored(turn, place):
                claim.close()
                self._skip(turn)
                continue
            return turn, claim
        return None

    def _is_stored(self, turn: _Turn, place: Place) -> bool:
        """On this type of device; where any will do, on any type that could be asked."""
        devices = {place.device}
        if not turn.job.device:
            devices |= {other.device for other in self.executor.places() if other.takes_any}
        return any(self._count(turn.job.point, device, turn.number) > turn.number for device in devices)

    def _count(self, point: Point, device: str, enough: int) -> int:
        if device not in self.stored:
            self.stored[device] = self.store.done(device)
        once = point.key in self.stored[device]
        if not once or not enough:
            return int(once)
        rows = self.store.steps(f"point = '{point.key}'")
        return sum(row.outcome in FINAL and device in (row.device, row.device_name) for row in rows)

    def _skip(self, turn: _Turn) -> None:
        del self.waiting[turn]
        self.skipped += 1
        self._say(f"{turn.job.point}: stored before")

    def _leave_what_fits_nowhere(self) -> None:
        places = self.executor.places()
        for turn in [t for t in self.waiting if not any(place.fits(t.job.device) for place in places)]:
            del self.waiting[turn]
            why = f"no device here is {turn.job.device!r}" if turn.job.device else "there is no device to measure on"
            why += f"; there is {', '.join(map(str, places)) or 'none'}."
            why += "".join(f" {text}" for text in self.executor.troubles.values())
            self.left.append((turn.job, why))
            self._say(f"{turn.job.point}: {why}")

    def _take(self, ended: Sequence[Ended]) -> None:
        arrived: list[tuple[_Running, Record]] = []
        for end in ended:
            now = self.running.pop(end.place, None)
            if now is None:
                continue  # a second answer for a point that has one
            record = end.record or self._try_again(now, end)
            if record is None:
                now.claim.close()
            else:
                arrived.append((now, record))
        if arrived:
            self._keep([record for _, record in arrived])
        for now, record in arrived:
            now.claim.close()
            self.busy += time.monotonic() - now.began
            self.outcomes[record.step.outcome] += 1
            why = f": {record.step.error}" if record.step.error else ""
            self._say(f"{now.turn.job.point} on {now.place}: {record.step.outcome}{why}")

    def _try_again(self, now: _Running, end: Ended) -> Record | None:
        """Back to the end of the queue, or the record of giving up."""
        self.tries[now.turn] += end.counts
        if (tries := self.tries[now.turn]) > self.retries:
            text = f"given up after {tries} tr{'ies' if tries > 1 else 'y'}: {end.lost}"
            return failure(now.turn.job.point, "error", text, now.place.columns)
        self.waiting[now.turn] = None
        self.retried += end.counts
        self._say(f"{now.turn.job.point} on {now.place}: {end.lost} It is tried again.")
        return None

    def _keep(self, records: list[Record]) -> None:
        try:
            self.store.append(records)
        except (StoreError, OSError) as error:
            raise CampaignStopped(f"{error} {rescue(records)} {self.so_far()}. {_RESUME}") from error

    def _say(self, said: str) -> None:
        finished = sum(self.outcomes.values())
        share = (len(self.waiting) + len(self.running)) / max(1, len(self.executor.places()))
        self.tell(
            Progress(
                done=self.done, total=self.total, failed=finished - self.outcomes["ok"], running=len(self.running),
                seconds_left=self.busy / finished * share if finished else None, said=said,
            )
        )  # fmt: skip

    @property
    def done(self) -> int:
        return sum(self.outcomes.values()) + self.skipped

    def release(self) -> None:
        for now in self.running.values():
            now.claim.close()

    def so_far(self) -> str:
        return f"{self.done} of {self.total} points are stored"

    def summary(self) -> Summary:
        return Summary(outcomes=dict(self.outcomes), skipped=self.skipped, retried=self.retried,
                       left=tuple(self.left), seconds=time.monotonic() - self.began)  # fmt: skip


def rescue(records: Iterable[Record]) -> str:
    """Save what the store could not take, wherever there is room."""
    for folder in (tempfile.gettempdir(), Path.home(), Path.cwd()):
        file = RecordFile(Path(folder) / f"foretell-rescued-{os.getpid()}.jsonl")
        with contextlib.suppress(InputError):
            file.append(records)
            return f"What was measured last is in {file.path}; take it in with: foretell store import {file.path}"
    return "What was measured last could not be saved anywhere else either."


class RayExecutor:
    """One worker for each device of a Ray cluster, on the node that has it.

    Ray itself runs in a process of its own: when the head goes away, Ray holds Python's lock for a minute and then ends
    the process it is in.
    """

    patience = 60.0  # nodes take their time to come

    def __init__(
        self,
        address: str,
        *,
        wanted: Iterable[str] = ("",),
        folder: str | os.PathLike[str] | None = None,
        instrument: str = INSTRUMENT,
        seconds: Seconds | None = None,
        silence: Seconds = 20.0,
    ) -> None:
        """`wanted`: devices to look for, "" for any; `folder`: sent to every node, to run in; `silence`: until the head
        is given up."""
        if importlib.util.find_spec("ray") is None:
            raise InputError("a campaign on a cluster needs Ray. Install it with: pip install 'foretell[ray]'")
        self.address, self.silence = address, silence
        self.troubles: Mapping[str, str] = {}
        self._question = (address, frozenset(wanted), folder and os.fspath(folder), (instrument, seconds), silence)
        self._popen: subprocess.Popen[bytes] | None = None
        self._places: Sequence[Place] = ()

    def places(self) -> Sequence[Place]:
        if self._popen is None:
            self._open()
        return self._places

    def _open(self) -> None:
        self._link, theirs = multiprocessing.Pipe()
        code = f"from foretell.campaign.driver import drive_ray; drive_ray({theirs.fileno()})"
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._link.send(self._question)
        self._connected, self._heard = False, time.monotonic() + _RAY_START

    def start(self, place: Place, point: Point, limit: Seconds) -> None:
        with self._attentive():
            self._link.send((place.id, point, limit))

    def wait(self, seconds: Seconds) -> Sequence[Ended]:
        with self._attentive():
            if not self._link.poll(seconds):
                if time.monotonic() - self._heard > self.silence:
                    raise EOFError
                return ()
            beat: _Beat = self._link.recv()
        if beat.error:
            raise (ClusterLost if self._connected else InputError)(beat.error)
        self._connected, self._heard = True, time.monotonic()
        self._places, self.troubles = beat.places, beat.troubles
        return beat.ended

    @contextlib.contextmanager
    def _attentive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise ClusterLost(_head_is_gone(self.address)) from None

    def close(self) -> None:
        if self._popen is not None:
            self._link.close()  # tells it to leave the cluster in order
            try:
                self._popen.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


def _head_is_gone(address: str) -> str:
    return f"the head of the Ray cluster at {address} does not answer any more. Look after it with: ray status."


# The process that Ray runs in

_RAY_START: Final[Seconds] = 60.0  # to connect
_RAY_TICK: Final[Seconds] = 0.1
_NODE_TRIES: Final = 3  # to begin on a node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beat:
    """What is told to `RayExecutor`, once a second or when something ends."""

    places: Sequence[Place] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    ended: Sequence[Ended] = ()
    error: str = ""


def drive_ray(descriptor: int) -> None:
    link = Connection(descriptor)
    address, wanted, folder, measuring, silence = link.recv()
    try:
        ray = _connect(address, folder)
    except InputError as error:
        link.send(_Beat(error=str(error)))
        return
    with contextlib.suppress(EOFError, OSError):  # the campaign is over
        _attend(link, ray, _Cluster(ray, wanted, measuring, None if folder else os.getcwd()), address, silence)
    ray.shutdown()


def _attend(link: Connection, ray: Any, cluster: _Cluster, address: str, silence: Seconds) -> None:
    looked = heard = time.monotonic()
    while True:
        while link.poll(0):
            cluster.start(*link.recv())
        if ended := cluster.wait(_RAY_TICK):
            link.send(_Beat(places=cluster.places(), troubles=dict(cluster.troubles), ended=ended))
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            if _answers(ray.get_runtime_context().gcs_address):
                heard = looked
                cluster.look_around()
            elif looked - heard > silence:
                link.send(_Beat(error=_head_is_gone(address)))
                os._exit(1)  # Ray would wait for it in vain
            link.send(_Beat(places=cluster.places(), troubles=dict(cluster.troubles)))


def _connect(address: str, folder: str | None) -> Any:
    import ray

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and not _answers(f"{host}:{port}"):
            raise ConnectionError("nothing listens there")
        ray.init(
            address=address, runtime_env={"working_dir": folder} if folder else None, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except Exception as error:
        raise InputError(
            f"no Ray cluster at {address!r}: {str(error).strip() or type(error).__name__}. Start one with "
            "`ray start --head` and its nodes with `ray start --address=HOST:PORT`, or leave out --ray."
        ) from None
    return ray


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except (OSError, ValueError):
        return False
    return True


class _Seat:
    """Runs on a node and holds one of its devices."""

    def __init__(self, device: str, measuring: tuple[str, Seconds | None], folder: str | None) -> None:
        if folder and os.path.isdir(folder):
            os.chdir(folder)  # a disk that all nodes share: sources have the same path here
        instrument, seconds = measuring
        self.worker = Worker(device, instrument=instrument, seconds=seconds)

    def describe(self) -> dict[str, Any]:
        return dict(self.worker.start())

    def measure(self, place: str, point: Point, limit: Seconds) -> Ended:
        try:
            return Ended(place=place, record=self.worker.measure(point, limit))
        except WorkerLost as error:
            return Ended(place=place, lost=str(error))
        except DeviceLost as error:
            return Ended(place=place, lost=str(error), counts=False)


@dataclass(slots=True)
class _Held:
    """A seat as the driver sees it; no place until it has said what its device is."""

    actor: Any
    node: str
    description: Any
    place: Place | None = None


class _Cluster:
    """Seats on all nodes, and what they are doing."""

    def __init__(
        self, ray: Any, wanted: frozenset[str], measuring: tuple[str, Seconds | None], folder: str | None
    ) -> None:
        self.ray, self.wanted, self.measuring, self.folder = ray, wanted, measuring, folder
        self.troubles: dict[str, str] = {}
        self._held: dict[str, _Held] = {}
        self._tries: Counter[str] = Counter()
        self._measuring: dict[Any, str] = {}

    def places(self) -> list[Place]:
        return [held.place for held in self._held.values() if held.place is not None]

    def start(self, place: str, point: Point, limit: Seconds) -> None:
        if place in self._held:
            self._measuring[self._held[place].actor.measure.remote(place, point, limit)] = place
        else:  # it went away while the point was on its way to it
            self._measuring[self.ray.put(Ended(place=place, lost="the node was lost.", counts=False))] = place

    def wait(self, seconds: Seconds) -> list[Ended]:
        if not self._measuring:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self._measuring), num_returns=1, timeout=seconds)
        return [self._ended(self._measuring.pop(ref), ref) for ref in ready]

    def _ended(self, place: str, ref: Any) -> Ended:
        try:
            ended: Ended = self.ray.get(ref)
        except Exception as error:
            ended = Ended(place=place, lost=f"its node was lost ({_first_line(error)}).")
            self._give_up(place, ended.lost)
        else:
            if not ended.counts:
                self._give_up(place, ended.lost)
        return ended

    def look_around(self) -> None:
        """Take a seat on every device of every node that is up, and leave those that are gone."""
        nodes = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        for id, held in list(self._held.items()):
            if held.node not in nodes:
                self._give_up(id, "its node has left the cluster.")
        gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in nodes.values())
        for node in nodes.values():
            for id, device in self._devices(node, gpus):
                if id not in self._held and self._tries[id] < _NODE_TRIES:
                    self._tries[id] += 1
                    self._held[id] = self._sit(node["NodeID"], device)
                    self.troubles[id] = f"{id}: Ray has not given it to us yet."
        self._hear(gpus)

    def _devices(self, node: Mapping[str, Any], gpus: bool) -> Iterator[tuple[str, str]]:
        name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        for number in range(int(node["Resources"].get("GPU", 0)) if self.wanted - {"cpu"} else 0):
            yield f"{name}/gpu{number}", "cuda:0"  # Ray shows a seat its own GPU alone
        if node["Resources"].get("CPU", 0) >= 1 and ("cpu" in self.wanted or not gpus):
            yield f"{name}/cpu", "cpu"

    def _sit(self, node: str, device: str) -> _Held:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        on_node = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        share = {"num_cpus": 1} if device == "cpu" else {"num_gpus": 1, "num_cpus": 0}
        seat = self.ray.remote(_Seat).options(scheduling_strategy=on_node, max_restarts=0, max_task_retries=0, **share)
        actor = seat.remote(device, self.measuring, self.folder)
        return _Held(actor=actor, node=node, description=actor.describe.remote())

    def _hear(self, gpus: bool) -> None:
        """What the seats say their devices are; those that nobody asked for are left."""
        for id, held in list(self._held.items()):
            if held.place is not None or not self.ray.wait([held.description], timeout=0)[0]:
                continue
            try:
                place = Place(
                    id=id, columns=self.ray.get(held.description), takes_any=not (gpus and id.endswith("/cpu"))
                )
            except Exception as error:
                self._give_up(id, _first_line(getattr(error, "cause", None) or error))
                continue
            del self.troubles[id], self._tries[id]
            if any(place.fits(wanted) for wanted in self.wanted):
                held.place = place
            else:
                self._give_up(id, f"nobody asked for {place.device}.")
                self._tries[id] = _NODE_TRIES

    def _give_up(self, id: str, why: str) -> None:
        """Whatever still runs there is ended, so that nothing is measured twice at once."""
        if (held := self._held.pop(id, None)) is not None:
            self.troubles[id] = f"{id}: {why}"
            with contextlib.suppress(Exception):
                self.ray.kill(held.actor)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
