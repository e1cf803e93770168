"""Foretell itself as one method among the others.

Where the ops of the examples were timed, operators and host are learned from them alone, and nothing shipped is used.
Elsewhere the shipped model forecasts, and what it is off by on the examples is learned (`foretell.learn.adapt.residuals`): factors
for its parts, offsets of networks, devices in a precision and clusters, and a smooth part. Where no example is near, the
forecast stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Self

from foretell.cost.model import DEFAULT, CostModel, load_model
from foretell.cost.operators import OperatorModels
from foretell.errors import InputError
from foretell.forecasting.assemble import forecast
from foretell.graph import Graph
from foretell.hardware import Cluster, Device
from foretell.learn.adapt.residuals import Case, Parts, Range, Residuals, forecast_parts
from foretell.learn.dataset import Measured, Timed, op_table
from foretell.learn.host import fit_host
from foretell.learn.operators import ROUNDS, training_rows
from foretell.measure.record import StepRow
from foretell.methods.memo import once
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Prediction, Query
from foretell.plan import Plan
from foretell.units import Bytes, Seconds

_FEWEST_STEPS: Final = 20  # with timed ops, to learn a device from; fewer are foretold by the shipped model
_FEWEST_OPS: Final = 20  # of a family, to learn it
_TREES: Final = {"num_leaves": 15}  # a few dozen steps do not fill the leaves that a store of thousands does
_LITTLE: Final = 0.01  # of the device's time: what is below it is all the same
_INSTANT: Final = 1e-9  # seconds of a device that has nothing to do
_APART: Final = 2.0  # between kinds of plan, as if a number differed sevenfold
_STEPS: Final = "steps"  # the setting that says how many steps a job has
_NO_GRAPH: Final = "a forecast needs the graph of the step, and the source does not say what was run"


class Foretell:
    def __init__(self, *, rounds: int = ROUNDS, seed: int = 0) -> None:
        self.rounds = rounds
        self.seed = seed
        self.models_: dict[str, CostModel] = {}  # device → what was learned on it
        self.off_: dict[str, Residuals] = {}  # target → what forecasts are off by
        self.start_: Seconds = 0.0  # of a job, before its first step

    @property
    def name(self) -> str:
        return "Foretell"

    def fit(self, examples: Sequence[Example]) -> Self:
        known = [e for e in examples if e.query.graph is not None and e.measured]
        if not known:
            raise InputError(f"Foretell reads graphs, and none of {len(examples)} examples has one that was measured.")
        self.models_, self.off_ = {}, {}
        timed: dict[str, list[Example]] = defaultdict(list)
        for example in known:
            if len(example.ops) and _is_alone(example.query):
                timed[_device(example.query).name].append(example)
        for name, mine in timed.items():
            if len(mine) >= _FEWEST_STEPS:
                self.models_[name] = self._learn(mine)
        asked = [(e, found) for e in known if not self._is_learned(e.query) and (found := self._possible(e.query))]
        for target in (STEP_TIME, MEMORY):
            cases = [(_case(e.query, *found, target), e.measured[target]) for e, found in asked
                     if e.measured.get(target, 0.0) > 0]  # fmt: skip
            if cases:
                off = Residuals(factors=target == STEP_TIME)
                self.off_[target] = off.fit([case for case, _ in cases], [value for _, value in cases])
        self.start_ = _start(known)
        return self

    def _is_learned(self, query: Query) -> bool:
        """Whether its operators and host were, so that nothing is left to correct."""
        return _is_alone(query) and _device(query).name in self.models_

    def _learn(self, examples: Sequence[Example]) -> CostModel:
        device = _device(examples[0].query)
        steps, graphs = _rows(examples)
        ops = op_table(_timed(examples), device)
        if not len(ops):
            raise InputError(f"none of {len(examples)} examples has an op that took time on the device.")
        families = {family: rows.fit(seed=self.seed, rounds=self.rounds, trees=_TREES)
                    for family, rows in training_rows(ops).items() if len(rows.wanted) >= _FEWEST_OPS}  # fmt: skip
        measured = Measured(device=device, steps=steps, graphs=graphs, ops=ops)
        shipped = load_model(DEFAULT).host
        return CostModel(
            name="fitted", device=device.name, operators=OperatorModels(families=families),
            host=fit_host(measured) if any(s.host_seconds for s in steps) else shipped,
        )  # fmt: skip

    def _possible(self, query: Query) -> tuple[Parts, Bytes] | None:
        """A forecast in parts, but for a plan that cannot be forecast."""
        try:
            return self._parts(query)
        except InputError:
            return None

    def _parts(self, query: Query) -> tuple[Parts, Bytes]:
        assert query.graph is not None
        own = self.models_.get(_device(query).name)
        if own is None:
            return _shipped(query.graph, query.cluster, query.plan)
        return forecast_parts(query.graph, query.cluster, query.plan, own)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> Prediction:
        if query.graph is None:
            return Prediction(values={}, why=_NO_GRAPH)
        try:
            said = self._said(query)
        except InputError as error:
            return Prediction(values={}, why=str(error))
        if _STEPS in query.settings:
            steps = float(query.settings[_STEPS])
            said[JOB_TIME] = Range(*(self.start_ + steps * seconds for seconds in said[STEP_TIME]))
        said = {target: found for target, found in said.items() if found.value > 0}
        sure = {target: found for target, found in said.items() if found.low < found.high}
        return Prediction(
            values={target: found.value for target, found in said.items()},
            low={target: found.low for target, found in sure.items()},
            high={target: found.high for target, found in sure.items()},
        )

    def _said(self, query: Query) -> dict[str, Range]:
        """Without an interval where nobody knows how far off it is: low and high are the value then."""
        assert query.graph is not None
        if self._is_learned(query):
            found = forecast(query.graph, query.cluster, query.plan, model=self.models_[_device(query).name])
            values = {STEP_TIME: found.step_time.seconds, DEVICE_TIME: found.device_time.seconds,
                      MEMORY: float(found.memory.allocated)}  # fmt: skip
            return {target: Range(value, value, value) for target, value in values.items()}
        parts, allocated = self._parts(query)
        values = {STEP_TIME: parts.seconds, DEVICE_TIME: parts.device, MEMORY: float(allocated)}
        said = {target: Range(value, value, value) for target, value in values.items()}
        corrected = {
            target: off.predict([_case(query, parts, allocated, target)])[0] for target, off in self.off_.items()
        }
        return said | corrected


@once
def _shipped(graph: Graph, cluster: Cluster, plan: Plan) -> tuple[Parts, Bytes]:
    """By the shipped model, before any factor."""
    return forecast_parts(graph, cluster, plan, load_model(DEFAULT))


def _case(query: Query, parts: Parts, allocated: Bytes, target: str) -> Case:
    """How residuals see a step: its forecast, its names, and numbers that a correction may depend on."""
    assert query.graph is not None
    cluster, plan, device, precision = query.cluster, query.plan, _device(query), query.graph.precision
    link = cluster.between or cluster.nodes[0].inside
    busy = max(parts.device, _INSTANT)
    times = parts._replace(device=busy)
    numbers = (
        busy, *(part / busy + _LITTLE for part in times[1:]), query.batch / cluster.devices, cluster.devices,
        len(cluster.nodes), link.bandwidth, device.peak("fp32"), device.bandwidth,
    )  # fmt: skip
    kinds = (plan.servers > 0, plan.data_parallel == "dp" and cluster.devices > 1, precision.endswith("16"))
    return Case(
        parts=times if target == STEP_TIME else Parts(device=max(allocated, 1)),
        names=(query.architecture, f"{device.name} {precision}", str(cluster)),
        values=(*(math.log(number) for number in numbers), *(_APART * kind for kind in kinds)),
    )


def _start(examples: Sequence[Example]) -> Seconds:
    """Of a job, before its first step."""
    known = [e.measured[JOB_TIME] - float(e.query.settings[_STEPS]) * e.measured[STEP_TIME] for e in examples
             if _STEPS in e.query.settings and {JOB_TIME, STEP_TIME} <= set(e.measured)]  # fmt: skip
    return max(median(known), 0.0) if known else 0.0


def _device(query: Query) -> Device:
    return query.cluster.nodes[0].device


def _is_alone(query: Query) -> bool:
    return query.cluster.devices == 1


def _rows(examples: Sequence[Example]) -> tuple[list[StepRow], Mapping[str, Graph]]:
    """The examples as a store has them, for what learns from a store."""
    steps, graphs = [], dict[str, Graph]()
    for number, e in enumerate(examples):
        assert e.query.graph is not None
        key = str(number)
        graphs[key] = e.query.graph
        steps.append(
            StepRow(
                point=key, kind="step", source=e.query.architecture, settings="{}", graph=key,
                step_seconds=e.measured.get(STEP_TIME), device_seconds=e.measured.get(DEVICE_TIME),
                host_seconds=e.measured.get(HOST_TIME),
            )
        )  # fmt: skip
    return steps, graphs


def _timed(examples: Sequence[Example]) -> Iterator[Timed]:
    for number, example in enumerate(examples):
        assert example.query.graph is not None
        yield number, example.query.graph, example.ops, [seconds > 0 for seconds in example.ops]
