"""What is searched: clusters, and for each the plans that divide it, the batch and the model; what does not divide is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

from foretell.errors import InputError, PlanError, check_choice, check_count, check_number
from foretell.hardware import Cluster, Node, Term, catalog
from foretell.hardware.device import TERMS
from foretell.parallel.blocks import blocks
from foretell.planner.steps import Steps, Variant
from foretell.plans import Plan
from foretell.units import Dollars

LONG: Final = 16_384  # tokens of a sequence from which context parallelism is tried
_MOST_BATCH: Final = 64  # of a micro-step, where no global batch bounds it
_CHECKPOINTING: Final = ("none", "selective", "full")
_GROUPED: Final = "aten._grouped_mm"


class Candidate(NamedTuple):
    """A plan on a cluster, with one variant of the step at one batch."""

    cluster: int
    variant: int
    batch: int  # of a micro-step
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be chosen from; None where everything that makes sense may."""

    gpus: tuple[str, ...] = ()
    max_devices: int = 64
    global_batch: int | None = None  # samples of a step over all devices
    batches: tuple[int, ...] | None = None  # of a micro-step
    on: Cluster | None = None  # this cluster alone
    fixed: Mapping[str, Any] | None = None  # settings of the plan that are decided
    prices: Mapping[str, Dollars] | None = None  # of a device's hour, by its name, instead of the catalog's
    term: Term = "on-demand"
    region: str | None = None  # None: wherever it is cheapest

    def __post_init__(self) -> None:
        check_count("max_devices", self.max_devices, InputError)
        if self.global_batch is not None:
            check_count("global_batch", self.global_batch, InputError)
        for name, price in (self.prices or {}).items():
            check_number(f"the price of {name}", price, "dollars per device and hour, at least 0", InputError)
        for batch in self.batches or ():
            check_count("a micro-batch", batch, InputError)
        check_choice("term", self.term, TERMS, InputError)

    def clusters(self) -> tuple[Cluster, ...]:
        if self.on is not None:
            found: tuple[Cluster, ...] = (self.on,)
        else:
            found = tuple(
                c for name in self.gpus or rented(self.term, self.region) for c in _sizes(name, self.max_devices)
            )
        if self.term != "on-demand" or self.region is not None:
            found = tuple(self._on_terms(cluster) for cluster in found)
            if all(cluster.dollars_per_hour is None for cluster in found) and not self.prices:
                where = f" in {self.region}" if self.region else ""
                raise InputError(
                    f"the catalog has no {self.term} price{where} for these devices. Give one with --price NAME=DOLLARS; "
                    "docs/reference/hardware.md says how to add offers."
                )
        if not self.prices:
            return found
        there = {node.device.name for cluster in found for node in cluster.nodes}
        if unknown := [name for name in self.prices if name not in there]:
            raise InputError(
                f"a price is given for {', '.join(unknown)}, which is not among {', '.join(sorted(there))}."
            )
        return tuple(_priced(cluster, self.prices) for cluster in found)

    def _on_terms(self, cluster: Cluster) -> Cluster:
        """At the price of a term, and in a region, that some instance with these devices is offered for."""
        known = {id(node): self._offered(node, node.rented_as in str(cluster)) for node in cluster.nodes}
        return replace(cluster, nodes=tuple(known[id(node)] for node in cluster.nodes), name=str(cluster))

    def _offered(self, node: Node, whole: bool) -> Node:
        """`whole`: the cluster is of this very instance."""
        if whole and node.rented_as:
            instance = catalog.instance(node.rented_as)
            own = instance.offer(self.term, self.region)
            found = None if own is None else (instance, own)
        else:
            found = catalog.cheapest_offer(node.device.name, self.term, self.region)
        if found is None:
            return replace(node, dollars_per_hour=None, rented_as="")
        instance, offer = found
        terms = f"{offer.term}{f' in {offer.region}' if offer.region else ''}, {offer.date}"
        dollars = offer.dollars_per_hour * node.count / instance.count
        return replace(node, dollars_per_hour=dollars, rented_as=instance.name, terms=terms)


def _priced(cluster: Cluster, prices: Mapping[str, Dollars]) -> Cluster:
    """Equal nodes stay one object."""
    known = {
        id(node): replace(node, dollars_per_hour=prices[node.device.name] * node.count, rented_as="")
        for node in cluster.nodes
        if node.device.name in prices
    }
    return replace(cluster, nodes=tuple(known.get(id(node), node) for node in cluster.nodes), name=str(cluster))


def rented(term: Term = "on-demand", region: str | None = None) -> tuple[str, ...]:
    """Devices that some instance of the catalog rents, made for training: with matrix units for half precision."""
    names = {i.device for i in catalog.instances() if i.offer(term, region) is not None}
    found = [catalog.device(name) for name in sorted(names)]
    return tuple(d.name for d in found if d.compute_capability and d.compute_capability >= (8, 0))


def _sizes(name: str, most: int) -> Iterator[Cluster]:
    """1, 2, 4, … devices of a node, then 1, 2, 3, 4, 6, 8, … nodes; of an instance, whole ones."""
    first = Cluster.parse(name)
    if first.devices != 1 and ":" not in name:
        raise InputError(
            f"--gpus takes names of devices or instances, got {name!r}. Write it like h100-sxm or aws:p5.48xlarge."
        )
    whole = first.devices if ":" in name else first.nodes[0].device.node_size
    counts = [] if ":" in name else [2**k for k in range(8) if 2**k < whole]
    nodes = sorted({n for k in range(20) for n in (2**k, 3 * 2**k)})
    counts += [whole * n for n in nodes]
    for count in (c for c in counts if c <= most):
        yield Cluster.parse(f"{count // first.devices}x{name}")


@dataclass(slots=True, kw_only=True)
class Enumerated:
    """The candidates that divide, and how many others there were and why not."""

    clusters: tuple[Cluster, ...]
    candidates: list[Candidate]
    left_out: Counter[str]

    @property
    def considered(self) -> int:
        return len(self.candidates) + self.left_out.total()


def enumerate_space(space: Space, steps: Steps) -> Enumerated:
    clusters = space.clusters()
    found = Enumerated(clusters=clusters, candidates=[], left_out=Counter())
    if not clusters:
        raise InputError(f"no cluster has at most {space.max_devices} devices. Allow more with max_devices.")
    for v, variant in enumerate(steps.variants):
        shape = _Shape(variant)
        for c, cluster in enumerate(clusters):
            for batch, plan in _plans(space, shape, cluster, found.left_out):
                found.candidates.append(Candidate(c, v, batch, plan))
    return found


def given_plans(on: Cluster | None, among: Sequence[tuple[Plan | str, int]], steps: Steps) -> Enumerated:
    """Plans that are given, with their micro-batches, on one cluster."""
    if on is None:
        raise InputError("among has plans for one cluster, and on is not given. Say on which cluster.")
    found = Enumerated(clusters=(on,), candidates=[], left_out=Counter())
    for written, batch in among:
        plan = Plan.parse(written) if isinstance(written, str) else written
        plan.check_devices(on.devices)
        for v, variant in enumerate(steps.variants):
            if not variant.free and batch not in variant.captured:
                raise InputError(
                    f"the batch of {steps.name!r} is fixed at {', '.join(map(str, variant.captured))}, got {batch}."
                )
            found.candidates.append(Candidate(0, v, batch, plan))
    if not found.candidates:
        raise InputError("among has no plan to choose from. Give at least one.")
    return found


class _Shape:
    """What of a step decides which plans divide it."""

    def __init__(self, variant: Variant) -> None:
        graph = variant.graph
        self.variant = variant
        self.blocks = len(blocks(graph))
        self.trains = graph.training
        self.sequence = graph.tokens // graph.samples if graph.tokens and graph.samples else 0
        self.experts = any(op.signature.name == _GROUPED for op in graph.ops)
        self.accumulation = graph.grad_accumulation

    def batches(self, space: Space) -> list[int]:
        if not self.variant.free:
            return list(self.variant.captured)
        if space.batches is not None:
            return list(space.batches)
        most = space.global_batch or _MOST_BATCH
        return [2**k for k in range(21) if 2**k <= most]


def _plans(space: Space, shape: _Shape, cluster: Cluster, left_out: Counter[str]) -> Iterator[tuple[int, Plan]]:
    devices, inside = cluster.devices, min(node.count for node in cluster.nodes)
    fixed = dict(space.fixed or {})
    options: dict[str, Sequence[Any]] = {
        "tp": _doubling(inside),
        "cp": _doubling(inside) if shape.sequence >= LONG else (1,),
        "pp": _doubling(min(devices, max(shape.blocks, 1))) if shape.trains else (1,),
    }
    options |= {name: (fixed[name],) for name in options if name in fixed}
    for tp in options["tp"]:
        for cp in options["cp"]:
            for pp in options["pp"]:
                if devices % (tp * cp * pp):
                    left_out["tp × cp × pp does not divide the devices"] += 1
                    continue
                dp = devices // (tp * cp * pp)
                if fixed.get("dp", dp) != dp:
                    left_out["dp is decided otherwise"] += 1
                    continue
                degrees = {"dp": dp, "tp": tp, "cp": cp, "pp": pp}
                yield from _settled(space, shape, degrees, fixed, left_out)


def _settled(
    space: Space, shape: _Shape, degrees: Mapping[str, int], fixed: Mapping[str, Any], left_out: Counter[str]
) -> Iterator[tuple[int, Plan]]:
    """The plans with these degrees."""
    replicas, pp = degrees["dp"] * degrees["cp"], degrees["pp"]
    zeros = fixed.get("zero"), (0,) if replicas == 1 or not shape.trains else (0, 1, 3) if pp > 1 else (0, 1, 2, 3)
    recomputing = fixed.get("checkpointing"), _CHECKPOINTING if shape.trains and shape.blocks > 1 else ("none",)
    shares = fixed.get("ep"), [e for e in _doubling(replicas) if e <= 8] if shape.experts else (1,)
    rest = {k: v for k, v in fixed.items() if k not in ("dp", "tp", "cp", "pp", "zero", "checkpointing", "ep")}
    rest.setdefault("sequence_parallel", degrees["tp"] > 1)
    given: dict[str, Any]
    for batch in shape.batches(space):
        micro_steps = _micro_steps(space, shape, degrees["dp"], batch)
        if micro_steps is None:
            left_out["dp × micro-batch does not divide the global batch"] += 1
            continue
        rest["grad_accumulation"] = fixed.get("grad_accumulation", micro_steps)
        for zero in zeros[1] if zeros[0] is None else (zeros[0],):
            for checkpointing in recomputing[1] if recomputing[0] is None else (recomputing[0],):
                for ep in shares[1] if shares[0] is None else (shares[0],):
                    given = {**degrees, "zero": zero, "checkpointing": checkpointing, "ep": ep, **rest}
                    try:
                        yield batch, Plan(**given)
                    except PlanError as error:
                        left_out[str(error)] += 1


def _micro_steps(space: Space, shape: _Shape, dp: int, batch: int) -> int | None:
    """Micro-steps of a replica; without a global batch, as many as the step was written with."""
    if space.global_batch is None:
        return shape.accumulation
    each = dp * batch * shape.variant.per_batch
    return None if space.global_batch % each else space.global_batch // each


def _doubling(most: int) -> list[int]:
    return [2**k for k in range(21) if 2**k <= most]


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
