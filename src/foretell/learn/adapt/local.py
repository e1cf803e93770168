"""Steps measured on this machine for a profile: always the most telling that is left, until runs or time are spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

from foretell.campaign.driver import Records
from foretell.campaign.executor import LocalExecutor
from foretell.campaign.worker import Place
from foretell.capture import cache, capture
from foretell.cost.model import DEFAULT, CostModel
from foretell.errors import ForetellError, InputError, RequirementNotMet
from foretell.forecasting.forecast import profile_response
from foretell.forecasting.profile_response import ProfileResponse
from foretell.graph import Graph
from foretell.learn.adapt.choose import choose_steps
from foretell.learn.adapt.operators import Recorded, recorded_of
from foretell.learn.adapt.steps import Step
from foretell.measure.record import Point, Record
from foretell.sources.named import LIBRARIES
from foretell.sources.resolve import load_workload
from foretell.units import Bytes, Seconds, show_seconds

Say = Callable[[str], None]

RUNS: Final = 20
_LOOKING: Final = 0.25  # of a budget may go into capturing candidates
_RUNS_EACH: Final = 18  # runs of a step in a measurement: warm-up, repetitions and what is recorded beside
_START: Final[Seconds] = 2.0  # to build one
_LONGEST: Final = 0.15  # of the budget, for one measurement
_LEAST: Final = 3  # steps without which there is nothing to fit
_PATIENCE: Final[Seconds] = 600.0  # for one measurement, without a budget


class RecordStore(Records, Protocol):
    """Where measurements are kept, and read again with the times of their ops."""

    def records(self) -> Iterator[Record]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    point: Point
    graph: Graph
    response: ProfileResponse

    @property
    def predicted(self) -> Seconds:
        return math.exp(self.response.at(0.0, 0.0, 0.0).log)


def measure_here(
    points: Sequence[Point], on: str, kept: RecordStore, *, place: str = "auto", runs: int = RUNS, budget: Seconds | None = None,
    model: str | CostModel = DEFAULT, say: Say = lambda text: None,
) -> list[Step]:  # fmt: skip
    """Up to `runs` steps of the points, in the time of a budget; what `kept` has of them is not measured again."""
    until = math.inf if budget is None else time.monotonic() + budget
    candidates = list(
        _captured(points, on, model, math.inf if budget is None else time.monotonic() + _LOOKING * budget, say)
    )
    if len(candidates) < _LEAST:
        raise InputError(
            f"{len(candidates)} steps can be captured to choose from, and a profile needs {_LEAST}. Name more SOURCEs."
        )
    with closing(
        LocalExecutor([] if place == "auto" else [place], wanted=["cpu"] if place == "cpu" else [])
    ) as executor:
        places = executor.places()
        if not places:
            raise RequirementNotMet(" ".join(executor.troubles.values()) or "there is no device to measure on.")
        rounds = _Rounds(candidates, executor, places[0], kept, say)
        rounds.recall()
        while len(rounds.measured) < runs and (chosen := rounds.next(until - time.monotonic(), budget)) is not None:
            rounds.measure(chosen, runs, min(until - time.monotonic() + _START, _PATIENCE))
    if len(rounds.measured) < _LEAST:
        raise RequirementNotMet(
            f"{len(rounds.measured)} steps were measured, and a profile needs {_LEAST}: {rounds.why or 'the time was too short'}. "
            "Give more time, or smaller SOURCEs."
        )
    return [
        Step(
            workload=candidates[i].graph,
            on=on,
            seconds=seconds,
            allocated=rounds.memory[i][0],
            reserved=rounds.memory[i][1],
            recorded=rounds.recorded.get(i),
        )
        for i, seconds in rounds.measured.items()
    ]


class _Rounds:
    """What was measured so far, by a candidate's place."""

    def __init__(
        self, candidates: Sequence[_Candidate], executor: LocalExecutor, place: Place, kept: RecordStore, say: Say
    ) -> None:
        self.candidates, self.executor, self.place, self.kept, self.say = candidates, executor, place, kept, say
        self.measured: dict[int, Seconds] = {}
        self.memory: dict[int, tuple[Bytes | None, Bytes | None]] = {}
        self.recorded: dict[int, Recorded] = {}
        self.failed: set[int] = set()
        self.why = ""

    def recall(self) -> None:
        """Take what an earlier run has kept of the same machine."""
        order = {candidate.point.key: i for i, candidate in enumerate(self.candidates)}
        for record in self.kept.records():
            step = record.step
            same = (
                step.device_name == self.place.columns["device_name"] and step.world_size == 1 and step.outcome == "ok"
            )
            if same and step.kind == "step" and step.step_seconds and (i := order.get(step.point)) is not None:
                self._note(i, record)

    def next(self, left: Seconds, budget: Seconds | None) -> int | None:
        """The most telling candidate that there is time for; at first the shortest, which shows how fast the machine is."""
        factors = [s / self.candidates[i].predicted for i, s in self.measured.items()]
        slow = median(factors) if factors else 1.0
        costs = [_START + _RUNS_EACH * slow * c.predicted for c in self.candidates]
        most = math.inf if budget is None else min(left, _LONGEST * budget)
        free = [i for i in range(len(costs)) if i not in self.measured and i not in self.failed and costs[i] <= most]
        if not factors:
            return min(free, key=lambda i: costs[i], default=None)
        known = list(self.measured)
        chosen = choose_steps(
            [self.candidates[i].response for i in free], 1, costs=[costs[i] for i in free],
            known=[self.candidates[i].response for i in known],
        )  # fmt: skip
        return free[chosen[0]] if chosen else None

    def measure(self, i: int, runs: int, limit: Seconds) -> None:
        point = self.candidates[i].point
        self.say(f"[{len(self.measured) + 1}/{runs}] measuring {point}")
        self.executor.start(self.place, point, limit)
        while not (all_ended := self.executor.wait(1.0)):  # the executor keeps to the limit
            pass
        [ended] = all_ended
        if ended.record is None:
            self.failed.add(i)
            self.why = ended.trouble
            if not ended.counts:
                raise RequirementNotMet(f"the device is lost: {ended.trouble}")
            return
        self._keep(i, ended.record)

    def _keep(self, i: int, record: Record) -> None:
        step, point = record.step, self.candidates[i].point
        if step.outcome != "error":
            self.kept.append([record])
        if step.step_seconds is None:
            self.failed.add(i)
            self.why = f"{point}: {step.error or step.outcome}"
            self.say(self.why)
            return
        self._note(i, record)
        marks = f", {', '.join(step.marks)}" if step.marks else ""
        self.say(f"[{len(self.measured)}] {point}: {show_seconds(step.step_seconds)}{marks}")

    def _note(self, i: int, record: Record) -> None:
        step = record.step
        self.measured[i] = step.step_seconds or 0.0
        self.memory[i] = step.peak_allocated, step.peak_reserved
        if (recorded := recorded_of(record)) is not None:
            self.recorded[i] = recorded


def _captured(points: Sequence[Point], on: str, model: str | CostModel, until: float, say: Say) -> Iterator[_Candidate]:
    """Those that can be captured, until it takes too long: then the first of them have to do."""
    for number, point in enumerate(points):
        if time.monotonic() > until and number > _LEAST:
            say(f"{number} of {len(points)} candidates were looked at, which took its share of the budget")
            return
        say(f"capturing {point}, {number + 1} of {len(points)}")
        try:
            graph = _graph(point)
            yield _Candidate(point=point, graph=graph, response=profile_response(graph, on, model=model))
        except ForetellError as error:
            say(f"{point} is left out: {error}")


def _graph(point: Point) -> Graph:
    """Named networks by a fork of this process, which has loaded their library; a user's own code in a child of its own."""
    if point.source.partition("/")[0] not in LIBRARIES or ":" in point.source:
        return capture(point.source, point.settings)
    key = cache.key(point.source, point.settings)
    if (graph := cache.get(key)) is None:
        graph = capture(load_workload(point.source, point.settings))
        cache.put(key, graph, read={})
    return graph
