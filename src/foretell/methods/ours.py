"""Foretell itself as one method among the others.

Where the ops of the examples were timed, operators and host are learned from them alone, and nothing shipped is used.
Elsewhere the shipped model forecasts, and what a cluster's software and network differ by is fitted on the examples: four
factors a kind of device, as `foretell bench distributed` does; a device without examples gets those of all others. A
network that is among the examples is corrected by what it was off by there, the more the oftener it was measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, Self

import numpy as np

from foretell.cost.features import Description, describe
from foretell.cost.model import DEFAULT, CostModel, load_model
from foretell.errors import InputError
from foretell.forecasting import forecast
from foretell.graph import Graph, Signature
from foretell.hardware import Cluster, Device
from foretell.learn.dataset import Measured, OpTable
from foretell.learn.factors import Answer, Refusal, ask, calibrate
from foretell.learn.host import fit_host
from foretell.learn.operators import ROUNDS, fit_operators
from foretell.measure.record import StepRow
from foretell.methods.once import once
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example, Prediction, Query
from foretell.units import Seconds
from foretell.workload import Plan

Factors = Sequence[float]
_EVERYWHERE: Final = ""
_FEWEST_STEPS: Final = 20  # with timed ops, to learn a device from; fewer are foretold by the shipped model
_FEWEST_FACTORS: Final = 8  # examples to fit four factors on
_NONE: Final = (1.0, 1.0, 1.0, 1.0)
_FAR: Final = 5.0  # a device that is shared may be a hundred times slower than its catalogue says
_DOUBT: Final = 2.0  # examples of a network that a correction of its own must outweigh
_STEPS: Final = "steps"  # the setting that says how many steps a job has
_NO_GRAPH: Final = "a forecast needs the graph of the step, and the source does not say what was run"


class Foretell:
    def __init__(self, *, rounds: int = ROUNDS, seed: int = 0) -> None:
        self.rounds = rounds
        self.seed = seed
        self.models_: dict[str, CostModel] = {}  # device → what was learned on it
        self.factors_: dict[str, Factors] = {}
        self.own_: dict[tuple[str, str], float] = {}  # (network, device) → log of the correction of its steps
        self.start_: Seconds = 0.0  # of a job, before its first step

    @property
    def name(self) -> str:
        return "Foretell"

    def fit(self, examples: Sequence[Example]) -> Self:
        known = [e for e in examples if e.query.graph is not None and e.measured]
        if not known:
            raise InputError(f"Foretell reads graphs, and none of {len(examples)} examples has one that was measured.")
        self.models_, self.factors_ = {}, {}
        by_device: dict[str, list[Example]] = defaultdict(list)
        for example in known:
            by_device[_device(example.query).name].append(example)
        for name, mine in by_device.items():
            timed = [e for e in mine if len(e.ops) and _is_alone(e.query)]
            if len(timed) >= _FEWEST_STEPS:
                self.models_[name] = self._learn(timed)
        asked = [case for mine in by_device.values() for case in self._asked(mine)]
        for name in [*by_device, _EVERYWHERE]:
            cases = [(answer, e) for e, answer in asked if name in (_device(e.query).name, _EVERYWHERE)]
            if len(cases) >= _FEWEST_FACTORS:
                seconds = [e.measured[STEP_TIME] for _, e in cases]
                self.factors_[name] = calibrate([answer for answer, _ in cases], seconds, _FAR)
        self.own_ = self._corrections(asked)
        self.start_ = _start(known)
        return self

    def _asked(self, examples: Sequence[Example]) -> list[tuple[Example, Answer]]:
        """What the forecast is of steps that a learned device alone does not explain."""
        found = []
        for e in examples:
            if STEP_TIME in e.measured and not (_is_alone(e.query) and _device(e.query).name in self.models_):
                assert e.query.graph is not None
                answer = self._ask(e.query)
                if isinstance(answer, Answer):
                    found.append((e, answer))
        return found

    def _corrections(self, asked: Sequence[tuple[Example, Answer]]) -> dict[tuple[str, str], float]:
        off: dict[tuple[str, str], list[float]] = defaultdict(list)
        for e, answer in asked:
            said = answer.seconds(self._factors(e.query))
            off[e.query.architecture, _device(e.query).name].append(math.log(e.measured[STEP_TIME] / said))
        return {key: sum(those) / (len(those) + _DOUBT) for key, those in off.items()}

    def _factors(self, query: Query) -> Factors:
        return self.factors_.get(_device(query).name) or self.factors_.get(_EVERYWHERE) or _NONE

    def _learn(self, examples: Sequence[Example]) -> CostModel:
        device = _device(examples[0].query)
        steps, graphs = _rows(examples)
        ops = op_table(examples, device)
        operators = fit_operators(ops, seed=self.seed, rounds=self.rounds)
        measured = Measured(device=device, steps=steps, graphs=graphs, ops=ops)
        shipped = load_model(DEFAULT).host
        return CostModel(
            name="fitted", device=device.name, operators=operators,
            host=fit_host(measured) if any(s.host_seconds for s in steps) else shipped,
        )  # fmt: skip

    def _ask(self, query: Query) -> Answer | Refusal:
        assert query.graph is not None
        own = self.models_.get(_device(query).name)
        if own is None:
            return _shipped(query.graph, query.cluster, query.plan)
        return ask(query.graph, query.cluster, query.plan, own)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: Query) -> Prediction:
        if query.graph is None:
            return Prediction(values={}, why=_NO_GRAPH)
        try:
            said = self._said(query)
        except InputError as error:
            return Prediction(values={}, why=str(error))
        values = {target: value for target, value in said.items() if value > 0}
        if STEP_TIME in values:
            values[STEP_TIME] *= math.exp(self.own_.get((query.architecture, _device(query).name), 0.0))
        if _STEPS in query.settings and STEP_TIME in values:
            values[JOB_TIME] = self.start_ + float(query.settings[_STEPS]) * values[STEP_TIME]
        return Prediction(values=values)

    def _said(self, query: Query) -> dict[str, float]:
        assert query.graph is not None
        own = self.models_.get(_device(query).name)
        if own is not None and _is_alone(query):
            said = forecast(query.graph, query.cluster, query.plan, model=own)
            return {STEP_TIME: said.step_time.seconds, DEVICE_TIME: said.device_time.seconds,
                    MEMORY: float(said.memory.allocated)}  # fmt: skip
        answer = self._ask(query)
        if not isinstance(answer, Answer):
            raise InputError(answer.why)
        factors = self._factors(query)
        return {STEP_TIME: answer.seconds(factors), DEVICE_TIME: factors[0] * answer.device,
                MEMORY: float(answer.memory["allocated"])}  # fmt: skip


@once
def _shipped(graph: Graph, cluster: Cluster, plan: Plan) -> Answer | Refusal:
    """What the shipped model says, before any factor."""
    return ask(graph, cluster, plan, load_model(DEFAULT))


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


def op_table(examples: Sequence[Example], device: Device) -> OpTable:
    """A row for each distinct op of each example that ran a kernel."""
    names: list[str] = []
    descriptions: list[Description] = []
    columns: list[tuple[Seconds, int, int, float]] = []
    known: dict[tuple[Signature, bool], Description] = {}
    for number, example in enumerate(examples):
        graph = example.query.graph
        assert graph is not None
        tf32 = graph.precision == "tf32"
        sums: dict[Signature, tuple[Seconds, int]] = {}
        for op, seconds in zip(graph.ops, example.ops, strict=True):
            if seconds > 0:
                total, times = sums.get(op.signature, (0.0, 0))
                sums[op.signature] = (total + seconds * op.times, times + op.times)
        whole = sum(total for total, _ in sums.values()) or 1.0
        for signature, (total, times) in sums.items():
            if (signature, tf32) not in known:
                known[signature, tf32] = describe(signature, device, tf32=tf32)
            names.append(signature.name)
            descriptions.append(known[signature, tf32])
            columns.append((total / times, times, number, total / whole))
    if not columns:
        raise InputError(f"none of {len(examples)} examples has an op that took time on the device.")
    took, count, index, share = (np.array(column) for column in zip(*columns, strict=True))
    return OpTable(names=names, descriptions=descriptions, seconds=took, count=count, step=index, share=share)
