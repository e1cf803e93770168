"""After Driple (SIGMETRICS 2022): a graph network predicts what a training step does to device, memory and network.

One network per setting (devices, links, plan). Of each resource it predicts how long it is idle in a step, how long it
is active, and its peak; and beside these twelve the step's time. A target that a setting was not measured for, it does
not have. `transfer` tailors a network to another setting: named groups of parameters go on learning, others are frozen.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from foretell.errors import InputError, check_choice
from foretell.graph import Graph
from foretell.methods.driple.features import GROUPS, Skeleton, coarse, corpus, node_features, typed, types
from foretell.methods.driple.network import (
    BEGINNING,
    FROZEN,
    GROUPS_OF_PARAMETERS,
    Kind,
    Network,
    Shape,
    Way,
    ways_of,
)
from foretell.methods.protocol import STEP_TIME, Example, Prediction, Query

if TYPE_CHECKING:  # seconds to load, and only a fit needs it
    from torch_geometric.data import Batch

Floats = npt.NDArray[np.float64]
View = Literal["coarse", "typed"]
Labels = Literal["largest", "log"]
RESOURCES: Final = ("device", "memory_bandwidth", "network_rx", "network_tx")
_COUNTED: Final = ("idle_seconds", "active_seconds", "peak")
TWELVE: Final = tuple(f"{r}_{what}" for r in RESOURCES for what in _COUNTED)
COMPUTE: Final = tuple(f"compute_{what}" for what in _COUNTED)  # of a host's processor
TARGETS: Final = (*TWELVE, *COMPUTE, STEP_TIME)
TUNED: Final = tuple(name for name in GROUPS_OF_PARAMETERS if name not in FROZEN)
_LEAST: Final = 1e-6  # of the largest in training
_DEEPEST: Final = 1e-3  # of the largest: in logarithms, smaller labels count as this
_BEYOND: Final = 4.0  # times the smallest and the largest in training


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one who watches a fit is told after an epoch."""

    number: int
    validated: float | None  # mean square of labels on architectures left out; None: none are
    predict: Callable[[Sequence[Query]], list[Prediction]]


Watch = Callable[[Epoch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DripleSettings:
    """What is chosen. Groups, rounds, readings, rate and decay are the release's."""

    kind: Kind = "gcn"
    graph: View = "coarse"  # or op by op, directed
    labels: Labels = (
        "largest"  # divided by the largest in training; or where between smallest and largest, in logarithms
    )
    groups: int = GROUPS
    rounds: int | None = None  # None: N / 2, where N is the most nodes of a graph fitted on, at most the groups
    readings: int | None = None  # of Set2Set; None: N
    epochs: int = 200
    updates: int | None = 1000  # at most, however many epochs that is; None: no limit
    patience: int = 50  # epochs without a better validation error
    batch: int = 16  # graphs
    rate: float = 3e-3
    decay: float = 1e-6
    validated: float = 0.25  # of the training architectures; 0: the last epoch is kept
    fewest: int = 1  # examples of a setting, for it to get a network
    most_ops: int | None = None  # of a graph: gathering a larger one into groups takes too long
    trains_on: str = "cpu"  # where torch trains it; a fitted one is on the CPU
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("kind", Kind), ("graph", View), ("labels", Labels)):
            check_choice(name, getattr(self, name), get_args(choices), InputError)

    def shape(self, nodes: int, vocabulary: Sequence[str]) -> Shape:
        most = min(nodes, self.groups)
        rounds, readings = self.rounds or max(2, most // 2), self.readings or most
        count = len(vocabulary) if self.graph == "typed" else 0
        return Shape(kind=self.kind, rounds=rounds, readings=readings, types=count)


RELEASED: Final = DripleSettings(
    epochs=10_000, updates=None, patience=1_000
)  # 100 groups, N / 2 rounds, until patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One setting's network with all that belongs to it: what operators are how frequent, and what 1.0 means."""

    network: Network
    targets: tuple[str, ...]
    smallest: tuple[float, ...]  # of each target in training, where labels are logarithms
    largest: tuple[float, ...]  # of each target in training: a label of one
    mean: tuple[float, ...]  # of each feature in training
    deviation: tuple[float, ...]
    frequencies: Mapping[str, float]


@dataclass(eq=False)
class Driple:
    settings: DripleSettings = field(default_factory=DripleSettings)
    fitted_: dict[str, Fitted] = field(default_factory=dict)  # by setting

    @property
    def name(self) -> str:
        return f"after Driple ({self.settings.kind.upper()})"

    def fit(self, examples: Sequence[Example], watch: Watch | None = None) -> Self:
        """A network for every setting, from nothing. `watch` is told after every epoch."""
        self.fitted_ = {}
        for setting, own in self._by_setting(examples).items():
            if len(own) >= self.settings.fewest:
                self._fit_setting(setting, own, None, (), watch)
        return self

    def transfer(
        self, examples: Sequence[Example], source: str, tune: Sequence[str] = TUNED, watch: Watch | None = None
    ) -> Self:
        """Tailor the network of the setting `source` to the settings of these examples, which replaces theirs."""
        if source not in self.fitted_:
            raise InputError(f"no network of the setting {source!r}. There are: {', '.join(self.fitted_) or 'none'}.")
        known = self.fitted_[source]
        for setting, own in self._by_setting(examples).items():
            self._fit_setting(setting, own, known, tune, watch)
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        answers = [Prediction(values={}, why=self._why_not(query)) for query in queries]
        places_of: dict[str, list[int]] = defaultdict(list)
        for i, query in enumerate(queries):
            if not answers[i].why:
                places_of[setting_of(query)].append(i)
        for setting, places in places_of.items():
            found = self._predict(self.fitted_[setting], [queries[i] for i in places])
            for i, answer in zip(places, found, strict=True):
                answers[i] = answer
        return answers

    def _why_not(self, query: Query) -> str:
        if query.graph is None:
            return "the query has no graph"
        if not self._is_readable(query):
            return f"the graph has more than {self.settings.most_ops} ops"
        setting = setting_of(query)
        return "" if setting in self.fitted_ else f"no network of the setting {setting}: fit or transfer one"

    def _by_setting(self, examples: Sequence[Example]) -> dict[str, list[Example]]:
        found: dict[str, list[Example]] = defaultdict(list)
        for e in examples:
            if self._is_readable(e.query) and any(t in e.measured for t in TARGETS):
                found[setting_of(e.query)].append(e)
        if not found:
            raise InputError(
                f"none of {len(examples)} examples has a graph and one of Driple's targets ({', '.join(TARGETS)}). "
                "Give it some that have."
            )
        return found

    # One setting.

    def _fit_setting(
        self, setting: str, examples: Sequence[Example], known: Fitted | None, tune: Sequence[str], watch: Watch | None
    ) -> None:
        fitted = self.beginning(examples, known, tune)
        self._descend(fitted, examples, watch)
        self.fitted_[setting] = fitted

    def beginning(self, examples: Sequence[Example], known: Fitted | None = None, tune: Sequence[str] = ()) -> Fitted:
        """A network before its first update: a new one, or a copy of one that is known, where these groups learn."""
        targets = tuple(t for t in TARGETS if any(t in e.measured for e in examples))
        torch.manual_seed(self.settings.seed)
        return self._begin(examples, targets) if known is None else tailored(known, examples, targets, tune)

    def _begin(self, examples: Sequence[Example], targets: tuple[str, ...]) -> Fitted:
        skeletons = [self._skeleton(e.query.graph) for e in examples]
        frequencies = corpus(skeletons)
        features = np.concatenate([node_features(s, frequencies) for s in skeletons])
        smallest, largest = _range(examples, targets)
        return Fitted(
            network=Network(self.settings.shape(max(s.nodes for s in skeletons), list(frequencies)), len(targets)),
            targets=targets,
            smallest=smallest,
            largest=largest,
            mean=tuple(features.mean(0).tolist()),
            deviation=tuple(np.maximum(features.std(0), 1e-6).tolist()),
            frequencies=frequencies,
        )

    def _descend(self, fitted: Fitted, examples: Sequence[Example], watch: Watch | None) -> None:
        """Train what is not frozen; the weights of the best epoch stay. Frozen early rounds are gone through once."""
        settings = self.settings
        chosen, left_out = parted(examples, settings.validated)
        network, generator = fitted.network.to(settings.trains_on), np.random.default_rng(settings.seed)
        frozen = not any(p.requires_grad for name in BEGINNING for p in network.groups()[name])

        def prepared(some: Sequence[Example]) -> tuple[Batch, list[Way], Tensor | None, Tensor]:
            graphs, ways = self.batch_of(fitted, [e.query for e in some])
            with torch.no_grad():
                state = network.begin(graphs, ways) if frozen else None
            labels = torch.tensor(self.labels_of(some, fitted), dtype=torch.float32)
            return graphs, ways, state, labels.to(settings.trains_on)

        def loss_of(graphs: Batch, ways: list[Way], state: Tensor | None, labels: Tensor) -> Tensor:
            predicted = network.end(network.begin(graphs, ways) if state is None else state, graphs, ways)
            known = ~torch.isnan(labels)
            return ((predicted - labels.nan_to_num()) ** 2)[known].mean()

        order, size = [chosen[i] for i in generator.permutation(len(chosen))], settings.batch
        batches = [prepared(order[i : i + size]) for i in range(0, len(order), size)]
        exam = prepared(left_out) if left_out else None
        learning = [p for p in network.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(learning, lr=settings.rate, weight_decay=settings.decay)
        best, best_epoch, kept = float("inf"), 0, copy.deepcopy(network.state_dict())
        most = settings.epochs if settings.updates is None else -(-settings.updates // len(batches))
        for epoch in range(1, min(settings.epochs, most) + 1):
            network.train()
            for i in generator.permutation(len(batches)):
                optimizer.zero_grad()
                loss_of(*batches[i]).backward()
                optimizer.step()
            network.eval()
            with torch.no_grad():
                validated = None if exam is None else float(loss_of(*exam))
            error = -float(epoch) if validated is None else validated  # without one, the last is the best
            if error < best:
                best, best_epoch, kept = error, epoch, copy.deepcopy(network.state_dict())
            if watch is not None:
                watch(Epoch(number=epoch, validated=validated, predict=lambda queries: self._predict(fitted, queries)))
            if epoch - best_epoch >= settings.patience:
                break
        network.load_state_dict(kept)
        network.cpu()

    def _predict(self, fitted: Fitted, queries: Sequence[Query]) -> list[Prediction]:
        fitted.network.eval()
        with torch.no_grad():
            predicted = fitted.network(*self.batch_of(fitted, queries)).cpu().double().numpy()
        low, high = np.array(fitted.smallest), np.array(fitted.largest)
        if self.settings.labels == "log":  # they run away: an answer stays within some times what was seen
            values = np.clip(low * (high / low) ** predicted, low / _BEYOND, high * _BEYOND)
        else:
            values = high * predicted
        # A time or a rate is not negative, which the release's last layer does not know.
        rows = np.maximum(values, _LEAST * high).tolist()
        return [Prediction(values=dict(zip(fitted.targets, row, strict=True))) for row in rows]

    def labels_of(self, examples: Sequence[Example], fitted: Fitted) -> Floats:
        """An absent label is not a number."""
        values, low, high = _measured(examples, fitted.targets), np.array(fitted.smallest), np.array(fitted.largest)
        if self.settings.labels == "log":
            return np.asarray(np.log(np.maximum(values, low) / low) / np.log(high / low), dtype=np.float64)
        return np.asarray(values / high, dtype=np.float64)

    def _is_readable(self, query: Query) -> bool:
        return query.graph is not None and len(query.graph.ops) <= (self.settings.most_ops or len(query.graph.ops))

    def _skeleton(self, graph: Graph | None) -> Skeleton:
        assert graph is not None
        view, groups = self.settings.graph, self.settings.groups
        read = (lambda: typed(graph)) if view == "typed" else lambda: coarse(graph, groups)
        return graph.remember((Skeleton, view, groups), read)

    def batch_of(self, fitted: Fitted, queries: Sequence[Query]) -> tuple[Batch, list[Way]]:
        from torch_geometric.data import Batch, Data

        vocabulary, data = list(fitted.frequencies), []
        for skeleton in (self._skeleton(q.graph) for q in queries):
            x = (node_features(skeleton, fitted.frequencies) - np.array(fitted.mean)) / np.array(fitted.deviation)
            edges = torch.tensor(skeleton.edges, dtype=torch.long).reshape(-1, 2).T
            kinds = torch.tensor(types(skeleton, vocabulary))
            data.append(Data(x=torch.tensor(x, dtype=torch.float32), edge_index=edges, types=kinds))
        graphs, device = Batch.from_data_list(data), next(fitted.network.parameters()).device
        ways = ways_of(graphs, directed=self.settings.graph == "typed")
        return graphs.to(device), [way.to(device) for way in ways]


def quick(seed: int = 0) -> Driple:
    """As it was tuned on emulated hosts (bench/notes/methods/driple.md): small enough to be fitted to many settings."""
    chosen = DripleSettings(
        kind="gin", labels="log", groups=24, rounds=4, readings=4, epochs=40, patience=40, batch=16, validated=0.0, fewest=4,
        most_ops=4000, seed=seed,
    )  # fmt: skip
    return Driple(chosen)


def setting_of(query: Query) -> str:
    """Devices, links and plan: what Driple has a network for."""
    cluster = query.cluster
    devices = "+".join(f"{n}x{name}" for name, n in Counter(node.device.name for node in cluster.nodes).items())
    link = "" if cluster.between is None else f"@{cluster.between.bandwidth * 8 / 1e6:g}Mbit/s"
    inside = f" of {cluster.nodes[0].count}" if cluster.nodes[0].count > 1 else ""
    return f"{query.plan} on {devices}{inside}{link}"


def _measured(examples: Sequence[Example], targets: Sequence[str]) -> Floats:
    """Examples × targets, not a number where there is none."""
    return np.array([[e.measured.get(target, np.nan) for target in targets] for e in examples], dtype=np.float64)


def _range(examples: Sequence[Example], targets: Sequence[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Smallest and largest of each target: so far apart that there is a range, and not so far that it is all below."""
    values = _measured(examples, targets)
    largest = np.nanmax(values, axis=0)
    largest = np.where(largest == 0, 1.0, largest)
    smallest = np.clip(np.nanmin(values, axis=0), _DEEPEST * largest, 0.9 * largest)
    return tuple(smallest.tolist()), tuple(largest.tolist())


def parted(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Whole architectures are left out for validation; with fewer than four there are none to spare."""
    names = sorted({e.query.architecture for e in examples})
    out = set(names[:: round(1 / share)]) if share and len(names) >= 4 else set()
    seen = [e for e in examples if e.query.architecture not in out]
    return seen, [e for e in examples if e.query.architecture in out]


def tailored(known: Fitted, examples: Sequence[Example], targets: tuple[str, ...], tune: Sequence[str]) -> Fitted:
    """A copy of a network, for the targets and the scale of another setting. What it knows of operators stays."""
    network = copy.deepcopy(known.network)
    network.part()
    if targets != known.targets:
        before = {i: known.targets.index(t) for i, t in enumerate(targets) if t in known.targets}
        network.replace_targets(len(targets), before)
    network.tune(tune)
    smallest, largest = _range(examples, targets)
    return dataclasses.replace(known, network=network, targets=targets, smallest=smallest, largest=largest)
