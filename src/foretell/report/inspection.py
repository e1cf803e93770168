"""A captured step in the terminal: its facts, the operators and modules that cost most, its memory over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.forecasting.result import Forecast
from foretell.graph import ITEM_BYTES, Graph
from foretell.report.compiling import fused_section, fused_uses
from foretell.report.findings import peak_place
from foretell.report.memory import MemorySeries, memory_series
from foretell.report.ops import OperatorUse, operators, short_name
from foretell.report.terminal import Bar, caveats, facts_table, section
from foretell.report.tree import Module, module_tree, outline, walk
from foretell.units import or_dash, show_bytes, show_count, show_seconds, show_share

_BLOCKS = " ▁▂▃▄▅▆▇█"
_CHART_ROWS = 6
_MODULE_ROWS = 24
_LEAST_SHARE = 0.002


def inspection(forecast: Forecast, *, top: int, depth: int | None, width: int) -> RenderableType:
    graph = forecast.graph
    device_time = f"device time {show_seconds(forecast.device_time.seconds)} on {forecast.cluster}"
    opened = "the heaviest opened; --depth N opens all alike" if depth is None else f"to depth {depth}"
    return Group(
        Text.assemble((graph.name, "bold"), (f"  {graph.content_hash[:12]}", "dim")),
        facts_table(facts(graph)),
        section("Top operators", _operator_table(operators(forecast)[:top], wide=width >= 100), device_time),
        *([fused_section(forecast, top, wide=width >= 100)] if graph.is_compiled else []),
        section("Modules", _module_table(module_tree(forecast), depth), opened),
        section("Memory over the step", memory_chart(forecast, width=width - 2)),
        *([caveats(graph.caveats)] if graph.caveats else []),
    )


def inspection_dict(forecast: Forecast, *, top: int, depth: int | None) -> dict[str, Any]:
    """What `inspect --json` prints."""
    from foretell import __version__

    graph, trace = forecast.graph, forecast.memory_trace
    return {
        "schema_version": 1,
        "foretell": __version__,
        "workload": graph.name,
        "content_hash": graph.content_hash,
        "cluster": forecast.cluster,
        "ops": len(graph.ops),
        "signatures": len(graph.signatures),
        "training": graph.training,
        "precision": graph.precision.arithmetic,
        "grad_accumulation": graph.grad_accumulation,
        "samples": graph.samples,
        "tokens": graph.tokens,
        "state_values": _state_values(graph),
        "state_bytes": graph.bytes_of("parameter"),
        "facts": graph.facts.to_dict(),
        "provenance": dict(graph.provenance),
        "top_operators": [asdict(use) for use in operators(forecast)[:top]],
        "fused_kernels": [asdict(use) for use in fused_uses(forecast)],
        "modules": [_module_dict(module, level) for level, module in walk(module_tree(forecast), depth)],
        "memory": {
            "peak_allocated": trace.peak_allocated,
            "peak_reserved": trace.peak_reserved,
            "peak_op": trace.peak_op,
            "peak_module": forecast.memory.peak_module,
            "at_peak": dict(trace.at_peak),
        },
        "caveats": [asdict(caveat) for caveat in graph.caveats],
    }


def _module_dict(module: Module, level: int) -> dict[str, Any]:
    return {
        "path": module.path,
        "depth": level,
        "repeat": module.repeat,
        "ops": module.ops,
        "forward_seconds": module.forward,
        "backward_seconds": module.backward,
        "optimizer_seconds": module.optimizer,
        "parameter_bytes": module.parameters,
        "activation_bytes": module.activations,
    }


def facts(graph: Graph) -> Iterator[tuple[str, str]]:
    """What the step is, as (name, value) for a reader."""
    accumulated = f", {graph.grad_accumulation} micro-steps" if graph.grad_accumulation > 1 else ""
    yield "Step", f"{'training' if graph.training else 'inference'} in {graph.precision.arithmetic}{accumulated}"
    sizes = [f"{size:,} {unit}" for size, unit in ((graph.samples, "samples"), (graph.tokens, "tokens")) if size]
    if sizes:
        yield "Batch", " · ".join(sizes)
    yield "Model state", f"{show_count(_state_values(graph))} values, {show_bytes(graph.bytes_of('parameter'))}"
    if optimizer := graph.bytes_of("optimizer"):
        yield "Optimizer state", show_bytes(optimizer)
    runs = sum(op.times for op in graph.ops)
    yield "Ops", f"{runs:,} in a step, {len(graph.signatures):,} distinct"
    if versions := ", ".join(
        f"{name.removeprefix('captured_')} {version}" for name, version in graph.provenance.items()
    ):
        yield "Captured with", versions


def memory_chart(forecast: Forecast, *, width: int) -> RenderableType:
    """Bytes allocated after each op, as columns of blocks, with the phases named below and the peak above."""
    if not forecast.memory_trace.allocated:
        return Text("The step allocates nothing.")
    columns = max(20, width - 12)
    series = memory_series(forecast, columns)
    top = max(series.allocated) or 1
    # A short step still fills the width: its ops are repeated.
    heights = [series.allocated[i * len(series.allocated) // columns] / top for i in range(columns)]
    lines = Text(no_wrap=True)
    for row in reversed(range(_CHART_ROWS)):
        label = show_bytes(top) if row == _CHART_ROWS - 1 else ("0" if row == 0 else "")
        cells = (_BLOCKS[round(min(max(h * _CHART_ROWS - row, 0.0), 1.0) * 8)] for h in heights)
        lines.append(f"{label:>10} ", "dim").append("".join(cells), "yellow").append("\n")
    lines.append(" " * 11 + _phase_line(series, columns), "dim")
    where = f"op {series.peak + 1:,} of {series.ops:,}, in {peak_place(forecast)}"
    peak = f"Peak {show_bytes(series.peak_allocated)} at {where}."
    return Group(lines, Text(peak))


def _phase_line(series: MemorySeries, columns: int) -> str:
    """`├ forward ─┼ backward ─┼ optimizer`, each at its place below the chart."""
    line = ["─"] * columns
    for stretch in series.stretches:
        start, end = (place * columns // series.ops for place in (stretch.start, stretch.end))
        label = stretch.phase + (f" ×{stretch.times}" if stretch.times > 1 else "")
        if start < columns:
            line[start] = "├"
        if end - start >= len(label) + 3:
            line[start + 1 : start + 3 + len(label)] = f" {label} "
    return "".join(line[:columns])


def _operator_table(uses: tuple[OperatorUse, ...], *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False, expand=True)
    table.add_column("operator", overflow="ellipsis", no_wrap=True, ratio=3)
    table.add_column("phase", no_wrap=True)
    for heading in ("calls", "time", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    if wide:
        table.add_column("heaviest call", overflow="ellipsis", no_wrap=True, ratio=4)
    for use in uses:
        where = f"{use.heaviest_module or '–'}  {use.heaviest_shape}"
        table.add_row(
            Text(short_name(use.name)),
            use.phase,
            f"{use.calls:,}",
            show_seconds(use.seconds),
            show_share(use.share),
            Bar(use.share, "cyan"),
            *([Text(where, style="dim")] if wide else []),
        )
    return table


def _module_table(root: Module, depth: int | None) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False, expand=True)
    table.add_column("module", overflow="ellipsis", no_wrap=True, ratio=1)
    for heading in ("time", "share", "parameters", "activations"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = outline(root, _MODULE_ROWS, _LEAST_SHARE) if depth is None else walk(root, depth, _LEAST_SHARE)
    for level, module in rows:
        share = module.seconds / root.seconds if root.seconds else 0.0
        table.add_row(
            Text("  " * level + module_label(module)),
            show_seconds(module.seconds),
            show_share(share),
            or_dash(module.parameters or None, show_bytes),
            or_dash(module.activations or None, show_bytes),
        )
    return table


def module_label(module: Module) -> str:
    if not module.path:
        return "whole step"
    # Children of joined blocks stand for all of them too, but only the joined row shows it.
    return f"{module.name} (×{module.repeat})" if "–" in module.name else module.name


def _state_values(graph: Graph) -> int:
    """Values of the module, buffers among them."""
    item: dict[int, int] = {}
    for tensor in graph.tensors:
        item.setdefault(tensor.storage, ITEM_BYTES[tensor.layout.dtype])
    return sum(s.nbytes // item.get(i, 4) for i, s in enumerate(graph.storages) if s.role == "parameter")
