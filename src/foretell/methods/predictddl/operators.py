"""PredictDDL without its hypernetwork's training: ATen operators for a vocabulary, and a network that learns cost itself.

The graph network starts from the linear regressor on workload and cluster features and learns what that leaves over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.methods.predictddl.features import collect, graph_features, request_features
from foretell.methods.predictddl.regressors import Regressor, choose
from foretell.methods.protocol import Example, Prediction, Query

if TYPE_CHECKING:
    from foretell.methods.predictddl.ghn.cost import CostNetwork

Floats = npt.NDArray[np.float64]
_EPOCHS: Final = 60
_RATE: Final = 3e-3
_DECAY: Final = 1e-2
_HELD: Final = 6  # one architecture in so many decides when to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """What is known of a dataset type and target."""

    start: Regressor
    network: CostNetwork
    epochs: int


class PredictDDLOperators:
    """The modern variant: no vocabulary of CNNs, no weights to generate, trained end to end on what was measured."""

    def __init__(self, *, epochs: int = _EPOCHS, seed: int = 0) -> None:
        self.epochs = epochs
        self.seed = seed
        self.fitted_: dict[tuple[str, str], _Fitted] = {}

    @property
    def name(self) -> str:
        return "PredictDDL, end to end"

    def fit(self, examples: Sequence[Example]) -> Self:
        self.fitted_ = {}
        rows: dict[tuple[str, str], list[tuple[Query, float]]] = defaultdict(list)
        for example in examples:
            for target, value in example.measured.items():
                if example.query.graph is not None and value > 0:
                    rows[example.query.dataset, target].append((example.query, value))
        if not rows:
            raise InputError(f"PredictDDL reads graphs, and none of {len(examples)} examples has one.")
        for key, those in rows.items():
            self.fitted_[key] = self._train([q for q, _ in those], np.log([value for _, value in those]))
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        import torch

        from foretell.methods.predictddl.ghn.cost import Networks

        answers = [Prediction(values={}, why="the source does not say which network was run") for _ in queries]
        for dataset in {query.dataset for query in queries}:
            places = [i for i, q in enumerate(queries) if q.dataset == dataset and q.graph is not None]
            asked = [queries[i] for i in places]
            known = {target: fitted for (of, target), fitted in self.fitted_.items() if of == dataset}
            if not asked:
                continue
            said: dict[str, Floats] = {}
            features = _features(asked)
            for target, fitted in known.items():
                networks = Networks.of(_graphs(asked), fitted.network.kinds)
                with torch.no_grad():
                    more = fitted.network(networks, _standard(fitted.start, features)).numpy()
                said[target] = np.exp(fitted.start.predict(features) + more)
            why = "" if known else f"no predictor for data of type {dataset!r} was trained"
            for row, place in enumerate(places):
                answers[place] = Prediction(values={t: float(v[row]) for t, v in said.items()}, why=why)
        return answers

    def _train(self, queries: Sequence[Query], target: Floats) -> _Fitted:
        """Learn what the linear regressor leaves, until architectures that were held back get no better."""
        from foretell.methods.predictddl.ghn.cost import CostNetwork, Networks, kinds_of, train

        features, graphs = _features(queries), _graphs(queries)
        architectures = [query.architecture for query in queries]
        held = _held_back(architectures)
        start = choose(features, target, architectures, forms=("linear",))
        x, kinds = _standard(start, features), kinds_of(graphs)
        networks = Networks.of(graphs, kinds)

        def learned(epochs: int, watch: npt.NDArray[np.bool_] | None, begin: Floats) -> tuple[CostNetwork, int]:
            network = CostNetwork(kinds, x.shape[1], self.seed)
            rest = target - begin
            return network, train(network, networks, x, rest, epochs=epochs, watch=watch, rate=_RATE, decay=_DECAY)

        if not held.any():
            network, epochs = learned(self.epochs // 4, None, start.predict(features))
            return _Fitted(start=start, network=network, epochs=epochs)
        # What is left over must be honest on the held ones: the linear start for it may not have seen them.
        blind = choose(features[~held], target[~held], [a for a, h in zip(architectures, held, strict=True) if not h],
                       forms=("linear",))  # fmt: skip
        _, epochs = learned(self.epochs, held, blind.predict(features))
        network, _ = learned(epochs, None, start.predict(features))
        return _Fitted(start=start, network=network, epochs=epochs)


def _held_back(architectures: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Every sixth architecture, drawn once and for all by a fixed seed."""
    names = sorted(set(architectures))
    chosen = set(np.random.default_rng(0).permutation(names)[: len(names) // _HELD].tolist())
    return np.array([a in chosen for a in architectures])


def _graphs(queries: Sequence[Query]) -> list[Graph]:
    return [query.graph for query in queries if query.graph is not None]


def _features(queries: Sequence[Query]) -> Floats:
    graphs = _graphs(queries)
    return np.array(
        [[*graph_features(g), *request_features(q), *collect(q, g)] for q, g in zip(queries, graphs, strict=True)]
    )


def _standard(start: Regressor, features: Floats) -> Any:
    return (features - start.state["mean"]) / start.state["scale"]
