"""A measured step in the terminal: how it went, where its time goes, what it used, and why to mistrust it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from foretell.errors import GraphFileError
from foretell.forecasting.result import Forecast
from foretell.graph import Graph
from foretell.measure.record import RESOURCES, OpRow, Record, StepRow
from foretell.report.findings import Part
from foretell.report.ops import short_name, show_shape
from foretell.report.terminal import facts_table, grid, parts_table, section
from foretell.units import or_dash, show_bandwidth, show_bytes, show_rate, show_seconds, show_share

_PARTS = ("forward", "backward", "optimizer")
_ON_A_CPU = "the clock around each op"  # of a CPU, which has no kernels to trace
_HEADLINES = {"ok": "measured", "nan-loss": "loss is not finite", "error": "failed"}
_NAMES = {"memory_bandwidth": "memory bandwidth", "network_rx": "network in", "network_tx": "network out"}
_NAME = 32  # characters of a kernel's name
_KERNEL = re.compile(r"^(?:void )?(?:[\w ]+::)*([\w ]+)")  # without return type, namespaces, template and arguments


def measured_dict(record: Record, forecast: Forecast | None = None) -> dict[str, Any]:
    """What `measure --json` prints of a step."""
    answer = {"schema_version": 1, "id": record.step.id, **asdict(record.step)}
    return answer if forecast is None else answer | {"forecast": forecast.to_dict()}


def measured(record: Record, *, top: int = 12, forecast: Forecast | None = None) -> RenderableType:
    step = record.step
    parts: list[RenderableType] = [_answer(step)]
    if shares := _shares(step):
        parts.append(section("Where the step goes", parts_table(shares, step.step_seconds or 0.0, show_seconds)))
    if step.device_active_seconds is not None:
        parts.append(section("Resources over the step", _resources(record)))
    if record.ops and top:
        parts.append(section("Top ops", _ops(record, top), f"of {len(record.ops):,}, by device time"))
    if forecast is not None:
        parts.append(section("Forecast and measured", comparison(step, forecast), f"{forecast.model}"))
    return Group(*parts, Padding(Text(_provenance(step), style="dim"), (1, 0, 0, 0)))


def collectives_table(records: Sequence[Record]) -> RenderableType:
    """A row for each kind, group and size."""
    table = grid("Collective", "Ranks", "Apart", "Bytes", "Time", "p10 – p90", "Bytes/s", left=("Collective",))
    for step in (record.step for record in records):
        settings = {name: int(value) for name, value in json.loads(step.settings).items()}
        seconds = step.step_seconds or 0.0
        group = f"{settings['ranks']}", f"{settings['stride']}"
        spread = _span(step.step_low or seconds, step.step_high or seconds)
        rate = or_dash(settings["bytes"] / seconds if seconds else None, show_bandwidth)
        table.add_row(step.source, *group, show_bytes(settings["bytes"]), show_seconds(seconds), spread, rate)
    step = records[0].step
    return section("Collectives", table, f"{step.cluster} over {step.backend}")


def measured_ranks(records: Sequence[Record]) -> RenderableType:
    """The slowest rank in full, and a row for each."""
    table = _grid("rank", "step", "p10 – p90", "collectives", "sent", "received", "peak memory", "outcome")
    for step in (record.step for record in records):
        percentiles = "–" if step.step_low is None or step.step_high is None else _span(step.step_low, step.step_high)
        seconds, communication = (or_dash(v, show_seconds) for v in (step.step_seconds, step.communication_seconds))
        amounts = (or_dash(v, show_bytes) for v in (step.sent_bytes, step.received_bytes, step.peak_allocated))
        table.add_row(str(step.rank), seconds, percentiles, communication, *amounts, step.outcome)
    slowest = max(records, key=lambda record: record.step.step_seconds or 0.0)
    how = f"{records[0].step.plan} over {records[0].step.backend}"
    return Group(measured(slowest), section("Ranks", table, how))


def comparison(step: StepRow, forecast: Forecast) -> Table:
    """What was forecast for the step beside what was measured."""
    memory = forecast.memory
    table = _grid("", "forecast", "measured", "error")
    rows: list[tuple[str, float, float | None, Callable[[float], str]]] = [
        ("step", forecast.step_time.seconds, step.step_seconds, show_seconds),
        ("device", forecast.device_time.seconds, step.device_seconds, show_seconds),
        ("host", forecast.host_time.seconds, step.host_seconds, show_seconds),
        ("memory, allocated", memory.allocated, step.peak_allocated, show_bytes),
        ("memory, reserved", memory.reserved, step.peak_reserved, show_bytes),
        ("memory, outside the allocator", memory.context, step.used_outside, show_bytes),
    ]
    for name, predicted, found, show in rows:
        error = "–" if not found else f"{predicted / found - 1:+.1%}".replace("%", " %").replace("-", "−")
        table.add_row(name, show(predicted), or_dash(found, show), error)
    return table


def _answer(step: StepRow) -> RenderableType:
    marks = ((Text("Mark", style="bold yellow"), Text(mark, style="yellow")) for mark in step.marks)
    facts = facts_table([*_facts(step), *marks])
    ran = step.outcome == "ok"
    colour = ("yellow" if step.marks else "green") if ran else "red"
    words = _HEADLINES.get(step.outcome, step.outcome.replace("-", " "))
    headline = Text.assemble((f" {words.upper()} ", f"bold reverse {colour}"), f"  {step.error}" if step.error else "")
    return Panel(
        Group(headline, "", facts), title=_title(step), title_align="left", border_style=colour, padding=(1, 2)
    )


def _title(step: StepRow) -> Text:
    settings = [f"{name}={value}" for name, value in json.loads(step.settings or "{}").items()]
    kind = f"{'training' if step.training else 'inference'} {step.precision}" if step.precision else ""
    question = " · ".join(part for part in (" ".join(settings), kind, step.plan) if part)
    where = step.device or step.device_name or "no device"
    return Text.assemble(
        (step.workload or step.source, "bold"), f" on {where}", (f" · {question}" if question else "", "dim")
    )


def _facts(step: StepRow) -> Iterator[tuple[str, str]]:
    seconds = step.step_seconds
    if seconds is not None:
        text = show_seconds(seconds)
        if step.step_low is not None and step.step_high is not None:
            text += f" ({_span(step.step_low, step.step_high)}: p10 – p90 of {step.repetitions} repetitions)"
        yield "Step time", text
        often = step.grad_accumulation * step.world_size / seconds if seconds else 0.0
        rates = ((step.samples, "samples/s"), (step.tokens, "tokens/s"))
        yield "Throughput", " · ".join(f"{show_rate(count * often)} {what}" for count, what in rates if count)
        yield "Bound by", _bound(step)
    device = _words(
        (step.device_seconds, "busy", show_seconds),
        (step.device_idle_seconds, "idle", show_seconds),
        (step.communication_seconds or None, "in collectives", show_seconds),
        (step.kernels, "kernels", "{:,}".format),
        (step.unattributed_seconds or None, "of kernels that no op launched", show_seconds),
    )
    yield "Device", device
    if step.kernels is not None or step.host_seconds != step.issue_seconds:
        yield "Host", _words((step.host_seconds, "to issue the step", show_seconds))
    memory = _words(
        (step.peak_allocated, "allocated at the peak", show_bytes),
        (step.peak_reserved, "reserved", show_bytes),
        (step.resting_allocated, "between steps", show_bytes),
        (step.used_outside, "outside the allocator", show_bytes),
    )
    yield "Memory", memory
    if step.sent_bytes or step.received_bytes:
        sent, received = (step.sent_bytes, "sent", show_bytes), (step.received_bytes, "received per step", show_bytes)
        yield "Network", _words(sent, received)
    watts, joules = (step.power_watts, "W", "{:.0f}".format), (step.energy_joules, "J per step", "{:.3g}".format)
    yield "Power", _words(watts, joules)


def _bound(step: StepRow) -> str:
    if not step.bound or not step.step_seconds:
        return ""
    if step.kernels is None:
        return "the CPU, which is host and device in one"
    share = (step.device_seconds or 0.0) / step.step_seconds
    if step.bound == "device":
        return f"the device, which computes {show_share(min(share, 1.0))} of the step"
    return f"the host: the device waits for it {show_share(max(0.0, 1 - share))} of the step"


def _shares(step: StepRow) -> list[Part]:
    """The parts of a step; those of a step of the user's own are not known."""
    found = [(part, getattr(step, f"{part}_seconds")) for part in _PARTS]
    return [Part(key=part, label=part, amount=seconds) for part, seconds in found if seconds is not None]


def _resources(record: Record) -> Table:
    """The twelve numbers, and what counted them."""
    step = record.step
    counters = {series.resource: series.counter for series in reversed(record.series)}  # the first of a resource counts
    table = _grid("resource", "idle", "active", "peak", "counter")
    for resource in RESOURCES:
        idle, active = (
            or_dash(getattr(step, f"{resource}_{what}_seconds"), show_seconds) for what in ("idle", "active")
        )
        peak = getattr(step, f"{resource}_peak")
        usual = _ON_A_CPU if resource == "device" else ""
        counter = "not counted here" if peak is None else counters.get(resource, usual)
        show = show_bandwidth if resource.startswith("network") else show_share
        name = _NAMES.get(resource, resource)
        table.add_row(name, idle, active, or_dash(peak, show), Text(counter, style="dim"))
    return table


def _ops(record: Record, top: int) -> Table:
    graph = None
    if record.graph is not None:
        with contextlib.suppress(GraphFileError):  # a graph of a newer Foretell: ops are shown without their shapes
            graph = Graph.from_bytes(record.graph.file, name=record.graph.name)
    times = [op.times for op in graph.ops] if graph else [1] * len(record.ops)
    spent = {op.op: (op.device_seconds or 0.0) * times[op.op] for op in record.ops}
    whole = sum(spent.values())
    traced = any(op.kernels for op in record.ops)
    table = _grid("op", "operator", "phase", "shape", "device", "share", *(["kernels"] if traced else []))
    for op in sorted(record.ops, key=lambda op: -spent[op.op])[:top]:
        shape = show_shape(graph.ops[op.op]) if graph else ""
        often = f" ×{times[op.op]}" if times[op.op] > 1 else ""
        name, seconds = short_name(op.target.rpartition(".")[0]), show_seconds(op.device_seconds or 0.0) + often
        share = show_share(spent[op.op] / whole) if whole else "–"
        kernels = [Text(_kernels(op), style="dim", no_wrap=True, overflow="ellipsis")] if traced else []
        table.add_row(str(op.op), name, op.phase, shape, seconds, share, *kernels)
    return table


def _kernels(op: OpRow) -> str:
    plain = (name.replace("(anonymous namespace)::", "") for name in op.kernels)
    names = dict.fromkeys(match[1].strip() if (match := _KERNEL.match(name)) else name for name in plain)
    return ", ".join(name if len(name) <= _NAME else name[: _NAME - 1] + "…" for name in names)


def _provenance(step: StepRow) -> str:
    clock = f" at {step.sm_clock_hz / 1e6:,.0f} MHz" if step.sm_clock_hz else ""
    warmth = f", {step.temperature_celsius:.0f} °C" if step.temperature_celsius else ""
    named = {"torch": step.torch, "CUDA": step.cuda, "cuDNN": step.cudnn, "driver": step.driver, "Python": step.python}
    versions = [f"{name} {value}" for name, value in named.items() if value]
    cores = f" ({step.host_cores} cores)" if step.host_cores else ""
    host = f"{step.host_cpu}{cores}" if step.host_cpu else ""
    commit = f" {step.commit}" if step.commit else ""
    foretell = f"foretell {step.foretell}{commit}" if step.foretell else ""
    device = f"{step.device_name}{clock}{warmth}" if step.device or clock else ""
    return " · ".join(part for part in (device, host, *versions, foretell, step.date, f"id {step.id}") if part)


def _span(low: float, high: float) -> str:
    return f"{show_seconds(low)} – {show_seconds(high)}"


def _words(*facts: tuple[float | None, str, Callable[[float], str]]) -> str:
    return " · ".join(f"{show(value)} {what}" for value, what, show in facts if value is not None)


def _grid(*headings: str) -> Table:
    words = ("", "operator", "phase", "shape", "resource", "counter", "kernels", "outcome")
    return grid(*headings, left=words, wraps=("counter", "kernels"))
