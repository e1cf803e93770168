"""Foretell itself as one method among the others.

Where the ops of the examples were timed, operators and host are learned from them alone, and nothing shipped is used.
For other steps the shipped model forecasts, and its errors on the examples are learned (`residuals.py`):
factors for its parts, offsets of networks, devices in a precision and clusters, and a smooth part. Where no example is
near, the forecast stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Self

import numpy as np

from foretell.cost.model import DEFAULT, CostModel, load_model
from foretell.errors import InputError
from foretell.forecasting.forecast import forecast
from foretell.hardware import Device
from foretell.learn.dataset import Measured, op_table
from foretell.learn.host import fit_host
from foretell.learn.operators import fit_operators
from foretell.learn.options import ROUNDS
from foretell.measure.record import StepRow
from foretell.methods.graphs import answers, readable
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Prediction, Query
from foretell.units import Bytes, Seconds
from foretell_bench.methods.residuals import AS_FORECAST, Case, Parts, Range, Residuals, Speed, forecast_parts, speed_of

_FEWEST_STEPS: Final = 20  # with timed ops, to learn a device from; fewer are predicted by the shipped model
_TREES: Final = {"num_leaves": 15}  # a few dozen steps do not fill the leaves that a store of thousands does
_LITTLE: Final = 0.01  # of the device's time: what is below it is all the same
_INSTANT: Final = 1e-9  # seconds of a device that has nothing to do
_APART: Final = 2.0  # between kinds of plan, as if a number differed sevenfold
_STEPS: Final = "steps"  # the setting that says how many steps a job has
_NO_GRAPH: Final = "a forecast needs the graph of the step, and the source does not say what was run"


class Foretell:
    name: Final = "Foretell"

    def __init__(self, *, rounds: int = ROUNDS, seed: int = 0) -> None:
        self.rounds = rounds
        self.seed = seed
        self.models_: dict[str, CostModel] = {}  # device → what was learned on it
        self.residuals_: dict[str, Residuals] = {}  # target → errors of forecasts
        self.speed_ = AS_FORECAST  # of processors, by which steps are simulated: the catalog's is a whole socket
        self.start_: tuple[float, ...] = ()  # what each of `_starting` counts

    def fit(self, examples: Sequence[Example]) -> Self:
        known = readable(examples, self.name)
        self.models_, self.residuals_, self.speed_ = {}, {}, AS_FORECAST
        timed: dict[str, list[Example]] = defaultdict(list)
        for example in known:
            if len(example.ops) and _is_alone(example.query):
                timed[_device(example.query).name].append(example)
        for name, own in timed.items():
            if len(own) >= _FEWEST_STEPS:
                self.models_[name] = self._learn(own)
        corrected = self._corrected(known)
        if steps := [(e, found) for e, found in corrected if _is_cpu(e.query) and e.measured.get(STEP_TIME, 0.0) > 0]:
            cases = [_case(e.query, *found, STEP_TIME) for e, found in steps]
            self.speed_ = speed_of(cases, [e.measured[STEP_TIME] for e, _ in steps])
            corrected = self._corrected(known)
        for target in (STEP_TIME, MEMORY):
            measured = [(e, found, value) for e, found in corrected if (value := e.measured.get(target, 0.0)) > 0]
            if measured:
                cases = [_case(e.query, *found, target) for e, found, _ in measured]
                residuals = Residuals(factors=target == STEP_TIME)
                self.residuals_[target] = residuals.fit(cases, [value for _, _, value in measured])
        self.start_ = _start(known)
        return self

    def _corrected(self, examples: Sequence[Example]) -> list[tuple[Example, tuple[Parts, Bytes]]]:
        """Those whose forecasts are corrected, with their forecasts."""
        return [(e, found) for e in examples if not self._is_learned(e.query) and (found := self._possible(e.query))]

    def _is_learned(self, query: Query) -> bool:
        """Whether its operators and host were, so that nothing is left to correct."""
        return _is_alone(query) and _device(query).name in self.models_

    def _learn(self, examples: Sequence[Example]) -> CostModel:
        device = _device(examples[0].query)
        measured = _measured(examples, device)
        if not len(measured.ops):
            raise InputError(f"none of {len(examples)} examples has an op that took time on the device.")
        operators = fit_operators(measured.ops, seed=self.seed, rounds=self.rounds, trees=_TREES)
        host = fit_host(measured) if any(s.host_seconds for s in measured.steps) else load_model(DEFAULT).host
        return CostModel(name="fitted", device=device.name, operators=operators, host=host)

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
            return shipped_parts(query, self.speed_ if _is_cpu(query) else AS_FORECAST)
        return forecast_parts(query.graph, query.cluster, query.plan, own)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return answers(queries, lambda some: map(self._answer, some), _NO_GRAPH)

    def _answer(self, query: Query) -> Prediction:
        try:
            ranges = self._ranges(query)
        except InputError as error:
            return Prediction(values={}, why=str(error))
        if _STEPS in query.settings:
            steps = float(query.settings[_STEPS])
            start = sum(a * b for a, b in zip(self.start_, _starting(query, ranges[STEP_TIME].value), strict=False))
            ranges[JOB_TIME] = Range(*(start + steps * seconds for seconds in ranges[STEP_TIME]))
        ranges = {target: found for target, found in ranges.items() if found.value > 0}
        sure = {target: found for target, found in ranges.items() if found.low < found.high}
        return Prediction(
            values={target: found.value for target, found in ranges.items()},
            low={target: found.low for target, found in sure.items()},
            high={target: found.high for target, found in sure.items()},
        )

    def _ranges(self, query: Query) -> dict[str, Range]:
        """Without an interval where nobody knows how large errors are: low and high are the value then."""
        assert query.graph is not None
        if self._is_learned(query):
            found = forecast(query.graph, query.cluster, query.plan, model=self.models_[_device(query).name])
            return _certain(found.step_time.seconds, found.device_time.seconds, found.memory.allocated)
        parts, allocated = self._parts(query)
        corrected = {t: r.predict([_case(query, parts, allocated, t)])[0] for t, r in self.residuals_.items()}
        return _certain(parts.seconds, parts.device + parts.moving, allocated) | corrected


def _certain(step: Seconds, device: Seconds, allocated: Bytes) -> dict[str, Range]:
    values = {STEP_TIME: step, DEVICE_TIME: device, MEMORY: float(allocated)}
    return {target: Range(value, value, value) for target, value in values.items()}


def shipped_parts(query: Query, speed: Speed = AS_FORECAST) -> tuple[Parts, Bytes]:
    """By the shipped model; every fit of a comparison wants it again."""
    assert query.graph is not None
    step = (query.graph, query.cluster, query.plan)
    return query.graph.remember((Parts, *step[1:], speed), lambda: forecast_parts(*step, load_model(DEFAULT), speed))


def _case(query: Query, parts: Parts, allocated: Bytes, target: str) -> Case:
    """How residuals see a step: its forecast, its names, and numbers that a correction may depend on."""
    assert query.graph is not None
    cluster, plan, device, precision = query.cluster, query.plan, _device(query), query.graph.precision
    link = cluster.between or cluster.nodes[0].inside
    busy = max(parts.device + parts.moving, _INSTANT)
    times = parts if parts.device + parts.moving >= _INSTANT else parts._replace(device=busy)
    sizes = (query.batch / cluster.devices, cluster.devices, len(cluster.nodes))
    rates = (link.bandwidth, device.peak("fp32"), device.bandwidth)
    numbers = (busy, *(part / busy + _LITTLE for part in times[1:]), *sizes, *rates)
    kinds = (plan.servers > 0, plan.data_parallel == "dp" and cluster.devices > 1, precision.is_half)
    return Case(
        parts=times if target == STEP_TIME else Parts(device=max(allocated, 1)),
        names=(query.architecture, f"{device.name} {precision.arithmetic}", str(cluster)),
        values=(*(math.log(number) for number in numbers), *(_APART * kind for kind in kinds)),
    )


def _start(examples: Sequence[Example]) -> tuple[float, ...]:
    """What a job takes in addition to its steps, as parts of `_starting`; errors count by the job's length."""
    from scipy.optimize import nnls

    jobs = [e for e in examples if _STEPS in e.query.settings and {JOB_TIME, STEP_TIME} <= set(e.measured)]
    if not jobs:
        return ()
    took = np.array([e.measured[JOB_TIME] for e in jobs])
    steps = np.array([float(e.query.settings[_STEPS]) * e.measured[STEP_TIME] for e in jobs])
    table = np.array([_starting(e.query, e.measured[STEP_TIME]) for e in jobs])
    return tuple(nnls(table / took[:, None], (took - steps) / took)[0].tolist())


def _starting(query: Query, step: Seconds) -> tuple[float, ...]:
    """A job begins: once, by one worker that sends all others the parameters, and with a step that is slower."""
    assert query.graph is not None
    cluster = query.cluster
    link = cluster.between or cluster.nodes[0].inside
    return 1.0, (cluster.devices - 1) * query.graph.bytes_of("parameter") / link.bandwidth, step


def _device(query: Query) -> Device:
    return query.cluster.nodes[0].device


def _is_cpu(query: Query) -> bool:
    return _device(query).kind == "cpu"


def _is_alone(query: Query) -> bool:
    return query.cluster.devices == 1


def _measured(examples: Sequence[Example], device: Device) -> Measured:
    """The examples as a store has them, for what learns from a store."""
    graphs = {str(i): e.query.graph for i, e in enumerate(examples) if e.query.graph is not None}
    steps = [
        StepRow(
            point=key,
            kind="step",
            source=e.query.architecture,
            settings="{}",
            graph=key,
            step_seconds=e.measured.get(STEP_TIME),
            device_seconds=e.measured.get(DEVICE_TIME),
            host_seconds=e.measured.get(HOST_TIME),
        )
        for key, e in zip(graphs, examples, strict=True)
    ]
    timed = ((i, graphs[str(i)], e.ops, [seconds > 0 for seconds in e.ops]) for i, e in enumerate(examples))
    return Measured(device=device, steps=steps, graphs=graphs, ops=op_table(timed, device))
