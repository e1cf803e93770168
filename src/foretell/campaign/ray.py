"""Points measured on a Ray cluster: a worker for each of its devices."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

from foretell.campaign.executor import ClusterUnreachable, Ended, attempt
from foretell.campaign.worker import INSTRUMENT, Place, Worker
from foretell.errors import InputError
from foretell.measure.record import Point
from foretell.ray_process import START, RayProcess, answers, check_installed, connect, head_is_gone
from foretell.units import Seconds

_TICK: Final[Seconds] = 0.1
_NODE_TRIES: Final = 3  # to begin on a node


class RayExecutor:
    """One worker for each device of a Ray cluster, on the node that has it."""

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
        check_installed("a campaign")
        self.address, self.silence = address, silence
        self.troubles: Mapping[str, str] = {}
        self._question = (address, frozenset(wanted), folder and os.fspath(folder), (instrument, seconds), silence)
        self._process: RayProcess | None = None
        self._places: Sequence[Place] = ()

    def places(self) -> Sequence[Place]:
        if self._process is None:
            self._open()
        return self._places

    def _open(self) -> None:
        self._process = RayProcess("foretell.campaign.ray:serve")
        self._link = self._process.link
        self._link.send(self._question)
        self._connected, self._heard = False, time.monotonic() + START

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
            raise (ClusterUnreachable if self._connected else InputError)(beat.error)
        self._connected, self._heard = True, time.monotonic()
        self._places, self.troubles = beat.places, beat.troubles
        return beat.ended

    @contextlib.contextmanager
    def _attentive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise ClusterUnreachable(head_is_gone(self.address)) from None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


# The process that Ray runs in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beat:
    """What `RayExecutor` gets, once per second or when something ends."""

    places: Sequence[Place] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    ended: Sequence[Ended] = ()
    error: str = ""


def serve(link: Connection) -> None:
    address, wanted, folder, measuring, silence = link.recv()
    try:
        ray = connect(address, folder)
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
        if ended := cluster.wait(_TICK):
            link.send(_Beat(places=cluster.places(), troubles=dict(cluster.troubles), ended=ended))
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            if answers(ray.get_runtime_context().gcs_address):
                heard = looked
                cluster.look_around()
            elif looked - heard > silence:
                link.send(_Beat(error=head_is_gone(address)))
                os._exit(1)  # Ray would wait for it in vain
            link.send(_Beat(places=cluster.places(), troubles=dict(cluster.troubles)))


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
        return attempt(self.worker, place, point, limit)


@dataclass(slots=True)
class _OccupiedSeat:
    """A seat as the driver sees it; no place until its device is known."""

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
        self._seats: dict[str, _OccupiedSeat] = {}
        self._tries: Counter[str] = Counter()
        self._measuring: dict[Any, str] = {}

    def places(self) -> list[Place]:
        return [seat.place for seat in self._seats.values() if seat.place is not None]

    def start(self, place: str, point: Point, limit: Seconds) -> None:
        if place in self._seats:
            self._measuring[self._seats[place].actor.measure.remote(place, point, limit)] = place
        else:  # it went away while the point was on its way to it
            self._measuring[self.ray.put(Ended(place=place, trouble="the node was lost.", counts=False))] = place

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
            ended = Ended(place=place, trouble=f"its node was lost ({_first_line(error)}).")
            self._give_up(place, ended.trouble)
        else:
            if not ended.counts:
                self._give_up(place, ended.trouble)
        return ended

    def look_around(self) -> None:
        """Take a seat on every device of every node that is up, and leave those that are gone."""
        nodes = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        for id, seat in list(self._seats.items()):
            if seat.node not in nodes:
                self._give_up(id, "its node has left the cluster.")
        gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in nodes.values())
        for node in nodes.values():
            for id, device in self._devices(node, gpus):
                if id not in self._seats and self._tries[id] < _NODE_TRIES:
                    self._tries[id] += 1
                    self._seats[id] = self._take_seat(node["NodeID"], device)
                    self.troubles[id] = f"{id}: Ray has not given it to us yet."
        self._receive(gpus)

    def _devices(self, node: Mapping[str, Any], gpus: bool) -> Iterator[tuple[str, str]]:
        name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        for number in range(int(node["Resources"].get("GPU", 0)) if self.wanted - {"cpu"} else 0):
            yield f"{name}/gpu{number}", "cuda:0"  # Ray shows a seat its own GPU alone
        if node["Resources"].get("CPU", 0) >= 1 and ("cpu" in self.wanted or not gpus):
            yield f"{name}/cpu", "cpu"

    def _take_seat(self, node: str, device: str) -> _OccupiedSeat:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        on_node = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        share = {"num_cpus": 1} if device == "cpu" else {"num_gpus": 1, "num_cpus": 0}
        seat = self.ray.remote(_Seat).options(scheduling_strategy=on_node, max_restarts=0, max_task_retries=0, **share)
        actor = seat.remote(device, self.measuring, self.folder)
        return _OccupiedSeat(actor=actor, node=node, description=actor.describe.remote())

    def _receive(self, gpus: bool) -> None:
        """What devices the seats turn out to have; those that nobody asked for are left."""
        for id, seat in list(self._seats.items()):
            if seat.place is not None or not self.ray.wait([seat.description], timeout=0)[0]:
                continue
            try:
                place = Place(
                    id=id, columns=self.ray.get(seat.description), takes_any=not (gpus and id.endswith("/cpu"))
                )
            except Exception as error:
                self._give_up(id, _first_line(getattr(error, "cause", None) or error))
                continue
            del self.troubles[id], self._tries[id]
            if any(place.fits(wanted) for wanted in self.wanted):
                seat.place = place
            else:
                self._give_up(id, f"nobody asked for {place.device}.")
                self._tries[id] = _NODE_TRIES

    def _give_up(self, id: str, why: str) -> None:
        """Whatever still runs there is ended, so that nothing is measured twice at once."""
        if (seat := self._seats.pop(id, None)) is not None:
            self.troubles[id] = f"{id}: {why}"
            with contextlib.suppress(Exception):
                self.ray.kill(seat.actor)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
