"""After PredictDDL: a hypernetwork's embedding of the network, with workload and cluster features, into a regressor.

A request goes through the roles of the paper in turn: the task checker finds the predictor of the request's dataset type
or has it trained, the embedder reads the network, the collector the cluster, and the predictor infers. A network that was
never run needs no run.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.methods.memo import once
from foretell.methods.predictddl.features import collect, graph_features, request_features
from foretell.methods.predictddl.regressors import FORMS, Regressor, choose
from foretell.methods.protocol import Example, Prediction, Query

if TYPE_CHECKING:
    from foretell.methods.predictddl.ghn.hypernetwork import Hypernetwork

Floats = npt.NDArray[np.float64]
Trainer = Callable[[str], Sequence[Example]]
_NO_GRAPH: Final = "the source does not say which network was run"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """The inference engine of one dataset type: a regressor a target."""

    dataset: str
    regressors: Mapping[str, Regressor]

    def infer(self, features: Floats) -> dict[str, float]:
        return {target: float(np.exp(r.predict(features[None])[0])) for target, r in self.regressors.items()}

    def save(self, folder: Path) -> Path:
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{target}/{name}": np.ascontiguousarray(array)
                  for target, r in self.regressors.items() for name, array in r.state.items()}  # fmt: skip
        about = {target: [r.form, r.strength, r.validated] for target, r in self.regressors.items()}
        path = folder / _file_name(self.dataset)
        save_file(arrays, path, {"version": str(_VERSION), "dataset": self.dataset, "regressors": json.dumps(about)})
        return path

    @classmethod
    def load(cls, path: Path) -> Predictor:
        from safetensors import safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                about = file.metadata()
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            regressors = {
                target: Regressor(
                    form=form, strength=strength, validated=validated,
                    state={name.partition("/")[2]: a for name, a in arrays.items() if name.partition("/")[0] == target},
                )
                for target, (form, strength, validated) in json.loads(about["regressors"]).items()
            }  # fmt: skip
            return cls(dataset=about["dataset"], regressors=regressors)
        except Exception as error:  # whatever a stranger's bytes break
            raise InputError(f"{path} is no predictor of PredictDDL ({error}). Fit again to replace it.") from error


@dataclass(slots=True)
class TaskChecker:
    """Knows the predictors there are: those at hand, those in a folder, those that can be trained from what was measured."""

    folder: Path | None = None
    history: Trainer | None = None
    at_hand: dict[str, Predictor] = field(default_factory=dict)

    def find(self, dataset: str, train: Callable[[str, Sequence[Example]], Predictor]) -> Predictor | None:
        if dataset not in self.at_hand:
            if self.folder and (path := self.folder / _file_name(dataset)).exists():
                self.at_hand[dataset] = Predictor.load(path)
            elif self.history and (examples := self.history(dataset)):
                self.keep(train(dataset, examples))
        return self.at_hand.get(dataset)

    def keep(self, predictor: Predictor) -> None:
        self.at_hand[predictor.dataset] = predictor
        if self.folder:
            predictor.save(self.folder)


@dataclass(slots=True)
class Embedder:
    """The workload-embedding generator. A network is read once however often it is asked about."""

    weights: Path | None = None  # of the hypernetwork; None: those that are shipped
    _network: Hypernetwork | None = None

    def embed(self, graphs: Sequence[Graph]) -> list[Floats]:
        if self._network is None:
            self._network = _hypernetwork(self.weights)
        return [_embedding(graph, self._network) for graph in graphs]


@cache
def _hypernetwork(weights: Path | None) -> Hypernetwork:
    from foretell.methods.predictddl.ghn.hypernetwork import TRAINED, load

    return load(weights or TRAINED)


@once
def _embedding(graph: Graph, network: Hypernetwork) -> Floats:
    import torch

    from foretell.methods.predictddl.ghn.vocabulary import read

    with torch.no_grad():
        found: Floats = network.encoder.embed([read(graph)])[0].double().numpy()
    return found


class PredictDDL:
    """The controller. With a `folder` predictors are kept there, one a dataset type, and found again by another one.

    `history` gives the measured examples of a dataset type; a request of a type nobody trained for starts training on them.
    """

    def __init__(self, *, folder: Path | None = None, history: Trainer | None = None, forms: Sequence[str] = FORMS,
                 weights: Path | None = None) -> None:  # fmt: skip
        self.folder = folder
        self.history = history
        self.forms = tuple(forms)
        self.embedder = Embedder(weights)
        self.checker_ = TaskChecker(folder, history)

    @property
    def name(self) -> str:
        return "PredictDDL"

    def fit(self, examples: Sequence[Example]) -> Self:
        """One predictor for each dataset type among the examples."""
        self.checker_ = TaskChecker(self.folder, self.history)
        by_type: dict[str, list[Example]] = defaultdict(list)
        for example in examples:
            if example.query.graph is not None:
                by_type[example.query.dataset].append(example)
        if not by_type:
            raise InputError(f"PredictDDL reads graphs, and none of {len(examples)} examples has one.")
        for dataset, those in by_type.items():
            self.checker_.keep(self._train(dataset, those))
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        with_graphs = [query for query in queries if query.graph is not None]
        features = iter(self._features(with_graphs))
        return [
            Prediction(values={}, why=_NO_GRAPH) if query.graph is None else self._answer(query, next(features))
            for query in queries
        ]

    def _answer(self, query: Query, features: Floats) -> Prediction:
        predictor = self.checker_.find(query.dataset, self._train)
        if predictor is None:
            return Prediction(values={}, why=f"no predictor for data of type {query.dataset!r} was trained")
        return Prediction(values=predictor.infer(features))

    def _features(self, queries: Sequence[Query]) -> list[Floats]:
        graphs = [query.graph for query in queries if query.graph is not None]
        return [
            np.array([*embedding, *graph_features(graph), *request_features(query), *collect(query, graph)])
            for query, graph, embedding in zip(queries, graphs, self.embedder.embed(graphs), strict=True)
        ]

    def _train(self, dataset: str, examples: Sequence[Example]) -> Predictor:
        features = np.stack(self._features([e.query for e in examples]))
        targets = sorted({target for e in examples for target in e.measured})
        regressors = {}
        for target in targets:
            rows = [i for i, e in enumerate(examples) if e.measured.get(target, 0.0) > 0]
            if rows:
                values = np.log([examples[i].measured[target] for i in rows])
                groups = [examples[i].query.architecture for i in rows]
                regressors[target] = choose(features[rows], values, groups, self.forms)
        return Predictor(dataset=dataset, regressors=regressors)


def _file_name(dataset: str) -> str:
    """A name for any type, also one with letters that files cannot have."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in dataset) or "any"
    return f"{plain}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}.safetensors"
