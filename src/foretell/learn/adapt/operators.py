"""Times of single ops → the curves of a profile, which correct what a model says of each op.

Steps that are measured here are recorded too, op by op. An operator that was timed in many shapes has a curve of its own,
the others share their family's: a Gaussian process over the numbers that describe an op, on top of a plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from foretell.cost.model import DEFAULT, CostModel, load_model
from foretell.cost.roofline import Price
from foretell.graph import Graph, Signature
from foretell.hardware import Cluster
from foretell.learn.adapt.smooth import OF_OPS, fit_smooth
from foretell.learn.dataset import is_recorded_alone
from foretell.measure.record import Record
from foretell.profile import Operators, Residuals, family_of
from foretell.profile.operators import numbers_of
from foretell.units import Seconds

_OWN: Final = 12  # shapes of an operator, for a curve of its own
_MAX_OPS: Final = 150  # ops of a curve: those that take most of the time
_SURE: Final = 1.0  # networks' worth of belief that the model is right
_AT_LEAST: Final = 0.1  # of what was recorded is the op itself
_SHORTEST: Final[Seconds] = 3e-7  # that a clock tells


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The ops that a step ran where it was measured, and what each took; None: nothing was launched."""

    graph: Graph
    seconds: Sequence[Seconds | None]


def recorded_of(record: Record) -> Recorded | None:
    """What a measurement has of its ops."""
    if record.graph is None or not record.ops or is_recorded_alone(record.step):
        return None
    graph = Graph.from_bytes(record.graph.file, name=record.graph.name)
    return Recorded(graph=graph, seconds=[op.device_seconds for op in record.ops])


class _Timed(NamedTuple):
    """An op's log(measured ÷ priced), and its share of a step."""

    signature: Signature
    numbers: Mapping[str, float]
    log: float
    share: float
    network: str


def fit_operators(
    steps: Sequence[tuple[Recorded, Graph]], cluster: Cluster, model: str | CostModel = DEFAULT
) -> Operators:
    """From what was recorded of steps, and the graphs that forecasts of them are made from."""
    prices_by = load_model(model) if isinstance(model, str) else model
    by_curve: dict[str, dict[Signature, list[_Timed]]] = {}
    for recorded, captured in steps:
        for timed in _timed(recorded, captured, cluster, prices_by):
            for name in (timed.signature.name, family_of(timed.signature)):
                by_curve.setdefault(name, {}).setdefault(timed.signature, []).append(timed)
    families = {family_of(signature) for those in by_curve.values() for signature in those}
    return Operators(
        curves={
            name: _curve(list(those.values()))
            for name, those in sorted(by_curve.items())
            if name in families or len(those) >= _OWN
        }
    )


def _curve(ops: Sequence[Sequence[_Timed]]) -> Residuals:
    """Of distinct ops, each timed in one step or several."""
    most = sorted(ops, key=lambda same: -sum(one.share for one in same))[:_MAX_OPS]
    logs = np.array([np.mean([one.log for one in same]) for same in most])
    networks = [same[0].network for same in most]
    return fit_smooth(
        [same[0].numbers for same in most], logs, networks, _mean([one for same in most for one in same]), OF_OPS
    )


def _mean(ops: Sequence[_Timed]) -> float:
    """Over networks; it counts the less the fewer there are."""
    by_network: dict[str, list[float]] = {}
    for op in ops:
        by_network.setdefault(op.network, []).append(op.log)
    return sum(float(np.mean(logs)) for logs in by_network.values()) / (len(by_network) + _SURE)


def _timed(recorded: Recorded, captured: Graph, cluster: Cluster, model: CostModel) -> Iterator[_Timed]:
    """Distinct ops of a step."""
    priced = _priced(recorded.graph, cluster, model)
    known = _without_calling(recorded, priced)
    whole = sum(known) or 1.0
    sums, times = np.zeros(len(priced)), np.zeros(len(priced))
    for place, seconds, op in zip(recorded.graph.calls.places, known, recorded.graph.ops, strict=True):
        sums[place] += seconds * op.times
        times[place] += op.times
    for (signature, price), total, often in zip(priced, sums.tolist(), times.tolist(), strict=True):
        if price.work.kernel and price.seconds and total > _SHORTEST * often:
            yield _one(signature, price, float(np.log(total / often / price.seconds)), total / whole, captured.name)
    yield from _instead(recorded, known, captured, cluster, model)


def _without_calling(recorded: Recorded, priced: Sequence[tuple[Signature, Price]]) -> list[Seconds]:
    """What ops took beyond being called and recorded, as those are that do nothing, such as views."""
    known = [0.0 if seconds is None else seconds for seconds in recorded.seconds]
    idle = [s for s, place in zip(known, recorded.graph.calls.places, strict=True) if not priced[place][1].work.kernel]
    called = float(np.median(idle)) if idle else 0.0
    return [max(seconds - called, _AT_LEAST * seconds) for seconds in known]


def _instead(
    recorded: Recorded, known: Sequence[Seconds], captured: Graph, cluster: Cluster, model: CostModel
) -> Iterator[_Timed]:
    """Ops that a forecast has and the device ran others for: an optimizer tensor by tensor, attention in plain products.

    What a module ran in one phase under other names is what its ops took that did not run there.
    """
    ran, priced = _by_module(recorded.graph), _priced(captured, cluster, model)
    for part, ops in _by_module(captured).items():
        other = ran.get(part, [])
        names, expected = (
            {graph.ops[i].signature.name for i in those} for graph, those in ((recorded.graph, other), (captured, ops))
        )
        took = sum(known[i] for i in other if recorded.graph.ops[i].signature.name not in expected)
        missing = [priced[captured.calls.places[i]] for i in ops if captured.ops[i].signature.name not in names]
        predicted = sum(price.seconds for _, price in missing if price.work.kernel)
        if predicted and took > _SHORTEST:
            for signature, price in dict.fromkeys(missing):
                if price.work.kernel and price.seconds:
                    yield _one(
                        signature,
                        price,
                        float(np.log(took / predicted)),
                        took * price.seconds / predicted / sum(known),
                        captured.name,
                    )


def _by_module(graph: Graph) -> dict[tuple[str, str], list[int]]:
    """Positions of ops, by phase and module."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, op in enumerate(graph.ops):
        found.setdefault((op.phase, op.module), []).append(place)
    return found


def _priced(graph: Graph, cluster: Cluster, model: CostModel) -> list[tuple[Signature, Price]]:
    """A graph's distinct calls."""
    found = model.price(graph, cluster.nodes[0].device)
    return [(call.signature, price) for call, price in zip(found.calls.distinct, found.of_calls, strict=True)]


def _one(signature: Signature, price: Price, log: float, share: float, network: str) -> _Timed:
    numbers = numbers_of(signature, price.work.flops, price.work.traffic, price.seconds)
    return _Timed(signature, numbers, log, share, network)
