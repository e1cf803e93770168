"""`/devices`: hardware side by side, and hardware to add."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from foretell import hardware
from foretell.errors import CatalogError, ForetellError
from foretell.hardware import Cluster, Device
from foretell.precision import UNITS
from foretell.report.page import bar, section, table
from foretell.serve.access.keys import Caller
from foretell.serve.listener.callers import Admin, Reader, ServiceDep
from foretell.serve.listener.pages.forms import Form, read_form
from foretell.serve.listener.pages.frame import choose, field, page, trouble
from foretell.serve.problems import Problem, of_error
from foretell.serve.requests import Text
from foretell.units import or_dash, show_bandwidth, show_bytes, show_dollars, show_flops

router = APIRouter()
_MAX_COMPARED: Final = 6  # side by side
_SHOWN: Final = 30  # until all are asked for
Sort = Literal["bf16", "fp32", "memory", "bandwidth", "price", "name"]
_COLUMNS: Final[Mapping[str, Sort | None]] = {
    "Device": "name", "Memory": "memory", "Bandwidth": "bandwidth", "bf16": "bf16", "fp32": "fp32", "Node": None,
    "Per hour": "price",
}  # fmt: skip
_KEYS: Final[Mapping[Sort, Callable[[Device], Any]]] = {
    "bf16": lambda d: (-d.peak("bf16"), -d.bandwidth),
    "fp32": lambda d: -d.peak("fp32"),
    "memory": lambda d: -d.memory_bytes,
    "bandwidth": lambda d: -d.bandwidth,
    "price": lambda d: _price(d) or float("inf"),
    "name": lambda d: (d.vendor, d.title),
}
_TEXTS: Final = {
    "name": ("Name", "my-gpu", "Lower-case letters, digits, . _ -"),
    "title": ("Title", "My GPU", ""),
    "vendor": ("Vendor", "NVIDIA", ""),
    "architecture": ("Architecture", "Ada", "Hopper, Ada, CDNA3, …"),
    "size": ("Memory", "48 GiB", ""),
    "bandwidth": ("Its bandwidth", "864 GB/s", ""),
    "l2": ("Last cache", "96 MiB", ""),
    "fp32": ("fp32 peak", "91.6 TFLOP/s", "Dense products"),
    "bf16": ("bf16 peak", "362 TFLOP/s", "Empty: it has no units for it"),
    "fp16": ("fp16 peak", "362 TFLOP/s", ""),
    "units": ("Units", "142", "SMs, CUs or cores"),
    "clock": ("Clock, MHz", "2520", ""),
    "watts": ("Power, watts", "350", ""),
    "node": ("In a node", "8", "Devices that usually share a server"),
    "source": ("Source", "NVIDIA datasheet, 2026", "Where these numbers are from"),
}
_OPTIONAL: Final = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which devices are shown, in which order; its fields are those of the address."""

    find: str = ""
    sort: Sort = "bf16"
    all: bool = False
    compare: tuple[str, ...] = ()

    def address(self, **changed: Any) -> str:
        words = asdict(replace(self, **changed))
        return f"/devices?{escape(urlencode({name: value for name, value in words.items() if value}, doseq=True))}"

    def devices(self) -> list[Device]:
        """With every word in what is known of them, those that are ticked and one's own first."""
        own, words = hardware.own_devices(), self.find.lower().split()
        found = [d for d in hardware.devices() if d.name in self.compare or all(word in _about(d) for word in words)]
        found.sort(key=_KEYS[self.sort])
        return sorted(found, key=lambda d: (d.name not in self.compare, d.name not in own))


@router.get("/devices")
def devices(
    caller: Reader,
    compare: Annotated[list[Text] | None, Query(max_length=_MAX_COMPARED)] = None,
    find: Text = "",
    sort: Sort = "bf16",
    all: bool = False,
) -> Response:
    return _page(caller, Listing(find=find, sort=sort, all=all, compare=tuple(compare or ())))


@router.post("/devices")
async def add(request: Request, service: ServiceDep, caller: Admin) -> Response:
    """A new device of the caller's team."""
    form = await read_form(request)
    try:
        made = await run_in_threadpool(lambda: service.hardware.add(caller.team, form.text("name"), _toml(form)))
    except ForetellError as error:
        problem = of_error(CatalogError(str(error)))
        return await run_in_threadpool(lambda: _page(caller, Listing(), form, problem))
    return RedirectResponse(f"/devices?compare={made.name}", 303)


def _page(caller: Caller, listing: Listing, form: Form | None = None, problem: Problem | None = None) -> Response:
    compared = [hardware.device(name) for name in listing.compare]
    body = (
        '<h1>Devices</h1><p class="soft">What forecasts can be asked for. Tick some to see them side by side.</p>'
        + (trouble(problem) if problem else "")
        + (_side_by_side(compared) if compared else "")
        + f'<form method="get" action="/devices">{_search(listing)}{_catalog(listing)}'
        + '<p class="go sticky"><button>Compare</button></p></form>'
        + (_new(form) if caller.may("admin") else "")
    )
    return page("Devices", body, caller=caller, here="/devices", status=problem.status if problem else 200)


def _price(device: Device) -> float | None:
    return Cluster.parse(device.name).dollars_per_hour


def _about(device: Device) -> str:
    return f"{device.name} {device.title} {device.vendor} {device.architecture}".lower()


def _search(listing: Listing) -> str:
    """Finds while one types; without scripts, by the button."""
    again = (
        'hx-get="/devices" hx-trigger="input changed delay:250ms, search" hx-include="closest form" hx-target="#catalog" '
        'hx-select="#catalog" hx-swap="outerHTML" hx-push-url="true"'
    )
    box = f'<input type="search" name="find" value="{escape(listing.find)}" maxlength="200" placeholder="hopper 80" {again}>'
    kept = f'<input type="hidden" name="sort" value="{listing.sort}">'
    return field("Find", box, "Words of its name, its vendor or its architecture.") + kept


def _catalog(listing: Listing) -> str:
    """One table to sort by a click on a title."""
    found, own = listing.devices(), hardware.own_devices()
    shown = found if listing.all else found[:_SHOWN]
    titles = [_title(name, by, listing) for name, by in _COLUMNS.items()]
    rows = [(_tick(d, listing.compare, d.name in own), *_facts(d)) for d in shown]
    wide = tuple(titles[list(_COLUMNS).index(name)] for name in ("fp32", "Node", "Bandwidth"))
    more = ""
    if len(shown) < len(found):
        more = f'<p><a href="{listing.address(all=True)}">Show all {len(found)}</a></p>'
    none = "" if found else '<p class="empty">None has all of these words.</p>'
    counted = f'<p class="soft" role="status">{len(found)} of {len(hardware.devices())} devices.</p>'
    return f'<div id="catalog">{counted}{table(titles, rows, words=(titles[5],), wide=wide)}{none}{more}</div>'


def _title(name: str, by: Sort | None, listing: Listing) -> str:
    if by is None or by == listing.sort:
        return f"{name} ▾" if by else name
    return f'<a href="{listing.address(sort=by)}">{name}</a>'


def _tick(device: Device, ticked: Sequence[str], own: bool) -> str:
    mark = " checked" if device.name in ticked else ""
    whose = "your own, " if own else ""
    return (
        f'<label class="tick"><input type="checkbox" name="compare" value="{escape(device.name)}"{mark}>'
        f"<span>{escape(device.title)}<small>{whose}{escape(device.name)}</small></span></label>"
    )


def _facts(d: Device) -> tuple[str, ...]:
    return (
        show_bytes(d.memory_bytes), show_bandwidth(d.bandwidth), show_flops(d.peak("bf16")) + "/s",
        show_flops(d.peak("fp32")) + "/s", f"{d.node_size} × {escape(d.inside)}",
        or_dash(_price(d), show_dollars),
    )  # fmt: skip


def _side_by_side(compared: list[Device]) -> str:
    """A row for each fact, bars to the largest."""
    facts: dict[str, tuple[list[float], Callable[[float], str]]] = {
        "Memory": ([d.memory_bytes for d in compared], show_bytes),
        "Bandwidth": ([d.bandwidth for d in compared], show_bandwidth),
        **{f"{t}, per second": ([d.peaks.get(t, 0.0) for d in compared], show_flops) for t in UNITS},
        "Power, W": ([d.power_watts for d in compared], lambda watts: f"{watts:,.0f}"),
        "$ per hour": ([_price(d) or 0.0 for d in compared], show_dollars),
    }
    rows = [
        (escape(name), *(f"{show(v)}{bar(v / max(values))}" if v else "–" for v in values))
        for name, (values, show) in facts.items()
        if max(values)
    ]
    titles = ("", *(f'<a href="/?on={escape(d.name)}">{escape(d.title)}</a>' for d in compared))
    return section("Side by side", "A bar is a share of the largest in its row.", table(titles, rows))


def _new(form: Form | None) -> str:
    def control(name: str, hint: str) -> str:
        value = form.text(name) if form else ""
        required = "" if name in _OPTIONAL else " required"
        return f'<input name="{name}" value="{escape(value)}" placeholder="{escape(hint)}" maxlength="200"{required}>'

    fields = "".join(field(shown, control(name, hint), note) for name, (shown, hint, note) in _TEXTS.items())
    inside = {link.name: link.title for link in hardware.links() if link.kind != "between"}
    between = {link.name: link.title for link in hardware.links() if link.kind != "inside"}
    hosts = {host.name: host.title for host in hardware.hosts()}
    fields += field("Link inside a node", choose("inside", inside)) + field("Between nodes", choose("between", between))
    fields += field("Host", choose("host", hosts))
    return (
        f'<details{" open" if form else ""}><summary>Add hardware</summary><form class="ask" method="post" action="/devices" '
        f'hx-boost="true"><div class="row">{fields}</div><div class="go"><button>Add it</button></div></form></details>'
    )


def _toml(form: Form) -> str:
    """The catalog's file. Values are quoted as JSON strings, which TOML reads alike."""

    def quoted(name: str) -> str:
        return json.dumps(form.text(name), ensure_ascii=True)

    def count(name: str) -> str:
        return f"{form.number(name) or 0:g}"

    peaks = "\n".join(f"{name} = {quoted(name)}" for name in ("fp32", *_OPTIONAL) if form.text(name))
    source = f"source = {quoted('source')}"
    return (
        f'title = {quoted("title")}\nvendor = {quoted("vendor")}\nkind = "gpu"\narchitecture = {quoted("architecture")}\n\n'
        f"[memory]\nsize = {quoted('size')}\nbandwidth = {quoted('bandwidth')}\nl2 = {quoted('l2')}\n{source}\n\n"
        f"[peaks]\n{peaks}\n{source}\n\n"
        f"[chip]\nunits = {form.count('units') or 0}\nclock_mhz = {count('clock')}\npower_watts = {count('watts')}\n{source}\n\n"
        f"[node]\nsize = {form.count('node') or 0}\ninside = {quoted('inside')}\nbetween = {quoted('between')}\n"
        f"host = {quoted('host')}\n{source}\n"
    )
