"""After DNNAbacus (arXiv 2205.12095): a matrix of which kinds of op feed which, with the totals of a step, into trees.

Entry (i, j) of the network structural matrix counts tensors that go from an op of kind i to one of kind j, along the data
flow and not the order of calls. Beside it stand batch, input size, optimizer, floating-point operations, parameters, the
plan and the device. One ensemble of boosted trees per target, its settings chosen on
architectures left out; time and memory alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from foretell.cost.flops import total_flops
from foretell.graph import Graph
from foretell.methods.graphs import answers, readable
from foretell.methods.protocol import Example, Prediction, Query
from foretell.methods.surroundings import surroundings

Floats = npt.NDArray[np.float64]
_TREES: Final[dict[str, Any]] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 3, "feature_fraction": 0.4,
    "lambda_l2": 1.0, "verbose": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_ROUNDS: Final = 400
# What validation chooses among, as many as were tried of our own trees: what is changed of `_TREES`, and `rounds`.
_TRIED: Final[tuple[dict[str, Any], ...]] = (
    {}, {"num_leaves": 7}, {"num_leaves": 31}, {"rounds": 800}, {"rounds": 800, "learning_rate": 0.025},
    {"feature_fraction": 1.0}, {"min_data_in_leaf": 10},
)  # fmt: skip
_FOLDS: Final = 4
_FEWEST: Final = 40  # examples, to leave some out for choosing
_OFTEN: Final = 3  # examples a column must be in to be one
_STORED: Final = {"parameters": "parameter", "activations": "activation", "optimizer state": "optimizer",
                  "gradients": "gradient"}  # fmt: skip
_NO_GRAPH: Final = "DNNAbacus reads the network, and the source does not say which was run"


class DNNAbacus:
    name: Final = "DNNAbacus"

    def __init__(self, *, seed: int = 0, tuned: bool = True, chosen: Mapping[str, int] | None = None) -> None:
        self.seed = seed
        self.tuned = tuned  # False: settings as they are, which is thirty times as fast
        self.chosen = dict(chosen or {})  # target → which of the settings tried, where another fit has chosen
        self.chosen_: dict[str, int] = {}  # target → which of the settings tried
        self.columns_: tuple[str, ...] = ()
        self.trees_: dict[str, str] = {}  # target → LightGBM's text, which pickles as it is

    def fit(self, examples: Sequence[Example]) -> Self:
        known = readable(examples, self.name)
        rows = [_row(e.query) for e in known]
        often = Counter(name for row in rows for name in row)
        self.columns_ = tuple(sorted(name for name, count in often.items() if count >= min(_OFTEN, len(known))))
        table = self._table(rows)
        self.trees_, self.chosen_ = {}, {}
        for target in sorted({target for e in known for target in e.measured}):
            own = [i for i, e in enumerate(known) if e.measured.get(target, 0.0) > 0]
            if own:
                wanted = np.log([known[i].measured[target] for i in own])
                names = [known[i].query.architecture for i in own]
                if target in self.chosen:
                    self.chosen_[target] = self.chosen[target]
                else:
                    self.chosen_[target] = self._chosen(table[own], wanted, names) if self.tuned else 0
                self.trees_[target] = self._trained(table[own], wanted, _TRIED[self.chosen_[target]])
        return self

    def _chosen(self, table: Floats, wanted: Floats, names: Sequence[str]) -> int:
        """Settings with the least error on architectures left out; where there is little, those that it begins with."""
        different = sorted(set(names))
        if len(names) < _FEWEST or len(different) < _FOLDS:
            return 0
        import lightgbm

        fold = np.array([different.index(name) % _FOLDS for name in names])
        errors = np.zeros(len(_TRIED))
        for number, settings in enumerate(_TRIED):
            for each in range(_FOLDS):
                trees = self._trained(table[fold != each], wanted[fold != each], settings)
                predicted = lightgbm.Booster(model_str=trees).predict(table[fold == each], num_threads=1)
                errors[number] += float(np.abs(np.expm1(np.asarray(predicted) - wanted[fold == each])).sum())
        return int(errors.argmin())

    def _trained(self, table: Floats, wanted: Floats, settings: Mapping[str, Any]) -> str:
        import lightgbm

        data = lightgbm.Dataset(table, wanted, params={"verbose": -1})
        chosen = {name: value for name, value in settings.items() if name != "rounds"}
        rounds = settings.get("rounds", _ROUNDS)
        text: str = lightgbm.train(
            _TREES | chosen | {"seed": self.seed}, data, num_boost_round=rounds
        ).model_to_string()
        return text

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return answers(queries, self._predict, _NO_GRAPH)

    def _predict(self, queries: Sequence[Query]) -> Iterator[Prediction]:
        import lightgbm

        table = self._table([_row(query) for query in queries])
        logs = [lightgbm.Booster(model_str=t).predict(table, num_threads=1) for t in self.trees_.values()]
        for row in np.exp(np.array(logs, dtype=np.float64)).T.tolist():
            yield Prediction(values=dict(zip(self.trees_, row, strict=True)))

    def _table(self, rows: Sequence[Mapping[str, float]]) -> Floats:
        return np.array([[row.get(name, 0.0) for name in self.columns_] for row in rows], dtype=np.float64)


def _row(query: Query) -> dict[str, float]:
    assert query.graph is not None
    return query.graph.remember(DNNAbacus, partial(network, query.graph)) | surroundings(query)


def structural_matrix(graph: Graph) -> Counter[tuple[str, str]]:
    """(kind, kind) → tensors that flow from an op of the one kind to one of the other."""
    made_by: dict[int, str] = {}
    edges: Counter[tuple[str, str]] = Counter()
    for op in graph.ops:
        kind = op.signature.name.removeprefix("aten.")
        for tensor in op.inputs:
            if tensor in made_by:
                edges[made_by[tensor], kind] += op.times
        for tensor in op.outputs:
            made_by[tensor] = kind
    return edges


def network(graph: Graph) -> dict[str, float]:
    """What the graph has: the matrix, and totals in logarithms."""
    row = {f"{a} → {b}": float(count) for (a, b), count in structural_matrix(graph).items()}
    inputs = [t.layout.numel for t in graph.tensors if graph.storages[t.storage].role == "input"]
    totals = {"flops": total_flops(graph), "input": max(inputs, default=0), "ops": len(graph.ops)}
    totals |= {name: graph.bytes_of(role) for name, role in _STORED.items()}
    row |= {name: float(np.log1p(value)) for name, value in totals.items()}
    row["training"] = float(graph.training)
    row["accumulation"] = float(graph.grad_accumulation)
    row[f"precision {graph.precision.arithmetic}"] = 1.0
    for kind in sorted({op.signature.name for op in graph.ops if op.phase == "optimizer"}):
        row[f"optimizer {kind}"] = 1.0
    return row
