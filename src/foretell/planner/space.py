"""What may be chosen from: devices and how many of them, batches, plans, settings of the step, and at which prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from foretell.errors import InputError, check_choice, check_count, check_number, did_you_mean
from foretell.hardware import Cluster, Instance, Market, Node, Term, catalog, offered
from foretell.hardware.device import TERMS
from foretell.plans import Plan
from foretell.recomputing import Recomputing
from foretell.units import Dollars

DIMENSIONS: Final = ("precision", "compile", "checkpointing", "offload", "instances", "spot")
_VARIED: Final = ("precision", "compile")  # those that are settings of the SOURCE
PRECISIONS: Final = ("amp-bf16", "bf16")  # that training is commonly done in
COMPILED: Final = ("false", "true")  # a step as it is written, and compiled


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
        offers: Instances with their prices, as `foretell.read_prices` gives them, instead of the catalog's.
        instances: Try each device as every instance that rents it, with the network of that instance.
        search: What to try beside plans and batches, of `DIMENSIONS`: precision, compile, checkpointing, offload, instances,
            spot.

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
    offers: Sequence[Instance] | None = None  # None: the catalog's
    instances: bool = False
    search: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._check_search()
        check_count("max_devices", self.max_devices, InputError)
        if self.global_batch is not None:
            check_count("global_batch", self.global_batch, InputError)
        for name, price in self.prices.items():
            check_number(f"the price of {name}", price, "dollars per device and hour, at least 0", InputError)
        for batch in self.batches or ():
            check_count("a micro-batch", batch, InputError)
        check_choice("term", self.term, TERMS, InputError)
        if "spot" in self.search and (self.term == "spot" or self.prices):
            got = f"term={self.term}" if self.term == "spot" else f"prices of your own for {', '.join(self.prices)}"
            raise InputError(f"search=spot compares spot with other prices, got {got}. Leave one of them out.")
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
        market = self.market
        if on is not None:
            found: tuple[Cluster, ...] = (on if market == Market() else on.priced(market),)
        else:
            found = tuple(c for name in self.gpus or rented(market) for c in self._sizes(name, market))
        if not self.prices and all(cluster.dollars_per_hour is None for cluster in found):
            self._refuse_unpriced()
        if not self.prices:
            return found
        there = {node.device.name for cluster in found for node in cluster.kinds}
        if unknown := [name for name in self.prices if name not in there]:
            raise InputError(
                f"a price is given for {', '.join(unknown)}, which is not among {', '.join(sorted(there))}."
            )
        return tuple(_priced(cluster, self.prices) for cluster in found)

    def on_terms(self, on: Cluster | None = None) -> list[tuple[Term, Cluster]]:
        """The clusters with the term of their price; those that can be had as spot, so as well where that is searched."""
        found = [(self.term, cluster) for cluster in self.clusters(on)]
        if "spot" not in self.search:
            return found
        market = replace(self.market, term="spot")
        spot: list[tuple[Term, Cluster]] = [("spot", cluster.priced(market)) for _, cluster in found]
        return found + [(term, cluster) for term, cluster in spot if cluster.dollars_per_hour is not None]

    def varied(self, settings: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        """Settings of the SOURCE to try in turn: those of `vary`, and what is searched of its precision and of compiling it."""
        tried = dict(self.vary)
        for name in (word for word in _VARIED if word in self.search):
            if name in self.vary:
                raise InputError(f"search={name} and vary of {name} both say which to try. Leave one of them out.")
            own = [settings[name]] if name in settings else []
            tried[name] = list(dict.fromkeys([*own, *(PRECISIONS if name == "precision" else COMPILED)]))
        return tried

    def _check_search(self) -> None:
        for word in self.search:
            if word not in DIMENSIONS:
                raise InputError(
                    f"search={word!r} is nothing to search. {did_you_mean(word, DIMENSIONS)}Allowed: {', '.join(DIMENSIONS)}; "
                    "parallelism, micro-batches and accumulation are always searched."
                )

    @property
    def market(self) -> Market:
        """Whose prices count."""
        return Market(offers=self.offers, term=self.term, region=self.region)

    def _sizes(self, name: str, market: Market) -> Iterator[Cluster]:
        """Clusters of a device, or of an instance; where nobody rents the usual network, with those that are rented."""
        plain = ":" not in name and "@" not in name
        if plain and (self.instances or "instances" in self.search):
            for each in instances_of(catalog.device(name).name, market):
                yield from (c.priced(market) for c in _sizes(each, self.max_devices))
            return
        bare = []
        for cluster in (c.priced(market) for c in _sizes(name, self.max_devices)):
            known = cluster.dollars_per_hour is not None or cluster.nodes[0].device.name in self.prices
            if known or not plain or len(cluster.nodes) == 1:
                yield cluster
            else:
                bare.append(cluster)
        wanted = {cluster.devices for cluster in bare}
        names = instances_of(bare[0].nodes[0].device.name, market) if bare else ()
        widest = max((catalog.instance(each).together for each in names), default=0)
        whole = [each for each in names if catalog.instance(each).together == widest]
        found = [c.priced(market) for each in whole for c in _sizes(each, self.max_devices) if c.devices in wanted]
        yield from found or bare

    def _refuse_unpriced(self) -> None:
        """Where a term, a region or a file was chosen, and has no price for any of it, that is an error."""
        if self.market == Market():
            return
        where, whose = f" in {self.region}" if self.region else "", "catalog" if self.offers is None else "file"
        raise InputError(
            f"the {whose} has no {self.term} price{where} for these devices. Give one with --price NAME=DOLLARS; "
            "docs/reference/hardware.md says how to add offers."
        )


def _priced(cluster: Cluster, prices: Mapping[str, Dollars]) -> Cluster:
    """At these prices per device and hour, where there is one."""

    def priced(node: Node) -> Node:
        price = prices.get(node.device.name)
        return node if price is None else replace(node, dollars_per_hour=price * node.count, rented_as="")

    return cluster.with_nodes(priced)


def rented(market: Market) -> tuple[str, ...]:
    """Devices that some instance rents, made for training: with matrix units for half precision."""
    names = {i.device for i in _offered(market)}
    found = [catalog.device(name) for name in sorted(names)]
    return tuple(d.name for d in found if d.compute_capability and d.compute_capability >= (8, 0))


def instances_of(device: str, market: Market) -> tuple[str, ...]:
    """Instances that rent a device, the cheapest of each size and network."""
    known: dict[tuple[object, ...], tuple[Dollars, str]] = {}
    listed = {each.name for each in catalog.instances()}  # others have no network to simulate
    for each in (i for i in _offered(market) if i.device == device and i.name in listed):
        offer = each.offer(market.term, market.region)
        assert offer is not None
        kind, price = (each.together, each.between, each.bandwidth), offer.dollars_per_hour / each.count
        known[kind] = min(known.get(kind, (price, each.name)), (price, each.name))
    return tuple(name for _, name in sorted(known.values()))


def _offered(market: Market) -> list[Instance]:
    every = offered() if market.offers is None else market.offers
    return [i for i in every if i.offer(market.term, market.region) is not None]


def _sizes(name: str, most: int) -> Iterator[Cluster]:
    """1, 2, 4, … devices of a node, then 1, 2, 3, 4, 6, 8, … nodes; of an instance, whole ones."""
    first = Cluster.parse(name)
    if first.devices != 1 and ":" not in name:
        raise InputError(
            f"--gpus takes names of devices or instances, got {name!r}. Write it like h100-sxm or aws:p5.48xlarge."
        )
    whole = catalog.instance(name).together if ":" in name else first.nodes[0].device.node_size
    counts = [2**k for k in range(8) if 2**k < whole and 2**k % first.devices == 0]
    nodes = sorted({n for k in range(20) for n in (2**k, 3 * 2**k)})
    counts += [whole * n for n in nodes]
    for count in (c for c in counts if c <= most):
        yield Cluster.parse(f"{count // first.devices}x{name}")
