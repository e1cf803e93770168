"""A language model's step in parts: what one layer takes a micro-batch, and what all else does.

A step is linear in its layers, so two shallow models forecast give any depth, and one set of parts serves every plan
that shares micro-batch and tensor parallelism. A trainer's own cut into pipeline stages is then put together here,
since a Plan cannot say it: the cut of Foretell's own plans balances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretell.cost.collectives import collective_seconds
from foretell.hardware import Cluster
from foretell.learn.adapt.factors import SOFT, Answer, Refusal, ask
from foretell.plan import Plan
from foretell.program import Collective, Group
from foretell.units import Bytes, Seconds
from foretell_bench.sources.cases import Models

_DEPTHS = (2, 4)
_MICRO_STEPS = (1, 2)


def side_by_side(device: Seconds, host: Seconds) -> Seconds:
    return float((device**SOFT + host**SOFT) ** (1 / SOFT))


@dataclass(frozen=True, slots=True)
class Work:
    """Of one micro-batch on one rank."""

    device: Seconds
    host: Seconds
    waiting: Seconds  # for communication that does not hide

    def __sub__(self, other: Work) -> Work:
        return Work(self.device - other.device, self.host - other.host, self.waiting - other.waiting)

    def scaled(self, factor: float) -> Work:
        return Work(self.device * factor, self.host * factor, self.waiting * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    layer: Work
    rest: Work  # embedding, head, loss
    update_of_layer: Seconds  # on the device, once a step
    update_of_rest: Seconds


@dataclass(frozen=True, slots=True)
class Stage:
    """What a pipeline stage holds."""

    layers: int
    embedding: bool = False
    head: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """What a trainer's software makes of parts: factors, and what a layer pays beside them."""

    device: float = 1.0
    host: float = 1.0
    waiting: float = 1.0
    layer_host: Seconds = 0.0  # more time of the host for every layer
    layer_waiting: Seconds = 0.0  # more communication in every layer

    def micro_step(self, parts: Parts, stage: Stage) -> Seconds:
        """Device and communication in turn, the host beside them."""
        layers, head = stage.layers, float(stage.head)
        layer, rest = parts.layer, parts.rest
        device = self.device * (layers * layer.device + head * rest.device)
        waiting = self.waiting * (layers * layer.waiting + head * rest.waiting) + layers * self.layer_waiting
        host = self.host * (layers * layer.host + head * rest.host) + layers * self.layer_host
        return side_by_side(device + waiting, host)


def one_forward_one_backward(pace: Pace, parts: Parts, stages: Sequence[Stage], micro_steps: int) -> Seconds:
    """The slowest stage sets the pace; the pipeline fills and drains once."""
    slowest = max(pace.micro_step(parts, stage) for stage in dict.fromkeys(stages))
    return (micro_steps + len(stages) - 1) * slowest


def update_seconds(parts: Parts, stages: Sequence[Stage]) -> Seconds:
    """Of the slowest stage; rest is one embedding's worth."""
    return max(s.layers * parts.update_of_layer + (s.embedding or s.head) * parts.update_of_rest for s in stages)


def sync_seconds(cluster: Cluster, plan: Plan, gradients: Bytes, weights: Bytes) -> Seconds:
    """Gradients over replicas: summed everywhere, or with ZeRO each replica its share, and new weights gathered."""
    if plan.dp == 1:
        return 0.0
    group = Group(size=plan.dp, stride=plan.tp, count=plan.tp * plan.pp)

    def taken(kind: str, nbytes: Bytes) -> Seconds:
        whole = Collective(kind=kind, nbytes=nbytes, group=group, name="gradients", starts_after=0, waited_for_by=1)
        return collective_seconds(whole, cluster)

    if not plan.zero:
        return taken("all-reduce", gradients)
    return taken("reduce-scatter", gradients) + taken("all-gather", weights)


class Layers:
    """Parts of models, each asked once; `cluster` is one tensor-parallel group of devices."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known: dict[tuple[str, ...], Parts | Refusal] = {}

    def parts(
        self, config: Mapping[str, Any], settings: Mapping[str, str], micro_batch: int, plan: Plan, cluster: str
    ) -> Parts | Refusal:
        """`plan` says how a layer is split: tensor parallelism, with sequences or without."""
        key = (repr(sorted(config.items())), repr(sorted(settings.items())), str(micro_batch), str(plan), cluster)
        if key not in self._known:
            self._known[key] = self._ask(config, settings, micro_batch, plan, cluster)
        return self._known[key]

    def _ask(
        self, config: Mapping[str, Any], settings: Mapping[str, str], micro_batch: int, plan: Plan, cluster: str
    ) -> Parts | Refusal:
        found: list[list[Work]] = []
        devices = Cluster.parse(cluster)
        for depth in _DEPTHS:
            graph = self._models.graph({**config, "num_hidden_layers": depth}, settings, micro_batch)
            answers = []
            for micro_steps in _MICRO_STEPS:
                answer = ask(graph, devices, dataclasses.replace(plan, grad_accumulation=micro_steps))
                if isinstance(answer, Refusal):
                    return answer
                answers.append(_work(answer))
            once, twice = answers
            found.append([twice - once, once - (twice - once)])
        (shallow, shallow_update), (deep, deep_update) = found
        more = _DEPTHS[1] - _DEPTHS[0]
        layer, update = (deep - shallow).scaled(1 / more), (deep_update - shallow_update).scaled(1 / more)
        return Parts(
            layer=layer, rest=shallow - layer.scaled(_DEPTHS[0]), update_of_layer=max(update.device, 0.0),
            update_of_rest=max((shallow_update - update.scaled(_DEPTHS[0])).device, 0.0),
        )  # fmt: skip


def _work(answer: Answer) -> Work:
    return Work(answer.device, answer.host, answer.waiting)
