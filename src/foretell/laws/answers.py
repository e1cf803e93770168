"""Answers that laws compare: each case is forecast once, and kept in a file that a run which was stopped goes on from."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from foretell.cost.collectives import compute_slowdown
from foretell.cost.model import CostModel
from foretell.engine import engine_digest
from foretell.errors import InputError
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import forecast
from foretell.forecasting.result import Forecast
from foretell.forecasting.uncertainty import WIDE_INTERVAL
from foretell.forecasting.uncertainty.device_classes import FROM_TURING, class_of
from foretell.graph import Graph
from foretell.hardware import Cluster, Device
from foretell.hardware import host as known_host
from foretell.laws.floor import least_seconds
from foretell.laws.halves import seconds_of_one_half
from foretell.laws.scope import COMPARED_ON, Step
from foretell.units import Bytes, Dollars, Seconds

BETTER: Final = 1.25  # how many times better a fact is in a case that betters it
_EVERY: Final = 50  # answers between two reports
_ROOMS: Final = ("capture", "cost", "forecasting", "graph", "hardware", "parallel", "profile", "simulate", "sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question: a step at a precision and a batch, on a cluster whose nodes have one host, by a plan."""

    step: str
    precision: str
    batch: int
    on: str
    host: str = COMPARED_ON
    plan: str = ""
    better: str = ""  # a fact of the device that is a quarter better than the catalog says

    def __str__(self) -> str:
        parts = [f"{self.step} {self.precision} batch {self.batch} on {self.on}"]
        parts += [self.plan] * bool(self.plan) + [f"host {self.host}"] * (self.host != COMPARED_ON)
        return ", ".join([*parts, *[f"{self.better} better"] * bool(self.better)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Numbers of a forecast, and what physics says of them."""

    step: Seconds
    step_low: Seconds | None
    step_high: Seconds | None
    device: Seconds
    device_low: Seconds | None
    device_high: Seconds | None
    host: Seconds
    waits: Seconds  # communication, bubble, stragglers, trainer and input that the step shows
    exposed: Seconds  # communication of those
    taken: Seconds  # that a rank's compute loses to communication which runs with it, at most
    of_one_half: Seconds  # of the device: what fp16 or bf16 has to itself
    allocated: Bytes
    broken_down: Bytes
    reserved: Bytes
    around: Bytes  # the context and the communicator
    total: Bytes
    capacity: Bytes
    fits: bool
    heaviest: Bytes  # of the rank that takes most of its device
    sent: Bytes
    sent_over_links: Bytes
    network_peak: float
    link_rate: float
    mfu: float
    samples_per_second: float | None
    samples: float | None
    dollars_per_hour: Dollars | None
    dollars_per_step: Dollars | None
    watts: float
    most_watts: float
    joules: float
    least: Seconds  # that a device at its published rates takes
    devices: int
    says_why: bool  # a caveat says why the interval is wide
    is_recent: bool  # one NVIDIA board, from Turing on

    @property
    def width(self) -> float | None:
        """How many times its low end the high end of the interval is."""
        return self.step_high / self.step_low if self.step_high and self.step_low else None

    @classmethod
    def of(cls, found: Forecast, cluster: Cluster) -> Answer:
        memory, samples = found.memory, found.throughput.samples_per_second
        assert found.step is not None
        assert found.energy is not None
        waits = (found.exposed_communication, found.bubble, found.stragglers, found.trainer, found.input_wait)
        return cls(
            step=found.step_time.seconds,
            step_low=found.step_time.low,
            step_high=found.step_time.high,
            device=found.device_time.seconds,
            device_low=found.device_time.low,
            device_high=found.device_time.high,
            host=found.host_time.seconds,
            waits=sum(wait.seconds for wait in waits),
            exposed=found.exposed_communication.seconds,
            taken=_taken(found, cluster),
            of_one_half=max(seconds_of_one_half(rank) for rank in found.ranks),
            allocated=memory.allocated,
            broken_down=sum(asdict(memory.breakdown).values()),
            reserved=memory.reserved,
            around=memory.context + memory.communicator,
            total=memory.total,
            capacity=memory.capacity,
            fits=memory.fits,
            heaviest=max(memory.ranks, key=lambda rank: rank.total / rank.capacity).total,
            sent=found.network.sent_bytes,
            sent_over_links=sum(each.sent_bytes for each in found.network.links),
            network_peak=found.resources.network_tx.peak,
            link_rate=_fastest_link(cluster),
            mfu=found.throughput.mfu or 0.0,
            samples_per_second=samples,
            samples=None if samples is None else samples * found.step_time.seconds,
            dollars_per_hour=found.cost.dollars_per_hour,
            dollars_per_step=found.cost.dollars_per_step,
            watts=found.energy.watts,
            most_watts=sum(times * node.count * node.device.power_watts for node, times in cluster.runs),
            joules=found.energy.joules_per_step,
            least=min(least_seconds(rank.role.graph, rank.device) for rank in found.ranks),
            devices=cluster.devices,
            says_why=any(caveat.code == WIDE_INTERVAL for caveat in found.caveats),
            is_recent=all(class_of(device) in FROM_TURING for device in cluster.device_kinds),
        )


class Answers:
    """Forecasts of cases, each made once; those of a file are taken from it while engine and graph are the same."""

    def __init__(
        self,
        steps: Iterable[Step],
        model: CostModel,
        file: Path | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._steps = {step.name: step for step in steps}
        self._model, self._file, self._progress = model, file, progress
        self._kept = dict(_read(file)) if file is not None and file.is_file() else {}
        self._known: dict[Case, Answer | None] = {}

    def __call__(self, case: Case) -> Answer | None:
        """The answer; None where the step cannot be run so, as an image model on sequences that are divided."""
        if case not in self._known:
            self._known[case] = self._answer(case)
            if len(self._known) % _EVERY == 0:
                self._progress(f"{len(self._known):,} answers, now {case}")
        return self._known[case]

    @property
    def steps(self) -> Iterable[Step]:
        return self._steps.values()

    def known(self) -> Iterator[tuple[Case, Answer]]:
        """Every answer so far."""
        return ((case, answer) for case, answer in list(self._known.items()) if answer is not None)

    def graph(self, case: Case) -> Graph:
        return self._steps[case.step].graph(case.precision, case.batch)

    def again(self, case: Case, graph: Graph) -> Answer:
        """Forecast anew, with a graph of the caller's."""
        cluster = cluster_of(case)
        plain = Conditions(trainer=0.0)  # whoever runs it: what a trainer adds is fitted, and no law
        return Answer.of(forecast(graph, cluster, case.plan or None, model=self._model, conditions=plain), cluster)

    def _answer(self, case: Case) -> Answer | None:
        graph = self.graph(case)
        key = hashlib.sha256(f"{engine_digest(*_ROOMS)} {graph.content_hash} {case!r}".encode()).hexdigest()[:24]
        if key not in self._kept:
            try:
                self._kept[key] = self.again(case, graph)
            except InputError:
                self._kept[key] = None
            if self._file is not None:
                self._keep(key, self._kept[key])
        return self._kept[key]

    def _keep(self, key: str, answer: Answer | None) -> None:
        assert self._file is not None
        line = json.dumps([key, None if answer is None else asdict(answer)])
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _read(file: Path) -> Iterator[tuple[str, Answer | None]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a run that was killed
            key, answer = json.loads(line)
            yield key, None if answer is None else Answer(**answer)


def cluster_of(case: Case) -> Cluster:
    """All nodes with the host of the case, and the device with the fact that it betters."""
    cluster, host = Cluster.parse(case.on), known_host(case.host)
    return cluster.with_nodes(lambda node: replace(node, host=host, device=_bettered(node.device, case.better)))


def _bettered(device: Device, fact: str) -> Device:
    if fact == "peaks":
        more = {unit: rate * BETTER for unit, rate in device.peaks.items()}
        vector = {unit: rate * BETTER for unit, rate in device.vector_peaks.items()}
        return replace(device, peaks=more, vector_peaks=vector)
    return replace(device, **{fact: getattr(device, fact) * BETTER}) if fact else device


def _taken(found: Forecast, cluster: Cluster) -> Seconds:
    slower = max(compute_slowdown(rank.role.collectives, cluster, rank.device) for rank in found.ranks)
    return (1 - 1 / slower) * found.resources.network_tx.active_seconds


def _fastest_link(cluster: Cluster) -> float:
    links = [node.inside.bandwidth for node in cluster.kinds]
    return max([*links, cluster.between.bandwidth] if cluster.between is not None else links)
