"""What a worker's step does to its network and processor, drawn from the measured series in bench/data/box."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

SHOWN: Final = ("dp=2@1000", "dp=3@200", "dp=2,servers=1@1000", "dp=2,servers=1@200")
COLOURS: Final = {"sent": "#c2410c", "received": "#1d4ed8"}
WIDE, HIGH, LEFT = 640, 110, 56


def series(path: Path, network: str) -> dict[str, dict[str, Any]]:
    """Setting → the first worker's series of one of its jobs."""
    found: dict[str, dict[str, Any]] = {}
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            setting, name, *_ = row["run"].split("/")
            if name == network and row["rank"] == 0:
                found[setting] = row
    return found


def panel(setting: str, row: Mapping[str, Any], top: int, seconds: float) -> list[str]:
    """Rates of every 5 ms, as a share of the link's; grey where the processor is in use."""
    link = int(setting.split("@")[1]) * 1e6 / 8
    ends = [ms / 1e3 for ms in accumulate(row["ms"])]
    inside = [i for i, end in enumerate(ends) if end <= seconds]
    base, height = top + HIGH - 22, HIGH - 44

    def x(at: float) -> float:
        return LEFT + (WIDE - LEFT - 10) * at / seconds

    parts = [f'<text x="{LEFT}" y="{top + 12}">{setting}: Mbit/s of the link</text>']
    for i in inside:
        begin = ends[i] - row["ms"][i] / 1e3
        used = min(1.0, row["cpu_us"][i] / 1e3 / row["ms"][i] / 0.4)
        if used > 0.25:
            parts.append(f'<rect x="{x(begin):.1f}" y="{base - height}" width="{x(ends[i]) - x(begin):.1f}" height="{height}" '
                         f'fill="#000" fill-opacity="{0.12 * used:.2f}"/>')  # fmt: skip
    for name, colour in COLOURS.items():
        points = " ".join(
            f"{x(ends[i]):.1f},{base - height * min(1.4, row[name][i] / row['ms'][i] * 1e3 / link) / 1.4:.1f}"
            for i in inside
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    for end in (ms / 1e3 for ms in row["steps_end_ms"]):
        if end <= seconds:
            parts.append(f'<path d="M{x(end):.1f},{base}v5" stroke="#000"/>')
    parts.append(f'<path d="M{LEFT},{base}H{WIDE - 10}" stroke="#999"/>')
    parts.append(f'<text x="{LEFT - 34}" y="{base - height / 1.4 + 4:.0f}">{link * 8 / 1e6:.0f}</text>')
    return parts


def picture(found: Mapping[str, Mapping[str, Any]], network: str, seconds: float) -> str:
    """A panel for each setting that is shown, as SVG."""
    shown = [setting for setting in SHOWN if setting in found]
    high = HIGH * len(shown) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{high}" font-family="sans-serif" font-size="11">'
    ]
    for i, setting in enumerate(shown):
        parts += panel(setting, found[setting], i * HIGH, seconds)
    legend = "".join(f'<tspan fill="{colour}"> {name} </tspan>' for name, colour in COLOURS.items())
    parts.append(f'<text x="{LEFT}" y="{high - 8}">{network}, {seconds} s; steps end at the ticks;{legend}'
                 '<tspan fill="#777"> grey: processor in use</tspan></text></svg>')  # fmt: skip
    return "\n".join(parts) + "\n"
