"""What stands beside a forecast: how it uses its resources over the step, and what a published system says of the same step.

The twelve numbers are Driple's: idle, active and peak of device, memory bandwidth, network in and network out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from foretell.forecasting.result import Forecast
from foretell.report.resources import Series, resource_series
from foretell.report.terminal import grid, section
from foretell.units import or_dash, show_bandwidth, show_bytes, show_seconds, show_share

_NAMES: Final = {"device": "device", "memory_bandwidth": "memory bandwidth", "network_rx": "network in",
                 "network_tx": "network out"}  # fmt: skip
_DRAWN: Final = {"device": "device", "memory_bandwidth": "memory", "network_rx": "network", "network_tx": "network"}
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_POINTS: Final = 32
_TARGETS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "step_time": ("step", show_seconds), "device_time": ("device", show_seconds), "host_time": ("host", show_seconds),
    "job_time": ("job", show_seconds), "memory": ("memory", show_bytes),
}  # fmt: skip


def resources_section(forecast: Forecast, values: Mapping[str, float] | None = None, by: str = "") -> RenderableType:
    """The twelve numbers of the forecast with its simulated series, and below each what a method says of it."""
    series = {each.label: each for each in _series(forecast, _POINTS)}
    table = grid("resource", "over the step", "idle", "active", "peak", left=("resource", "over the step"))
    for resource, name in _NAMES.items():
        use, drawn = getattr(forecast.resources, resource), series.get(_DRAWN[resource])
        show = show_bandwidth if resource.startswith("network") else show_share
        line = _line(drawn.values) if drawn is not None else ""
        table.add_row(name, line, show_seconds(use.idle_seconds), show_seconds(use.active_seconds), show(use.peak))
        if values and any(key.startswith(f"{resource}_") for key in values):
            idle, active = (
                or_dash(values.get(f"{resource}_{what}_seconds"), show_seconds) for what in ("idle", "active")
            )
            table.add_row(Text(f"  {by}", style="dim"), "", idle, active, or_dash(values.get(f"{resource}_peak"), show))
    return section("Resources over the step", table, "of the slowest rank")


def series_dict(forecast: Forecast) -> dict[str, list[float]]:
    """Resource → how much of its peak is used, in equal parts of the step."""
    series = {each.label: each for each in _series(forecast, 160)}
    return {name: [round(v, 4) for v in series[label].values] for name, label in _DRAWN.items() if label in series}


def method_section(forecast: Forecast, name: str, values: Mapping[str, float], why: str) -> RenderableType:
    """A published system's answer beside the forecast's."""
    if not values:
        return section(name, Text(f"no answer: {why}"))
    ours = {"step_time": forecast.step_time.seconds, "device_time": forecast.device_time.seconds,
            "host_time": forecast.host_time.seconds, "memory": float(forecast.memory.allocated)}  # fmt: skip
    table: Table = grid("", name, "Foretell", left=("",))
    for target, (label, show) in _TARGETS.items():
        if target in values:
            table.add_row(label, show(values[target]), or_dash(ours.get(target), show))
    return section(f"The same step by {name}", table)


def method_dict(name: str, values: Mapping[str, float], why: str) -> dict[str, Any]:
    return {"name": name, "values": dict(values), "why": why}


def _series(forecast: Forecast, points: int) -> Sequence[Series]:
    return resource_series(forecast, points) if forecast.timeline.spans else ()


def _line(values: Sequence[float]) -> str:
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(top, max(value > 0, round(value * top)))] for value in values)
