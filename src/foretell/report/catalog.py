"""The hardware catalogue in the terminal: devices, links and rented instances, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.report.findings import show_dollars
from foretell.units import show_bandwidth, show_bytes, show_flops, show_seconds

if TYPE_CHECKING:
    from foretell.hardware import Device, Instance, Link


def device_table(devices: Sequence[Device], *, width: int) -> RenderableType:
    wide, medium = width >= 110, width >= 90
    headings = ("memory", "bandwidth", "bf16 peak", *(("fp32 peak",) if medium else ()), "node")
    table = _table("name", *(("title",) if wide else ()), *headings)
    for d in devices:
        table.add_row(
            d.name, *([d.title] if wide else []), show_bytes(d.memory_bytes), show_bandwidth(d.bandwidth),
            f"{show_flops(d.peak('bf16'))}/s" + ("" if "bf16" in d.peaks else "*"),
            *([f"{show_flops(d.peak('fp32'))}/s"] if medium else []), f"{d.node_size}× {d.inside}",
        )  # fmt: skip
    note = " * runs as fp32: the device has no bf16 unit." if any("bf16" not in d.peaks for d in devices) else ""
    return Group(table, _count(len(devices), "device", note))


def link_table(links: Sequence[Link], *, width: int) -> RenderableType:
    wide = width >= 110
    table = _table("name", *(("title",) if wide else ()), "bandwidth, each way", "latency", "place")
    places = {"inside": "inside a node", "between": "between nodes", "both": "either"}
    for link in links:
        table.add_row(
            link.name, *([link.title] if wide else []), show_bandwidth(link.bandwidth), show_seconds(link.latency),
            places[link.kind],
        )  # fmt: skip
    return Group(table, _count(len(links), "link", " Rates are per device."))


def instance_table(instances: Sequence[Instance], *, width: int) -> RenderableType:
    wide = width >= 110
    table = _table("name", "devices", "network", *(("per device, hour",) if wide else ()), "per hour", "price of")
    for i in instances:
        each, price = i.dollars_per_device_hour, i.dollars_per_hour
        table.add_row(
            i.name, f"{i.count}× {i.device}", show_bandwidth(i.bandwidth),
            *([_dollars(each)] if wide else []), _dollars(price), i.price_date or "–",
        )  # fmt: skip
    return Group(table, _count(len(instances), "instance", " On-demand list prices; network is per device."))


def _dollars(price: float | None) -> str:
    return "–" if price is None else show_dollars(price)


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in headings:
        words = heading in ("name", "title", "devices", "node", "place", "price of")
        table.add_column(heading, justify="left" if words else "right", no_wrap=heading != "title")
    return table


def _count(count: int, what: str, note: str) -> Text:
    return Text(f"\n{count} {what}{'' if count == 1 else 's'}.{note}", style="dim")
