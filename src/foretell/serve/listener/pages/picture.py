"""The cluster as a picture to choose on: devices of a node, nodes, links between them, and the plans that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

from foretell import hardware
from foretell.hardware import Cluster
from foretell.serve.listener.pages.cluster_drawing import drawing
from foretell.serve.listener.pages.frame import field
from foretell.serve.requests import cluster_of
from foretell.units import show_bandwidth, show_bytes, show_dollars

_NODES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_MAX_SQUARES: Final = 16  # of a node; racks of more are chosen by steps of some
USUAL: Final = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the picture shows; `written` is a cluster in words, which goes before it."""

    device: str = USUAL
    count: int = 8
    nodes: int = 1
    written: str = ""
    plan: str = ""

    @property
    def cluster(self) -> str:
        if self.written:
            return self.written
        return f"{self.count}x{self.device}" if self.nodes == 1 else f"{self.nodes}x{self.count}x{self.device}"

    @classmethod
    def of(cls, on: str, plan: str = "") -> Chosen:
        """The picture of a cluster in words, where it is equal nodes with their usual links; else the words."""
        if not on:
            return cls(plan=plan)
        if " " in on:
            return cls(written=on, plan=plan)
        cluster = cluster_of(on)
        first = cluster.nodes[0]
        drawn = cls(device=first.device.name, count=first.count, nodes=len(cluster.nodes), plan=plan)
        same = (
            drawn.nodes in _NODES and drawn.count in _counts(drawn.device) and Cluster.parse(drawn.cluster) == cluster
        )
        return drawn if same else cls(device=first.device.name, written=on, plan=plan)


def hardware_fields(chosen: Chosen) -> str:
    """The fieldset; it draws itself anew when something in it changes."""
    own = hardware.own_devices()
    groups: dict[str, list[str]] = {"Your own": []} if own else {}
    for device in hardware.devices():
        option = f'<option value="{escape(device.name)}"{" selected" if device.name == chosen.device else ""}>'
        groups.setdefault("Your own" if device.name in own else device.vendor, []).append(
            f"{option}{escape(device.title)}</option>"
        )
    listed = "".join(f'<optgroup label="{escape(vendor)}">{"".join(of)}</optgroup>' for vendor, of in groups.items())
    again = 'hx-get="/picture" hx-trigger="change" hx-include="#hardware" hx-target="#picture" hx-sync="this:replace"'
    words = (
        f'<input name="on" value="{escape(chosen.written)}" maxlength="1000" placeholder="16x8xh100-sxm@ib-400g" '
        'spellcheck="false" autocapitalize="off">'
    )
    return (
        f'<fieldset id="hardware" {again}><legend>On which hardware</legend>'
        + field("Device", f'<select name="device">{listed}</select>')
        + f'<div id="picture">{picture(chosen)}</div>'
        + f"<details{' open' if chosen.written else ''}><summary>Write the cluster instead</summary>"
        + field(
            "Cluster",
            words,
            "Other links, mixed nodes, a rented instance: 2xaws:p5.48xlarge. Up to six, with a space between, are compared.",
        )
        + "</details></fieldset>"
    )


def picture(chosen: Chosen) -> str:
    """Nodes with their devices; squares and boxes are what is clicked, or walked through with the arrow keys."""
    device = hardware.device(chosen.device)
    counts = _counts(chosen.device)
    count = chosen.count if chosen.count in counts else counts[-1]
    drawn = Chosen(device=chosen.device, count=count, nodes=chosen.nodes, written=chosen.written)
    cluster = cluster_of(drawn.cluster.split()[0])  # of several, the first
    inside, between = hardware.link(device.inside), hardware.link(device.between)
    squares = "".join(
        _radio("count", str(n), n == count, "square", "1 device" if n == 1 else f"{n} devices", str(n)) for n in counts
    )
    boxes = "".join(
        _radio("nodes", str(n), n == chosen.nodes, "box", "1 node" if n == 1 else f"{n} nodes", f"{n}") for n in _NODES
    )
    wire = f"{escape(inside.title)}, {show_bandwidth(inside.bandwidth)}" if count > 1 else "one device"
    network = f"{escape(between.title)}, {show_bandwidth(between.bandwidth)} per device"
    outside = network if chosen.nodes > 1 else "no network between them"
    price = f", {show_dollars(cluster.dollars_per_hour)} per hour" if cluster.dollars_per_hour else ""
    memory = sum(times * node.count * node.device.usable_bytes for node, times in cluster.runs)
    many = "devices" if cluster.devices > 1 else "device"
    return (
        f'<fieldset class="squares"><legend>Devices in a node <small>{wire}</small></legend>{squares}</fieldset>'
        f'<fieldset class="boxes"><legend>Nodes <small>{outside}</small></legend>{boxes}</fieldset>'
        f'<div class="drawing">{drawing(cluster)}</div>'
        f'<p class="sum"><strong>{escape(drawn.cluster)}</strong> {cluster.devices:,} {many}, {show_bytes(memory)} of memory{price}</p>'
        + _plan_field(cluster, chosen.plan)
    )


def _radio(name: str, value: str, chosen: bool, kind: str, hint: str, shown: str) -> str:
    mark = " checked" if chosen else ""
    return f'<label class="{kind}" title="{hint}"><input type="radio" name="{name}" value="{value}"{mark}><span>{shown}</span></label>'


def _counts(device: str) -> list[int]:
    """How many of a node's devices can be chosen: each of a server's, steps of a rack's."""
    size = hardware.device(device).node_size
    return [n for n in range(1, size + 1) if size <= _MAX_SQUARES or n & (n - 1) == 0 or n == size]


def _plan_field(cluster: Cluster, plan: str) -> str:
    options = "".join(f'<option value="{each}"></option>' for each in _plans(cluster))
    control = (
        f'<input name="plan" list="plans" value="{escape(plan)}" maxlength="1000" placeholder="dp={cluster.devices}" '
        'spellcheck="false">'
    )
    return field("Plan", f'{control}<datalist id="plans">{options}</datalist>', "Empty: all of them data-parallel.")


def _plans(cluster: Cluster) -> Iterator[str]:
    devices, inside = cluster.devices, cluster.nodes[0].count
    if devices == 1:
        return
    yield from (f"dp={devices},zero={stage}" for stage in (1, 2, 3))
    for tp in (2, 4, 8):
        if inside % tp == 0:
            yield f"dp={devices // tp},tp={tp}" if devices > tp else f"tp={tp}"
    for pp in (2, 4, 8):
        if devices % (8 * pp) == 0 and inside % 8 == 0:
            yield f"dp={devices // 8 // pp},tp=8,pp={pp},micro_batches={4 * pp}"
