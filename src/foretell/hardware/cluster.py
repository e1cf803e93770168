"""Where a step runs: a `Cluster` is nodes of devices, the links inside and between them, and what an hour costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, repeat
from math import fsum, prod
from typing import Any

from foretell.errors import CatalogError
from foretell.hardware import catalog
from foretell.hardware.device import Device, Host, Instance, Link
from foretell.hardware.market import Market
from foretell.hardware.node import Node, check_place
from foretell.units import BytesPerSecond, Dollars

TOPOLOGIES = ("fat-tree", "rail-optimized", "torus", "ring")
MAX_DEVICES = 2**20
_LONGEST = 1000  # characters of its text
_BOARD = 8  # devices of a server; more share a rack
_GRAMMAR = "Write it like 'h200', '8xh100-sxm', '16x8xh100-sxm@ib-400g' or '2xaws:p5.48xlarge' (see docs/reference/hardware.md)."
_PART = re.compile(r"(?:(\d{1,12})x)?(?:(\d{1,12})x)?([a-z0-9][a-z0-9._:-]{0,99})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes in rank order. Equal nodes are one object repeated, so a large cluster stays cheap.

    Args:
        nodes: The nodes.
        between: The link between nodes; a single node needs none.
        oversubscription: How many times thinner the network is above the nodes than at them.
        topology: `fat-tree` or `rail-optimized`.
        name: The text it was written as.
        host: Feeds all nodes, by itself or its name in the catalog; None: each node's own.

    Raises:
        InputError: No node, no link between several, or too many devices.

    Examples:
        >>> foretell.Cluster.parse("16x8xh100-sxm@ib-400g").devices
        128
    """

    nodes: tuple[Node, ...] = field(compare=False, repr=False)  # `runs` says the same in less
    between: Link | None = None  # a single node needs none
    oversubscription: float = 1.0  # how many times thinner the network is above the nodes than at them
    topology: str = "fat-tree"
    name: str = field(default="", compare=False)  # the text it was written as
    host: Host | str | None = None  # feeds all nodes; None: each node's own
    runs: tuple[tuple[Node, int], ...] = field(init=False)  # each node, and how many like it follow each other

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", _runs(self.nodes))
        if self.host is not None:
            host = catalog.host(self.host) if isinstance(self.host, str) else self.host
            object.__setattr__(self, "host", host)
            object.__setattr__(self, "nodes", self._mapped(lambda node: replace(node, host=host)))
            object.__setattr__(self, "runs", _runs(self.nodes))
        if not self.nodes:
            raise CatalogError("a cluster has at least one node, got none.")
        if self.devices > MAX_DEVICES:
            raise CatalogError(f"a cluster has at most {MAX_DEVICES:,} devices, got {self.devices:,}.")
        if self.between is None and len(self.nodes) > 1:
            raise CatalogError(f"{len(self.nodes)} nodes need a link between them, got none. Give one, like 'ib-400g'.")
        if self.between is not None:
            check_place(self.between, "between")
        if not 1 <= self.oversubscription <= MAX_DEVICES:
            raise CatalogError(
                f"oversubscription is at least 1 (a full network), got {self.oversubscription!r}, and at most {MAX_DEVICES:,}."
            )
        if self.topology not in TOPOLOGIES:
            raise CatalogError(f"unknown topology {self.topology!r}. Allowed: {', '.join(TOPOLOGIES)}.")

    @classmethod
    def parse(
        cls, text: str, host: Host | str | None = None, *, most: tuple[int, int] = (MAX_DEVICES, MAX_DEVICES)
    ) -> Cluster:
        """Read `8xh100-sxm`, `16x8xh100-sxm@ib-400g`, `8xl40s@pcie-4,eth-100g`, `4xt4+2xt4`, `2xaws:p5.48xlarge`.

        After the links, `/4` is a network four times thinner above the nodes, `/rail-optimized` its topology. A host that is
        given feeds all of it. What has more devices or nodes than `most` is refused before anything is made of it.
        """
        if len(text) > _LONGEST:
            raise CatalogError(
                f"a cluster is written in at most {_LONGEST:,} characters, got {len(text):,}. {_GRAMMAR}"
            )
        parts, at, links = _compact(text).partition("@")
        links, *shape = links.split("/")
        inside, between = _read_links(links, text) if at else (None, None)
        written = parts.split("+")
        made = {
            part: _read_part(part, inside, text, most) for part in dict.fromkeys(written)
        }  # equal nodes are one object
        read = [made[part] for part in written]
        _check_size(sum(len(part) for part, _ in read), most[1], "nodes")
        nodes = tuple(chain.from_iterable(part for part, _ in read))
        _check_size(sum(node.count for node in nodes), most[0], "devices")
        if between is None and len(nodes) > 1:
            between = min((usual for _, usual in read), key=lambda link: link.bandwidth)  # the slowest one decides
        return cls(nodes=nodes, between=between, **_read_shape(shape, text), name=text.strip(), host=host).priced(
            Market()
        )

    def priced(self, market: Market) -> Cluster:
        """The same cluster at a market's prices; nodes that nobody there offers as they are have none."""
        between = self.between if len(self.nodes) > 1 else None
        return self.with_nodes(lambda node: market.priced(node, between))

    def with_nodes(self, change: Callable[[Node], Node]) -> Cluster:
        """The same cluster with every node changed in one way; equal nodes stay one object."""
        return replace(self, nodes=self._mapped(change), name=str(self))

    def _mapped(self, change: Callable[[Node], Node]) -> tuple[Node, ...]:
        known = {id(node): change(node) for node in self.kinds}
        return tuple(chain.from_iterable(repeat(known[id(node)], times) for node, times in self.runs))

    @property
    def kinds(self) -> tuple[Node, ...]:
        """The different nodes, in order of first appearance; a large cluster has few."""
        return tuple({id(node): node for node, _ in self.runs}.values())

    @property
    def devices(self) -> int:
        return sum(node.count * times for node, times in self.runs)

    @property
    def device_kinds(self) -> tuple[Device, ...]:
        """The different devices, in order of first appearance."""
        return tuple({node.device.name: node.device for node in self.kinds}.values())

    @property
    def is_rented(self) -> bool:
        """Whether it is of instances, each with a host of its own."""
        return any(node.instance for node in self.kinds)

    def on_host(self, host: Host | str) -> Cluster:
        """The same devices, all fed by such a host."""
        return replace(self, host=host, name=str(self))

    @property
    def between_bandwidth(self) -> BytesPerSecond | None:
        """Bytes per second and device that all nodes can have at once, after oversubscription."""
        return None if self.between is None else self.between.bandwidth / self.oversubscription

    @property
    def partly_filled(self) -> str:
        """How many devices each rack has, where several have fewer than would fit; "" elsewhere."""
        racks = [(node, times) for node, times in self.runs if node.count < node.device.node_size > _BOARD]
        if sum(times for _, times in racks) < 2:
            return ""
        counts = groupby(self.runs, key=lambda run: run[0].count)
        layout = " and ".join(f"{sum(times for _, times in same)} × {count}" for count, same in counts)
        return f"{layout} devices, where {racks[0][0].device.node_size} share a rack's links"

    @property
    def dollars_per_hour(self) -> Dollars | None:
        """List price of all nodes, or None when one of them has none."""
        prices = [(node.dollars_per_hour, times) for node, times in self.runs]
        return (
            None
            if any(price is None for price, _ in prices)
            else fsum((price or 0.0) * times for price, times in prices)
        )

    @property
    def price_source(self) -> str | None:
        """Whose list price it is, and of which date: `aws:p5.48xlarge, 2025-06`."""
        names = dict.fromkeys((node.rented_as, node.terms) for node in self.kinds if node.rented_as)
        return " and ".join(", ".join(filter(None, each)) for each in names) or None

    @property
    def unpriced(self) -> str:
        """Why it has no price, where its devices are rented in another way; "" elsewhere."""
        between = self.between if len(self.nodes) > 1 else None
        bare = next((node for node in self.kinds if node.dollars_per_hour is None), None)
        return "" if bare is None else Market().unpriced(bare, between)

    def __str__(self) -> str:
        return self.name or self._spelt()

    def _spelt(self) -> str:
        """The text for a cluster made in Python; hosts have no spelling."""
        text = "+".join(f"{times}x{node.count}x{node.device.name}" for node, times in self.runs)
        unusual = [node.inside.name for node in self.kinds if node.inside.name != node.device.inside]
        links = unusual[:1] + ([self.between.name] if self.between else [])
        thinner = f"/{self.oversubscription:g}" * (self.oversubscription > 1)
        shape = thinner + f"/{self.topology}" * (self.topology != "fat-tree")
        return f"{text}@{','.join(links)}{shape}" if links else text


def _runs(nodes: tuple[Node, ...]) -> tuple[tuple[Node, int], ...]:
    """By identity first, which is quick; then nodes that are equal are one."""
    found: list[tuple[Node, int]] = []
    for _, same in groupby(nodes, key=id):
        alike = list(same)
        if found and found[-1][0] == alike[0]:
            found[-1] = found[-1][0], found[-1][1] + len(alike)
        else:
            found.append((alike[0], len(alike)))
    return tuple(found)


def _compact(text: str) -> str:
    """`8 x NVIDIA A100 80GB PCIe` → `8xnvidia-a100-80gb-pcie`: space between words is a hyphen, elsewhere nothing."""
    text = re.sub(r"[()]", " ", text.lower().replace("×", "x")).strip()
    text = re.sub(
        r"(?<![^+\s])(\d+)\s*x\s*(?:(\d+)\s*x\s*)?(?=\S)", lambda m: "x".join(filter(None, m.groups())) + "x", text
    )
    return re.sub(r"\s+", "-", re.sub(r"\s*([-+@,/])\s*", r"\1", text))


def _check_size(got: int, most: int, what: str) -> None:
    if got > most:
        raise CatalogError(f"a cluster has at most {most:,} {what}, got {got:,}. Ask about fewer.")


def _read_part(part: str, inside: Link | None, text: str, most: tuple[int, int]) -> tuple[list[Node], Link]:
    """The nodes of one part between `+`, and the link that usually lies between them."""
    match = _PART.fullmatch(part)
    if match is None:
        what = repr(part) if part else "an empty part"
        raise CatalogError(f"cluster {text!r}: {what} does not name devices. {_GRAMMAR}")
    counts, name = [int(count) for count in match.groups()[:2] if count], match[3]
    if not 1 <= prod(counts) <= MAX_DEVICES:
        raise CatalogError(f"cluster {text!r}: a part has 1 to {MAX_DEVICES:,} devices, got {part!r}.")
    each = catalog.instance(name).count if ":" in name else 1
    _check_size(prod(counts) * each, most[0], "devices")
    if len(counts) == 2:
        _check_size(counts[0], most[1], "nodes")
    if ":" in name:
        return _rented(catalog.instance(name), counts, inside, text)
    return _owned(catalog.device(name), counts, inside)


def _owned(device: Device, counts: list[int], inside: Link | None) -> tuple[list[Node], Link]:
    """`3x4xNAME` is three nodes of four; `12xNAME` fills nodes of the usual size."""
    sizes = [counts[1]] * counts[0] if len(counts) == 2 else _filled(prod(counts), device.node_size)
    nodes = {
        size: Node(
            device=device,
            count=size,
            host=catalog.host(device.host),
            inside=inside or catalog.link(device.inside),
        )
        for size in set(sizes)
    }
    return [nodes[size] for size in sizes], catalog.link(device.between)


def _filled(devices: int, usual: int) -> list[int]:
    """The last node is smaller. Racks, which nobody fills at the price of groups that straddle two, are filled alike."""
    full, rest = divmod(devices, usual)
    nodes = full + (rest > 0)
    if rest and usual > _BOARD and devices % nodes == 0:
        return [devices // nodes] * nodes
    return [usual] * full + [rest] * (rest > 0)


def _rented(instance: Instance, counts: list[int], inside: Link | None, text: str) -> tuple[list[Node], Link]:
    if len(counts) == 2:
        raise CatalogError(
            f"cluster {text!r}: {instance.name!r} has {instance.count} devices of its own, so only the number of "
            f"instances stands before it. Write '{counts[0]}x{instance.name}'."
        )
    device, sizes = catalog.device(instance.device), _filled(prod(counts) * instance.count, instance.together)
    nodes = {
        size: Node(
            device=device,
            count=size,
            host=catalog.host(instance.host),
            inside=inside or catalog.link(device.inside),
            instance=instance.name,
        )
        for size in set(sizes)
    }
    assert instance.bandwidth is not None, "an instance of the catalog says it"
    return [nodes[size] for size in sizes], replace(catalog.link(instance.between), bandwidth=instance.bandwidth)


def _read_links(written: str, text: str) -> tuple[Link | None, Link | None]:
    """`inside,between`; a single name is the link between nodes, unless it can only lie inside one."""
    names = written.split(",")
    if len(names) > 2 or not all(names):
        raise CatalogError(f"cluster {text!r}: after '@' come one or two links, got {written!r}. {_GRAMMAR}")
    links = [catalog.link(name) for name in names]
    if len(links) == 2:
        return links[0], links[1]
    return (links[0], None) if links[0].kind == "inside" else (None, links[0])


def _read_shape(written: list[str], text: str) -> dict[str, Any]:
    """Of the network: a number says how many times thinner it is above the nodes, a word its topology."""
    shape: dict[str, Any] = {}
    for part in written:
        if part in TOPOLOGIES:
            shape["topology"] = part
        elif re.fullmatch(r"\d+(\.\d+)?", part):
            shape["oversubscription"] = float(part)
        else:
            raise CatalogError(
                f"cluster {text!r}: after the links, {part!r} is neither how many times thinner the network is above the "
                f"nodes, like '@ib-400g/2', nor a topology. Topologies: {', '.join(TOPOLOGIES)}."
            )
    return shape
