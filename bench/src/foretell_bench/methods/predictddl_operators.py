"""PredictDDL without its hypernetwork's training: ATen operators for a vocabulary, and a network that learns cost itself.

The graph network starts from the linear regressor on workload and cluster features and learns what that leaves over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from foretell.errors import InputError
from foretell.methods.predictddl.features import NO_GRAPH, Floats, graphs_of, table
from foretell.methods.predictddl.regressors import Regressor, choose
from foretell.methods.protocol import Example, Prediction, Query

if TYPE_CHECKING:
    from foretell_bench.research.ghn.cost import CostNetwork

_EPOCHS: Final = 60
_VALIDATED: Final = 6  # one architecture in so many decides when to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """What is known of a dataset type and target."""

    start: Regressor
    network: CostNetwork
    epochs: int


class PredictDDLOperators:
    """The modern variant: no vocabulary of CNNs, no weights to generate, trained end to end on what was measured."""

    name: Final = "PredictDDL, end to end"

    def __init__(self, *, epochs: int = _EPOCHS, seed: int = 0) -> None:
        self.epochs = epochs
        self.seed = seed
        self.fitted_: dict[tuple[str, str], _Fitted] = {}

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

        from foretell_bench.research.ghn.cost import Networks

        answers = [Prediction(values={}, why=NO_GRAPH) for _ in queries]
        for dataset in {query.dataset for query in queries}:
            places = [i for i, q in enumerate(queries) if q.dataset == dataset and q.graph is not None]
            own = [queries[i] for i in places]
            known = {target: fitted for (of, target), fitted in self.fitted_.items() if of == dataset}
            if not own:
                continue
            predicted: dict[str, Floats] = {}
            features = table(own)
            for target, fitted in known.items():
                networks = Networks.of(graphs_of(own), fitted.network.kinds)
                with torch.no_grad():
                    more = fitted.network(networks, fitted.start.standardised(features)).numpy()
                predicted[target] = np.exp(fitted.start.predict(features) + more)
            why = "" if known else f"no predictor for data of type {dataset!r} was trained"
            for row, place in enumerate(places):
                answers[place] = Prediction(values={t: float(v[row]) for t, v in predicted.items()}, why=why)
        return answers

    def _train(self, queries: Sequence[Query], target: Floats) -> _Fitted:
        """Learn what the linear regressor leaves, until architectures that were left out get no better."""
        from foretell_bench.research.ghn.cost import CostNetwork, Networks, kinds_of, train

        features, graphs = table(queries), graphs_of(queries)
        architectures = np.array([query.architecture for query in queries])
        validating = _validating(architectures)
        start = choose(features, target, architectures.tolist(), forms=("linear",))
        x, kinds = start.standardised(features), kinds_of(graphs)
        networks = Networks.of(graphs, kinds)

        def learned(epochs: int, watch: npt.NDArray[np.bool_] | None, begin: Regressor) -> tuple[CostNetwork, int]:
            network = CostNetwork(kinds, x.shape[1], self.seed)
            return network, train(network, networks, x, target - begin.predict(features), epochs=epochs, watch=watch)

        epochs = self.epochs // 4
        if validating.any():
            # What is left over must be honest on those left out: the linear start for it may not have seen them.
            seen = ~validating
            blind = choose(features[seen], target[seen], architectures[seen].tolist(), forms=("linear",))
            _, epochs = learned(self.epochs, validating, blind)
        network, epochs = learned(epochs, None, start)
        return _Fitted(start=start, network=network, epochs=epochs)


def _validating(architectures: npt.NDArray[np.str_]) -> npt.NDArray[np.bool_]:
    """Every sixth architecture, drawn once and for all by a fixed seed."""
    names = np.unique(architectures)
    return np.isin(architectures, np.random.default_rng(0).permutation(names)[: len(names) // _VALIDATED])
