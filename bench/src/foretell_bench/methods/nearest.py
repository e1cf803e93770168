"""The check that PredictDDL's paper describes: the nearest network by the cosine of embeddings, and what that one took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np

from foretell.errors import InputError
from foretell.methods.graphs import answers, readable
from foretell.methods.predictddl.features import NO_GRAPH, table
from foretell.methods.predictddl.method import Embedder, cosine
from foretell.methods.protocol import Example, Prediction, Query


class NearestNetwork:
    """Of the runs of the most similar network, the one in the most similar surroundings; its times are the answer."""

    name: Final = "nearest network"

    def __init__(self) -> None:
        self.embedder = Embedder()
        self.examples_: list[Example] = []

    def fit(self, examples: Sequence[Example]) -> Self:
        self.examples_ = [e for e in readable(examples, self.name) if any(value > 0 for value in e.measured.values())]
        if not self.examples_:
            raise InputError("nothing that was measured is more than zero.")
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return answers(queries, lambda some: map(self._answer, some), NO_GRAPH)

    def _answer(self, query: Query) -> Prediction:
        [own] = self.embedder.embed([g for g in [query.graph] if g is not None])
        [around] = table([query])
        known = self.embedder.embed([e.query.graph for e in self.examples_ if e.query.graph is not None])
        others = table([e.query for e in self.examples_])
        spread = np.maximum(others.std(axis=0), 1e-9)
        far = (np.abs(others - around) / spread).sum(axis=1)
        best = min(range(len(known)), key=lambda i: (-round(cosine(own, known[i]), 6), far[i], i))
        return Prediction(values={t: v for t, v in self.examples_[best].measured.items() if v > 0})
