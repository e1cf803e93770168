"""What may be chosen from: devices and how many of them, batches, plans, settings of the step, and at which prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from foretell.errors import InputError, check_choice, check_count, check_number
from foretell.hardware import Cluster, Node, Term, catalog
from foretell.hardware.device import TERMS
from foretell.plans import Plan
from foretell.recomputing import Recomputing
from foretell.units import Dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search may choose from; None where everything that makes sense may.

    Attributes:
        gpus: Devices or instances, in numbers up to `max_devices`; (): whatever can be rented.
        global_batch: Samples of a step over all devices, kept by gradient accumulation; `batches` are of a micro-step.
        among: Plans with their micro-batches to choose from, on one cluster.
        recompute: Values of a plan's `checkpointing` to try; "auto": nothing, or as little as surely fits.
        vary: Settings of the SOURCE to try in turn, like {"precision": ["bf16", "fp32"]}.
        prices: Dollars per device and hour instead of the catalog's, which are of a `term` and a `region`.

    Examples:
        >>> [str(cluster) for cluster in foretell.Space(gpus=["l40s"], max_devices=4).clusters()]
        ['1xl40s', '2xl40s', '4xl40s']
    """

    gpus: Sequence[str] = ()
    max_devices: int = 64
    global_batch: int | None = None
    batches: Sequence[int] | None = None
    among: Sequence[tuple[Plan | str, int]] | None = None
    recompute: Sequence[str | float] | Literal["auto"] = ("none", "selective", "full")
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    prices: Mapping[str, Dollars] = field(default_factory=dict)
    term: Term = "on-demand"
    region: str | None = None  # None: wherever it is cheapest

    def __post_init__(self) -> None:
        check_count("max_devices", self.max_devices, InputError)
        if self.global_batch is not None:
            check_count("global_batch", self.global_batch, InputError)
        for name, price in self.prices.items():
            check_number(f"the price of {name}", price, "dollars per device and hour, at least 0", InputError)
        for batch in self.batches or ():
            check_count("a micro-batch", batch, InputError)
        check_choice("term", self.term, TERMS, InputError)
        if isinstance(self.recompute, str) and self.recompute != "auto":
            raise InputError(f"recompute={self.recompute!r} must be auto, or a list like ['none', 'full'].")
        for word in () if self.recompute == "auto" else self.recompute:
            Recomputing.parse(word)

    def clusters(self, on: Cluster | None = None) -> tuple[Cluster, ...]:
        """The clusters to choose from, at their prices: `on` alone, where it is given."""
        if on is not None and self.gpus:
            raise InputError(
                f"on={on} is the one cluster, so gpus={','.join(self.gpus)} cannot be tried too. Give one of them."
            )
        if on is not None:
            found: tuple[Cluster, ...] = (on,)
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
