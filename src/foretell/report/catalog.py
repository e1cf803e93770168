"""The hardware catalog in the terminal: devices, links and rented instances, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from foretell.report.terminal import grid
from foretell.units import or_dash, show_bandwidth, show_bytes, show_dollars, show_flops, show_seconds

if TYPE_CHECKING:
    from foretell.hardware import Device, Instance, Link

_MEDIUM, _WIDE = 90, 110  # columns from which a table shows more
_PLACES = {"inside": "inside a node", "between": "between nodes", "both": "either"}


def device_table(devices: Sequence[Device], *, width: int) -> RenderableType:
    rows = (
        {
            "name": d.name,
            "title": d.title if width >= _WIDE else None,
            "memory": show_bytes(d.memory_bytes),
            "bandwidth": show_bandwidth(d.bandwidth),
            "bf16 peak": f"{show_flops(d.peak('bf16'))}/s" + ("" if "bf16" in d.peaks else "*"),
            "fp32 peak": f"{show_flops(d.peak('fp32'))}/s" if width >= _MEDIUM else None,
            "node": f"{d.node_size}× {d.inside}",
        }
        for d in devices
    )
    note = " * runs as fp32: the device has no bf16 unit." if any("bf16" not in d.peaks for d in devices) else ""
    return listed(rows, "device", note)


def link_table(links: Sequence[Link], *, width: int) -> RenderableType:
    rows = (
        {
            "name": link.name,
            "title": link.title if width >= _WIDE else None,
            "bandwidth, each way": show_bandwidth(link.bandwidth),
            "latency": show_seconds(link.latency),
            "place": _PLACES[link.kind],
        }
        for link in links
    )
    return listed(rows, "link", " Rates are per device.")


def instance_table(instances: Sequence[Instance], *, width: int) -> RenderableType:
    rows = (
        {
            "name": i.name,
            "devices": f"{i.count}× {i.device}",
            "network": or_dash(i.bandwidth, show_bandwidth),
            "per device, hour": or_dash(i.dollars_per_device_hour, show_dollars) if width >= _WIDE else None,
            "per hour": or_dash(i.dollars_per_hour, show_dollars),
            "price of": i.price_date or "–",
        }
        for i in instances
    )
    return listed(rows, "instance", " On-demand list prices; network is per device.")


def listed(rows: Iterable[dict[str, str | None]], what: str, note: str) -> RenderableType:
    """Columns whose cells are None do not fit the width."""
    shown = [{heading: cell for heading, cell in row.items() if cell is not None} for row in rows]
    table = grid(
        *shown[0],
        left=("name", "title", "devices", "node", "place", "term", "region", "price of", "age"),
        wraps=("title",),
    )
    for row in shown:
        table.add_row(*row.values())
    count = f"\n{len(shown)} {what}{'' if len(shown) == 1 else 's'}.{note}"
    return Group(table, Text(count, style="dim"))
