"""The candidates of a search: for each cluster the plans that divide it, the batch and the model; the others are counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Final, NamedTuple

from foretell.errors import InputError, PlanError
from foretell.forecasting.memory import share_that_fits
from foretell.hardware import Cluster, Term
from foretell.parallel import cuts_of_compiled
from foretell.parallel.blocks import blocks
from foretell.parallel.offload import check_offload
from foretell.planner.space import Space
from foretell.planner.steps import Steps, Variant
from foretell.plans import Plan

SURE: Final = 0.9  # probability of fitting from which memory is no concern
LONG: Final = 16_384  # tokens of a sequence from which context parallelism is tried
_MAX_BATCH: Final = 64  # of a micro-step, where no global batch bounds it
_GROUPED: Final = "aten._grouped_mm"


class Candidate(NamedTuple):
    """A plan on a cluster, with one variant of the step at one batch."""

    cluster: int
    variant: int
    batch: int  # of a micro-step
    plan: Plan

    @property
    def work(self) -> int:
        """What a step processes, by which steps are comparable."""
        return self.batch * self.plan.dp * (self.plan.grad_accumulation or 1)


@dataclass(slots=True, kw_only=True)
class Candidates:
    """The candidates that divide, and how many others there were and why not."""

    clusters: tuple[Cluster, ...]
    terms: tuple[Term, ...]  # on which each is rented
    found: list[Candidate]
    left_out: Counter[str]

    @property
    def considered(self) -> int:
        return len(self.found) + self.left_out.total()


def candidates_of(space: Space, steps: Steps, on: Cluster | None = None, plan: Plan | str | None = None) -> Candidates:
    """Every way to divide the clusters that `plan` leaves open, or the plans that are given, on their one cluster."""
    if space.among is not None:
        return _given(space, on, steps)
    rented = space.on_terms(on)
    if not rented:
        raise InputError(f"no cluster has at most {space.max_devices} devices. Allow more with max_devices.")
    terms, clusters = tuple(term for term, _ in rented), tuple(cluster for _, cluster in rented)
    every = Candidates(clusters=clusters, terms=terms, found=[], left_out=Counter())
    fixed = {**own_settings(steps), **decided(plan)}
    for v, variant in enumerate(steps.variants):
        shape = _Shape(variant)
        for c, cluster in enumerate(clusters):
            for batch, each in _plans(space, shape, cluster, fixed, every.left_out):
                every.found.append(Candidate(c, v, batch, each))
    return every


def _given(space: Space, on: Cluster | None, steps: Steps) -> Candidates:
    """Plans that are given, with their micro-batches, on one cluster."""
    if on is None:
        raise InputError("among has plans for one cluster, and on is not given. Say on which cluster.")
    every = Candidates(clusters=(on,), terms=(space.term,), found=[], left_out=Counter())
    for written, batch in space.among or ():
        plan = Plan.parse(written) if isinstance(written, str) else written
        plan.check_devices(on.devices)
        for v, variant in enumerate(steps.variants):
            if not variant.free and batch not in variant.captured:
                raise InputError(
                    f"the batch of {steps.name!r} is fixed at {', '.join(map(str, variant.captured))}, got {batch}."
                )
            every.found.append(Candidate(0, v, batch, plan))
    if not every.found:
        raise InputError("among has no plan to choose from. Give at least one.")
    return every


class _Shape:
    """What of a step decides which plans divide it."""

    def __init__(self, variant: Variant) -> None:
        graph = variant.graph
        self.variant = variant
        self.blocks = len(blocks(graph))
        self.trains = graph.training
        self.recomputes = self.trains and self.blocks > 1
        self.sequence = graph.tokens // graph.samples if graph.tokens and graph.samples else 0
        self.experts = any(op.signature.name == _GROUPED for op in graph.ops)
        self.accumulation = graph.grad_accumulation

    def batches(self, space: Space) -> list[int]:
        if not self.variant.free:
            return list(self.variant.captured)
        if space.batches is not None:
            return list(space.batches)
        most = space.global_batch or _MAX_BATCH
        return _doubling(most)


def _plans(
    space: Space, shape: _Shape, cluster: Cluster, fixed: Mapping[str, Any], left_out: Counter[str]
) -> Iterator[tuple[int, Plan]]:
    devices, inside = cluster.devices, min(node.count for node in cluster.kinds)
    options: dict[str, Sequence[Any]] = {
        "tp": _doubling(inside),
        "cp": _doubling(inside) if shape.sequence >= LONG else (1,),
        "pp": _doubling(min(devices, max(shape.blocks, 1))) if shape.trains else (1,),
    }
    for tp, cp, pp in _combinations(options, fixed):
        if devices % (tp * cp * pp):
            left_out["tp × cp × pp does not divide the devices"] += 1
            continue
        dp = devices // (tp * cp * pp)
        if fixed.get("dp", dp) != dp:
            left_out["dp is decided otherwise"] += 1
            continue
        yield from _settled(space, shape, {"dp": dp, "tp": tp, "cp": cp, "pp": pp}, fixed, left_out)


def _settled(
    space: Space, shape: _Shape, degrees: Mapping[str, int], fixed: Mapping[str, Any], left_out: Counter[str]
) -> Iterator[tuple[int, Plan]]:
    """The plans with these degrees."""
    replicas, pp = degrees["dp"] * degrees["cp"], degrees["pp"]
    options: dict[str, Sequence[Any]] = {
        "zero": (0,) if replicas == 1 or not shape.trains else (0, 1, 3) if pp > 1 else (0, 1, 2, 3),
        "checkpointing": _recomputing(space, math.prod(degrees.values())) if shape.recomputes else ("none",),
        "ep": [e for e in _doubling(replicas) if e <= 8] if shape.experts else (1,),
        "offload": ("none", "optimizer", "parameters") if "offload" in space.search and shape.trains else ("none",),
    }
    for batch in shape.batches(space):
        micro_steps = _micro_steps(space, shape, degrees["dp"], batch)
        if micro_steps is None:
            left_out["dp × micro-batch does not divide the global batch"] += 1
            continue
        usual = {**degrees, "sequence_parallel": degrees["tp"] > 1, "grad_accumulation": micro_steps}
        for values in _combinations(options, fixed):
            try:
                made = Plan(**{**usual, **fixed, **dict(zip(options, values, strict=True))})
                check_offload(made)
                if cuts_of_compiled(shape.variant.graph, made):
                    left_out["it cuts a compiled step, whose kernels are fused for one device"] += 1
                else:
                    yield batch, made
            except PlanError as error:
                left_out[str(error)] += 1


def _recomputing(space: Space, devices: int) -> Sequence[str | float]:
    least = f"budget:{math.floor(1000 * share_that_fits(SURE, devices)) / 1000:g}"
    if space.recompute == "auto":
        return "none", least
    return (*space.recompute, least) if "checkpointing" in space.search else space.recompute


def _combinations(options: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """All of them, with what is decided as it is."""
    return product(*((fixed[name],) if name in fixed else values for name, values in options.items()))


def _micro_steps(space: Space, shape: _Shape, dp: int, batch: int) -> int | None:
    """Micro-steps of a replica; without a global batch, as many as the step was written with."""
    if space.global_batch is None:
        return shape.accumulation
    each = dp * batch * shape.variant.per_batch
    return None if space.global_batch % each else space.global_batch // each


def _doubling(most: int) -> list[int]:
    return [2**k for k in range(21) if 2**k <= most]


def complexity(plan: Plan | str) -> int:
    """How much a plan asks of who runs it: data parallelism least, then sharding, tensors, pipelines."""
    parsed = Plan.parse(plan) if isinstance(plan, str) else plan
    groups = (parsed.tp > 1) + (parsed.cp > 1) + (parsed.ep > 1)
    return 8 * (parsed.pp > 1) + 4 * groups + parsed.zero + (parsed.checkpointing != "none")


def own_settings(steps: Steps) -> dict[str, Any]:
    """What a script or a configuration decides of its plan by itself, which is not searched.

    A script that shares its work out does it by code of its own: what it does not do, it cannot be told to.
    """
    template = steps.variants[0].graph.facts.plan
    if template is None or not template.settings:
        return {}
    never: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero": 0} if template.by == "script" else {}
    return {**never, **template.settings}


def decided(plan: Plan | str | None) -> dict[str, Any]:
    """The settings that a plan decides: those written in a text, or those of a Plan that are not the default."""
    if plan is None:
        return {}
    given = Plan.parse(plan) if isinstance(plan, str) else plan
    written = {part.partition("=")[0].strip() for part in plan.split(",")} if isinstance(plan, str) else None
    return {
        f.name: getattr(given, f.name)
        for f in fields(Plan)
        if (f.name in written if written is not None else getattr(given, f.name) != f.default)
    }
