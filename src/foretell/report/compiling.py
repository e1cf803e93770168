"""Compiled steps: what compiling gains over the eager step, and the kernels that the compiler writes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretell.forecasting.compile_gain import CompileGain, Ratio
from foretell.forecasting.result import Forecast
from foretell.graph import Op
from foretell.graph.operators import FUSED
from foretell.report.findings import op_seconds, show_duration
from foretell.report.ops import short_name
from foretell.report.terminal import Bar, facts_table, grid, section
from foretell.units import Bytes, Seconds, show_bytes, show_count, show_seconds, show_share

GAIN_HEADS: Final = ("Eager step", "Speed-up", "Memory", "Compiling takes")
_BLOCK: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")  # the number of a repeated block, in a module's name
_OVERLOAD: Final = re.compile(r"\.(default|Tensor|Scalar|dim_IntList|int|self|using_ints|start_Tensor)$")


def gain_section(gains: Mapping[str, CompileGain]) -> RenderableType:
    """By question: one in words, several as a table."""
    if len(gains) == 1:
        (gain,) = gains.values()
        return section("Compiled, beside the eager step", facts_table(_gain_words(gain)))
    table = grid("", *GAIN_HEADS, left=("",), wraps=("",))
    for name, gain in gains.items():
        table.add_row(name, *gain_figures(gain))
    return section("Compiled, beside the eager step", table)


def gain_figures(gain: CompileGain) -> tuple[str, ...]:
    return (
        show_seconds(gain.eager_step_time.seconds),
        show_ratio(gain.speed_up),
        show_change(gain.memory_change),
        show_seconds(gain.compile_time.seconds),
    )


def _gain_words(gain: CompileGain) -> Iterator[tuple[str, str]]:
    yield "Eager step", show_duration(gain.eager_step_time)
    yield "Speed-up", show_ratio(gain.speed_up)
    eager = gain.eager.memory
    more = "" if eager.fits else "; the eager step does not fit"
    yield "Memory", f"{show_change(gain.memory_change)} than {show_bytes(eager.total)}{more}"
    yield "Fused", f"{gain.fused_kernels:,} kernels a step, {gain.different_kernels:,} of them different"
    pays = "never pays" if gain.steps_to_pay is None else f"pays after {show_count(gain.steps_to_pay)} steps"
    yield "Compiling", f"{show_duration(gain.compile_time)}, once, on one thread; {pays}"


def show_ratio(ratio: Ratio) -> str:
    """`1.35× (1.20 to 1.52)`."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}×"
    return f"{ratio.value:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"


def show_change(change: Bytes) -> str:
    return f"{show_bytes(abs(change))} {'more' if change > 0 else 'less'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedUse:
    """All calls of kernels of one kind that fuse the same operators in modules of one name, but for numbers of blocks."""

    kind: str  # pointwise, reduction, …
    phase: str
    calls: int
    seconds: Seconds
    share: float  # of the device time
    traffic: Bytes  # that all calls read and write
    operators: tuple[str, ...]
    modules: tuple[str, ...]


def fused_uses(forecast: Forecast) -> tuple[FusedUse, ...]:
    """The most expensive first."""
    seconds = op_seconds(forecast)
    total = sum(seconds)
    groups: dict[tuple[str, str, str, str], list[tuple[Op, Seconds]]] = defaultdict(list)
    for op, taken in zip(forecast.graph.ops, seconds, strict=True):
        if op.signature.name == FUSED:
            key = op.target, op.phase, str(op.signature.argument("of", "")), _BLOCK.sub("*", op.module)
            groups[key].append((op, taken))
    uses = [_use(*key[:3], calls, total) for key, calls in groups.items()]
    return tuple(sorted(uses, key=lambda use: (-use.seconds, -use.traffic, use.operators)))


def _use(target: str, phase: str, of: str, calls: Sequence[tuple[Op, Seconds]], total: Seconds) -> FusedUse:
    spent = sum(seconds for _, seconds in calls)
    return FusedUse(
        kind=target.removeprefix(f"{FUSED}."),
        phase=phase,
        calls=sum(op.times for op, _ in calls),
        seconds=spent,
        share=spent / total if total else 0.0,
        traffic=sum(op.times * int(str(op.signature.argument("traffic", 0))) for op, _ in calls),
        operators=tuple(dict.fromkeys(_short(name) for name in of.split())),
        modules=tuple(dict.fromkeys(op.module for op, _ in calls)),
    )


def _short(operator: str) -> str:
    """`convert_element_type` for `prims.convert_element_type.default`."""
    return _OVERLOAD.sub("", short_name(operator).removeprefix("prims."))


def fused_section(forecast: Forecast, top: int, *, wide: bool) -> RenderableType:
    uses = fused_uses(forecast)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False, expand=True)
    table.add_column("fused operators", overflow="ellipsis", no_wrap=True, ratio=4)
    table.add_column("modules", overflow="ellipsis", no_wrap=True, ratio=3)
    for heading in ("kind", "phase") if wide else ():
        table.add_column(heading, no_wrap=True)
    for heading in ("calls", "time", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for use in uses[:top]:
        table.add_row(
            Text(", ".join(use.operators)),
            Text(show_modules(use.modules)),
            *((use.kind.replace("_", " "), use.phase) if wide else ()),
            f"{use.calls:,}",
            show_seconds(use.seconds),
            show_share(use.share),
            Bar(use.share, "cyan"),
        )
    calls, share = sum(use.calls for use in uses), sum(use.share for use in uses)
    note = f"{calls:,} launches, {show_share(share)} of the device time"
    return Group(section("Fused kernels", table, note))


def show_modules(modules: Sequence[str]) -> str:
    """`layers.*.norm (×12)` for the same part of repeated blocks."""
    if not modules or modules == ("",):
        return "–"
    name = modules[0] if len(modules) == 1 else _BLOCK.sub("*", modules[0])
    return name + (f" (×{len(modules)})" if len(modules) > 1 else "")
