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
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, get_args

import numpy as np

from foretell.cost.files import load_arrays, save_arrays
from foretell.errors import InputError, check_choice
from foretell.graph import Graph
from foretell.methods.graphs import answers
from foretell.methods.predictddl.features import NO_GRAPH, Floats, graphs_of, table
from foretell.methods.predictddl.regressors import FORMS, Regressor, choose
from foretell.methods.protocol import Example, Prediction, Query

if TYPE_CHECKING:
    from foretell.methods.predictddl.ghn.encoder import Encoder, Pooling

Reads = Literal["both", "embedding", "work"]
Trainer = Callable[[str], Sequence[Example]]
_VERSION: Final = 2  # 1 had no numbers of the features that varied


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """The inference engine of one dataset type: a regressor per target."""

    dataset: str
    regressors: Mapping[str, Regressor]

    def infer(self, features: Floats) -> dict[str, float]:
        return {target: float(np.exp(r.predict(features[None])[0])) for target, r in self.regressors.items()}

    def save(self, folder: Path) -> Path:
        arrays = {f"{target}/{name}": a for target, r in self.regressors.items() for name, a in r.state.items()}
        about = {target: [r.form, r.strength, r.validated] for target, r in self.regressors.items()}
        path = folder / _file_name(self.dataset)
        save_arrays(path, arrays, version=_VERSION, dataset=self.dataset, regressors=json.dumps(about))
        return path

    @classmethod
    def load(cls, path: Path) -> Predictor:
        try:
            arrays, about = load_arrays(path, version=_VERSION)
            regressors = {}
            for target, (form, strength, validated) in json.loads(about["regressors"]).items():
                own = f"{target}/"
                state = {name.removeprefix(own): array for name, array in arrays.items() if name.startswith(own)}
                if "kept" not in state:
                    raise ValueError("it is of an older format")
                regressors[target] = Regressor(form=form, strength=strength, state=state, validated=validated)
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
    pooling: Pooling = "mean"
    trained: bool = True  # False: weights as training begins, whatever `weights` says
    _encoder: Encoder | None = None

    def embed(self, graphs: Sequence[Graph]) -> list[Floats]:
        encoder = self._encoder or (_encoder(self.weights) if self.trained else _untrained())
        key = (encoder, self.pooling)
        return [graph.remember(key, partial(_embedding, graph, *key)) for graph in graphs]


@cache
def _encoder(weights: Path | None) -> Encoder:
    from foretell.methods.predictddl.ghn.encoder import TRAINED, load

    return load(weights or TRAINED)


@cache
def _untrained() -> Encoder:
    import torch

    from foretell.methods.predictddl.ghn.encoder import Encoder

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder().eval()


def _embedding(graph: Graph, encoder: Encoder, pooling: Pooling) -> Floats:
    import torch

    from foretell.methods.predictddl.ghn.vocabulary import read

    with torch.no_grad():
        found: Floats = encoder.embed([read(graph)], pooling=pooling)[0].double().numpy()
    return found


class PredictDDL:
    """The controller. With a `folder` predictors are kept there, one per dataset type, and found again by another one.

    `history` gives the measured examples of a dataset type; a request of a type nobody trained for starts training on them.
    `reads` says what a regressor is given beside precision, batch, plan and cluster: the embedding and the network's work
    (operations, bytes, ops), or one of them alone. `pooled` has one predictor for all types of data.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        history: Trainer | None = None,
        forms: Sequence[str] = FORMS,
        weights: Path | None = None,
        reads: Reads = "both",
        pooling: Pooling = "mean",
        trained: bool = True,
        pooled: bool = False,
    ) -> None:
        check_choice("reads", reads, get_args(Reads), InputError)
        check_choice("pooling", pooling, ("mean", "sum", "log-count"), InputError)
        self.folder = folder
        self.history = history
        self.forms = tuple(forms)
        self.reads: Reads = reads
        self.pooled = pooled
        self.embedder = Embedder(weights, pooling, trained)
        self.networks_: dict[str, Floats] = {}  # architecture → its embedding, of those it was fitted on
        self.checker_ = TaskChecker(folder, history)

    @property
    def name(self) -> str:
        inputs = {"both": "", "embedding": ", embedding only", "work": ", no embedding"}[self.reads]
        random = "" if self.embedder.trained else ", random weights"
        pooling = "" if self.embedder.pooling == "mean" else f", {self.embedder.pooling} pooling"
        return f"PredictDDL{inputs}{random}{pooling}{', all data pooled' if self.pooled else ''}"

    def nearest(self, query: Query, count: int = 3) -> list[tuple[str, float]]:
        """The networks it was fitted on that look most alike, by the cosine of embeddings: the paper's own check."""
        if query.graph is None or not self.networks_:
            return []
        [own] = self.embedder.embed([query.graph])
        alike = {name: cosine(own, other) for name, other in self.networks_.items()}
        return sorted(alike.items(), key=lambda pair: -pair[1])[:count]

    def fit(self, examples: Sequence[Example]) -> Self:
        """One predictor for each dataset type among the examples."""
        self.checker_ = TaskChecker(self.folder, self.history)
        by_type: dict[str, list[Example]] = defaultdict(list)
        for example in examples:
            if example.query.graph is not None:
                by_type[self._type(example.query)].append(example)
        if not by_type:
            raise InputError(f"PredictDDL reads graphs, and none of {len(examples)} examples has one.")
        for dataset, those in by_type.items():
            self.checker_.keep(self._train(dataset, those))
        first = {e.query.architecture: e.query for those in by_type.values() for e in reversed(those)}
        queries = list(first.values()) if self.reads != "work" else []
        self.networks_ = dict(zip(first, self.embedder.embed(graphs_of(queries)), strict=False))
        return self

    def _type(self, query: Query) -> str:
        return "" if self.pooled else query.dataset

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return answers(queries, lambda known: map(self._answer, known, self._features(known)), NO_GRAPH)

    def _answer(self, query: Query, features: Floats) -> Prediction:
        predictor = self.checker_.find(self._type(query), self._train)
        if predictor is None:
            return Prediction(values={}, why=f"no predictor for data of type {query.dataset!r} was trained")
        return Prediction(values=predictor.infer(features))

    def _features(self, queries: Sequence[Query]) -> Floats:
        around = table(queries, work=self.reads != "embedding")
        return (
            around if self.reads == "work" else np.hstack([np.stack(self.embedder.embed(graphs_of(queries))), around])
        )

    def _train(self, dataset: str, examples: Sequence[Example]) -> Predictor:
        features = self._features([e.query for e in examples])
        regressors = {}
        for target in sorted({target for e in examples for target in e.measured}):
            rows = [i for i, e in enumerate(examples) if e.measured.get(target, 0.0) > 0]
            if rows:
                values = np.log([examples[i].measured[target] for i in rows])
                groups = [examples[i].query.architecture for i in rows]
                regressors[target] = choose(features[rows], values, groups, self.forms)
        return Predictor(dataset=dataset, regressors=regressors)


def cosine(one: Floats, other: Floats) -> float:
    return float(one @ other / max(float(np.linalg.norm(one) * np.linalg.norm(other)), 1e-12))


def _file_name(dataset: str) -> str:
    """A name for any type, also one with letters that files cannot have."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in dataset) or "any"
    return f"{plain}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}.safetensors"
