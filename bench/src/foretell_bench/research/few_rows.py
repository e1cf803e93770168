"""What else could be done with a few step times: the rivals of a profile, each given the same rows.

From scratch, a ridge or trees learn log seconds from totals of a step: floating-point operations, bytes, launches,
parameters, activations, batch, plan. Structural-matrix trees see which kinds of op feed which, as DNNAbacus does.
Pre-trained, they learn steps of another device first and are then scaled to the new one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.roofline import price_ops
from foretell.graph import Graph
from foretell.methods.dnnabacus import DNNAbacus, network
from foretell.methods.protocol import STEP_TIME, Example, Query
from foretell.methods.surroundings import surroundings
from foretell.units import Seconds
from foretell_bench.sources.settings import Row

Floats = npt.NDArray[np.float64]
_TREES: Final[dict[str, Any]] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 2, "lambda_l2": 0.1,
    "verbose": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ROUNDS: Final = 300
_PULLS: Final = np.logspace(-3, 3, 25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row as the rivals see it."""

    seconds: Seconds
    query: Query
    totals: Mapping[str, float]


def seen(row: Row, graph: Graph) -> Seen:
    query = Query(
        architecture=row.network, plan=row.plan, cluster=row.cluster, graph=graph,
        batch=float((graph.samples or 1) * row.plan.dp * (row.plan.grad_accumulation or 1)),
    )  # fmt: skip
    device = row.cluster.nodes[0].device
    prices = price_ops(graph, device)
    traffic = sum(price.work.traffic * op.times for price, op in zip(prices, graph.ops, strict=True))
    launches = sum(op.times for price, op in zip(prices, graph.ops, strict=True) if price.work.kernel)
    whole = {name: value for name, value in network(graph).items() if "→" not in name}
    totals = {
        **whole,
        "traffic": float(np.log1p(traffic)),
        "launches": float(np.log1p(launches)),
        **surroundings(query),
    }
    return Seen(seconds=row.seconds, query=query, totals=totals)


Rival = Callable[[Sequence[Seen], Sequence[Seen]], Floats]  # known and tested rows → log seconds


def _ridge(known: Sequence[Seen], tested: Sequence[Seen]) -> Floats:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tables, wanted = _tables(known, tested)
    model = make_pipeline(StandardScaler(), RidgeCV(alphas=_PULLS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few rows with many columns are what is asked of it
        return np.asarray(model.fit(tables[0], wanted).predict(tables[1]), dtype=np.float64)


def _trees(known: Sequence[Seen], tested: Sequence[Seen]) -> Floats:
    import lightgbm

    tables, wanted = _tables(known, tested)
    booster = lightgbm.train(_TREES, lightgbm.Dataset(tables[0], wanted, params={"verbose": -1}), _ROUNDS)
    return np.asarray(booster.predict(tables[1], num_threads=1), dtype=np.float64)


def _matrix(known: Sequence[Seen], tested: Sequence[Seen]) -> Floats:
    examples = [Example(query=s.query, measured={STEP_TIME: s.seconds}) for s in known]
    found = DNNAbacus().fit(examples).predict([s.query for s in tested])
    return np.log([p.values[STEP_TIME] for p in found])


def _tables(known: Sequence[Seen], tested: Sequence[Seen]) -> tuple[list[Floats], Floats]:
    columns = sorted({name for s in known for name in s.totals})
    tables = [np.array([[s.totals.get(c, 0.0) for c in columns] for s in rows]) for rows in (known, tested)]
    return tables, np.log([s.seconds for s in known])


LEARNED: Final[Mapping[str, Rival]] = {
    "ridge from scratch": _ridge, "trees from scratch": _trees, "structural-matrix trees": _matrix,
}  # fmt: skip
_PRE_TRAINED: Final[Mapping[str, Rival]] = {
    "ridge, pre-trained": _ridge, "structural-matrix trees, pre-trained": _matrix,
}  # fmt: skip


class Rivals:
    """Every rival on the tested rows of a fold; `others` are rows of another device.

    `formulas` predict drawn and tested rows with nothing learned, as the roofline does, and are scaled by one factor.
    """

    def __init__(
        self, drawn: Sequence[Seen], tested: Sequence[Seen], others: Sequence[Seen], formulas: Mapping[str, Sequence[Seconds]]
    ) -> None:  # fmt: skip
        self.drawn, self.tested = drawn, tested
        everywhere = [*drawn, *tested]
        self._scaled = {f"{name}, scaled": np.log(seconds) for name, seconds in formulas.items()}
        if others:
            self._scaled |= {name: rival(others, everywhere) for name, rival in _PRE_TRAINED.items()}

    def predict(self, chosen: Sequence[int]) -> Iterator[tuple[str, Floats]]:
        """Seconds of the tested rows, from the rows at these positions of the drawn; each is computed when it is asked for."""
        known = [self.drawn[i] for i in chosen]
        for name, rival in LEARNED.items():
            yield name, np.exp(rival(known, self.tested))
        measured = np.log([s.seconds for s in known])
        for name, logs in self._scaled.items():
            yield name, np.exp(logs[len(self.drawn) :] + np.median(measured - logs[list(chosen)]))
