"""After Driple (SIGMETRICS 2022): a graph network says what a training step does to device, memory and network.

One network a setting (devices, links, plan). Of each resource it says how long it is idle in a step, how long it is
active, and its peak; and beside these twelve the step's time. A target that a setting was not measured for, it does not
have. `transfer` tailors a network to another setting: named groups of parameters go on learning, the others are frozen.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.methods.driple.graph import GROUPS, Skeleton, coarse, corpus, features, typed, types
from foretell.methods.driple.network import FROZEN, GROUPS_OF_PARAMETERS, Batch, Network, Shape, Way
from foretell.methods.memo import once
from foretell.methods.protocol import STEP_TIME, Example, Prediction, Query
from foretell.units import Seconds

RESOURCES: Final = ("device", "memory_bandwidth", "network_rx", "network_tx")
TWELVE: Final = tuple(f"{r}_{what}" for r in RESOURCES for what in ("idle_seconds", "active_seconds", "peak"))
COMPUTE: Final = tuple(
    f"compute_{what}" for what in ("idle_seconds", "active_seconds", "peak")
)  # of a host's processor
TARGETS: Final = (*TWELVE, *COMPUTE, STEP_TIME)
_LEAST: Final = 1e-6  # of the largest in training
_DEEPEST: Final = 1e-3  # of the largest: in logarithms, smaller labels count as this
_BEYOND: Final = 4.0  # times the smallest and the largest in training
LABELS: Final = ("largest", "log")
TUNED: Final = tuple(name for name in GROUPS_OF_PARAMETERS if name not in FROZEN)
Watch = Callable[[Seconds, Callable[[Sequence[Query]], list[Prediction]]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DripleSettings:
    """What is chosen. Groups, rounds, readings, rate and decay are the release's."""

    kind: str = "gcn"
    graph: str = "coarse"  # or "typed": op by op, directed
    labels: str = (
        "largest"  # divided by the largest in training; "log": where between smallest and largest, in logarithms
    )
    groups: int = GROUPS
    rounds: int | None = None  # None: N / 2, where N is the most nodes of a graph fitted on, at most the groups
    readings: int | None = None  # of Set2Set; None: N
    epochs: int = 200
    updates: int = 1000  # at most, however many epochs that is
    patience: int = 50  # epochs without a better validation error
    batch: int = 16  # graphs
    rate: float = 3e-3
    decay: float = 1e-6
    validated: float = 0.25  # of the training architectures; 0: the last epoch is kept
    fewest: int = 1  # examples of a setting, for it to get a network
    most_ops: int | None = None  # of a graph: gathering a larger one into groups takes too long
    seed: int = 0

    def __post_init__(self) -> None:
        if self.graph not in ("coarse", "typed"):
            raise InputError(f"graph={self.graph!r} is not possible. Allowed: coarse, typed.")
        if self.labels not in LABELS:
            raise InputError(f"labels={self.labels!r} is not possible. Allowed: {', '.join(LABELS)}.")

    def shape(self, nodes: int, vocabulary: Sequence[str]) -> Shape:
        most = min(nodes, self.groups)
        return Shape(
            kind=self.kind, rounds=self.rounds or max(2, most // 2), readings=self.readings or most,
            types=len(vocabulary) if self.graph == "typed" else 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One setting's network with all that belongs to it: what operators are how frequent, and what 1.0 means."""

    network: Network
    targets: tuple[str, ...]
    smallest: tuple[float, ...]  # of each target in training, where labels are logarithms
    largest: tuple[float, ...]  # of each target in training: a label of one
    middle: tuple[float, ...]  # of each feature: mean and spread in training
    spread: tuple[float, ...]
    frequencies: Mapping[str, float]
    seconds: Seconds = 0.0  # of a processor, that fitting took: on a busy machine a clock says little
    epochs: int = 0  # until the best


@dataclass(eq=False)
class Driple:
    settings: DripleSettings = field(default_factory=DripleSettings)
    fitted_: dict[str, Fitted] = field(default_factory=dict)  # by setting

    @property
    def name(self) -> str:
        return f"after Driple ({self.settings.kind.upper()})"

    def fit(self, examples: Sequence[Example], watch: Watch | None = None) -> Self:
        """A network for every setting, from nothing. `watch` is told seconds of fitting and how to ask, every epoch."""
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
        answers: list[Prediction | None] = [None] * len(queries)
        asked: dict[str, list[int]] = {}
        for i, query in enumerate(queries):
            setting = setting_of(query)
            if query.graph is None:
                answers[i] = Prediction(values={}, why="the query has no graph")
            elif not self._is_readable(query):
                answers[i] = Prediction(values={}, why=f"the graph has more than {self.settings.most_ops} ops")
            elif setting not in self.fitted_:
                answers[i] = Prediction(values={}, why=f"no network of the setting {setting}: fit or transfer one")
            else:
                asked.setdefault(setting, []).append(i)
        for setting, places in asked.items():
            for i, answer in zip(places, self._say(self.fitted_[setting], [queries[i] for i in places]), strict=True):
                answers[i] = answer
        return [answer for answer in answers if answer is not None]

    def _by_setting(self, examples: Sequence[Example]) -> dict[str, list[Example]]:
        found: dict[str, list[Example]] = {}
        for e in examples:
            if self._is_readable(e.query) and any(t in e.measured for t in TARGETS):
                found.setdefault(setting_of(e.query), []).append(e)
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
        targets = tuple(t for t in TARGETS if any(t in e.measured for e in examples))
        begin = time.process_time()
        torch.manual_seed(self.settings.seed)
        fitted = self._begin(examples, targets) if known is None else _tailored(known, examples, targets, tune)
        spent = 0.0

        def tell(seconds: Seconds) -> None:
            nonlocal spent
            before = time.process_time()
            if watch is not None:
                watch(seconds - spent, lambda queries: self._say(fitted, queries))
            spent += time.process_time() - before

        epochs = self._descend(fitted, examples, tell)
        seconds = time.process_time() - begin - spent
        self.fitted_[setting] = dataclasses.replace(fitted, seconds=seconds, epochs=epochs)

    def _begin(self, examples: Sequence[Example], targets: tuple[str, ...]) -> Fitted:
        skeletons = [self._skeleton(e.query.graph) for e in examples]
        frequencies = corpus(skeletons)
        told = np.concatenate([features(s, frequencies) for s in skeletons])
        return Fitted(
            network=Network(self.settings.shape(max(s.nodes for s in skeletons), list(frequencies)), len(targets)),
            targets=targets,
            smallest=_smallest(examples, targets),
            largest=_largest(examples, targets),
            middle=tuple(told.mean(0).tolist()),
            spread=tuple(np.maximum(told.std(0), 1e-6).tolist()),
            frequencies=frequencies,
        )

    def _descend(self, fitted: Fitted, examples: Sequence[Example], tell: Callable[[Seconds], None]) -> int:
        """Train what is not frozen; the weights of the best epoch stay. Frozen early rounds are gone through once."""
        begin = time.process_time()
        chosen, held = _parted(examples, self.settings.validated)
        network, generator = fitted.network, np.random.default_rng(self.settings.seed)
        frozen = not any(p.requires_grad for name in FROZEN for p in network.groups()[name])

        def lesson(some: Sequence[Example]) -> tuple[Batch, Tensor | None, Tensor]:
            batch = self._batch(fitted, [e.query for e in some])
            with torch.no_grad():
                state = network.begin(batch) if frozen else None
            return batch, state, torch.tensor([self._labels(e, fitted) for e in some], dtype=torch.float32)

        def loss_of(batch: Batch, state: Tensor | None, labels: Tensor) -> Tensor:
            told = network.end(network.begin(batch) if state is None else state, batch)
            known = ~torch.isnan(labels)
            return ((told - labels.nan_to_num()) ** 2)[known].mean()

        order, size = [chosen[i] for i in generator.permutation(len(chosen))], self.settings.batch
        lessons = [lesson(order[i : i + size]) for i in range(0, len(order), size)]
        exam = lesson(held) if held else None
        optimizer = torch.optim.Adam(network.trained(), lr=self.settings.rate, weight_decay=self.settings.decay)
        best, best_epoch, kept = float("inf"), 0, copy.deepcopy(network.state_dict())
        for epoch in range(1, min(self.settings.epochs, -(-self.settings.updates // len(lessons))) + 1):
            network.train()
            for i in generator.permutation(len(lessons)):
                optimizer.zero_grad()
                loss = loss_of(*lessons[i])
                loss.backward()
                optimizer.step()
            network.eval()
            with torch.no_grad():
                error = -float(epoch) if exam is None else float(loss_of(*exam))  # without one, the last is the best
            if error < best:
                best, best_epoch, kept = error, epoch, copy.deepcopy(network.state_dict())
            tell(time.process_time() - begin)
            if epoch - best_epoch >= self.settings.patience:
                break
        network.load_state_dict(kept)
        return best_epoch

    def _say(self, fitted: Fitted, queries: Sequence[Query]) -> list[Prediction]:
        fitted.network.eval()
        with torch.no_grad():
            told = fitted.network(self._batch(fitted, queries)).double().numpy()
        low, high = np.array(fitted.smallest), np.array(fitted.largest)
        in_logs = self.settings.labels == "log"  # which run away: an answer stays within some times what was seen
        values = np.clip(low * (high / low) ** told, low / _BEYOND, high * _BEYOND) if in_logs else high * told
        # A time or a rate is not negative, which the release's last layer does not know.
        return [
            Prediction(values=dict(zip(fitted.targets, np.maximum(row, _LEAST * high).tolist(), strict=True)))
            for row in values
        ]

    def _labels(self, example: Example, fitted: Fitted) -> list[float]:
        found = []
        for target, low, high in zip(fitted.targets, fitted.smallest, fitted.largest, strict=True):
            value = example.measured.get(target, float("nan"))
            in_logs = self.settings.labels == "log"
            # An absent label is not a number, and stays none.
            found.append(math.log(max(value, low) / low) / math.log(high / low) if in_logs else value / high)
        return found

    def _is_readable(self, query: Query) -> bool:
        return query.graph is not None and len(query.graph.ops) <= (self.settings.most_ops or len(query.graph.ops))

    def _skeleton(self, graph: Graph | None) -> Skeleton:
        assert graph is not None
        return _read(graph, self.settings.graph, self.settings.groups)

    def _batch(self, fitted: Fitted, queries: Sequence[Query]) -> Batch:
        skeletons = [self._skeleton(q.graph) for q in queries]
        told = np.concatenate([features(s, fitted.frequencies) for s in skeletons])
        told = (told - np.array(fitted.middle)) / np.array(fitted.spread)
        starts = np.cumsum([0, *(s.nodes for s in skeletons)])
        pairs = [[a + start, b + start] for s, start in zip(skeletons, starts, strict=False) for a, b in s.edges]
        edges = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        nodes = int(starts[-1])
        back = edges.flip(0)
        apart = [edges, back] if self.settings.graph == "typed" else [torch.cat([edges, back], dim=1)]
        vocabulary = list(fitted.frequencies)
        return Batch(
            x=torch.tensor(told, dtype=torch.float32),
            ways=tuple(Way.of(way, nodes) for way in apart),
            graph=torch.repeat_interleave(torch.arange(len(queries)), torch.tensor([s.nodes for s in skeletons])),
            types=torch.tensor([t for s in skeletons for t in types(s, vocabulary)]),
            size=len(queries),
        )


@once
def _read(graph: Graph, how: str, groups: int) -> Skeleton:
    return typed(graph) if how == "typed" else coarse(graph, groups)


def quick() -> Driple:
    """As it was tuned on hosts in a box (docs/accuracy/methods/driple.md): small enough to be fitted to many settings."""
    chosen = DripleSettings(
        kind="gin", labels="log", groups=24, rounds=4, readings=4, epochs=40, patience=40, batch=16, validated=0.0, fewest=4,
        most_ops=4000,
    )  # fmt: skip
    return Driple(chosen)


def setting_of(query: Query) -> str:
    """Devices, links and plan: what Driple has a network for."""
    cluster = query.cluster
    devices = "+".join(f"{n}x{name}" for name, n in _counted([node.device.name for node in cluster.nodes]).items())
    link = "" if cluster.between is None else f"@{cluster.between.bandwidth * 8 / 1e6:g}Mbit/s"
    inside = f" of {cluster.nodes[0].count}" if cluster.nodes[0].count > 1 else ""
    return f"{query.plan} on {devices}{inside}{link}"


def _counted(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _largest(examples: Sequence[Example], targets: Sequence[str]) -> tuple[float, ...]:
    return tuple(max((e.measured[t] for e in examples if t in e.measured), default=0.0) or 1.0 for t in targets)


def _smallest(examples: Sequence[Example], targets: Sequence[str]) -> tuple[float, ...]:
    """Below the largest, so that there is a range; not so far below that the smallest labels are all of it."""
    pairs = zip(targets, _largest(examples, targets), strict=True)
    return tuple(
        min(max(min(e.measured[t] for e in examples if t in e.measured), _DEEPEST * high), 0.9 * high)
        for t, high in pairs
    )


def _parted(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Whole architectures are held back for validation; with fewer than four there are none to spare."""
    names = sorted({e.query.architecture for e in examples})
    held = set(names[:: round(1 / share)]) if share and len(names) >= 4 else set()
    return (
        [e for e in examples if e.query.architecture not in held],
        [e for e in examples if e.query.architecture in held],
    )


def _tailored(known: Fitted, examples: Sequence[Example], targets: tuple[str, ...], tune: Sequence[str]) -> Fitted:
    """A copy of a network, for the targets and the scale of another setting. What it knows of operators stays."""
    network = copy.deepcopy(known.network)
    network.part()
    if targets != known.targets:
        network.say(len(targets), {i: known.targets.index(t) for i, t in enumerate(targets) if t in known.targets})
    network.tune(tune)
    return dataclasses.replace(known, network=network, targets=targets, smallest=_smallest(examples, targets),
                               largest=_largest(examples, targets))  # fmt: skip
