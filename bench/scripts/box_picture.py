"""What a worker's step does to its network and processor, drawn from the measured series in bench/data/box.

python bench/scripts/box_picture.py [--network transformer-128x3] [--out bench/notes/methods/driple-series.svg]
"""

from __future__ import annotations

import argparse
import gzip
import json
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parents[1]
SHOWN: Final = ("dp=2@1000", "dp=3@200", "dp=2,servers=1@1000", "dp=2,servers=1@200")
COLOURS: Final = {"sent": "#c2410c", "received": "#1d4ed8"}
WIDE, HIGH, LEFT = 640, 110, 56


def series(network: str) -> dict[str, dict[str, Any]]:
    """Setting → the first worker's series of one of its jobs."""
    found: dict[str, dict[str, Any]] = {}
    with gzip.open(HERE / "data" / "box" / "series.jsonl.gz", "rt") as file:
        for line in file:
            row = json.loads(line)
            setting, name, *_ = row["run"].split("/")
            if name == network and row["rank"] == 0:
                found[setting] = row
    return found


def panel(setting: str, row: dict[str, Any], top: int, seconds: float) -> list[str]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="transformer-128x3")
    parser.add_argument("--seconds", type=float, default=1.2)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "accuracy" / "methods" / "driple-series.svg")
    options = parser.parse_args()
    found = series(options.network)
    shown = [setting for setting in SHOWN if setting in found]
    high = HIGH * len(shown) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{high}" font-family="sans-serif" font-size="11">'
    ]
    for i, setting in enumerate(shown):
        parts += panel(setting, found[setting], i * HIGH, options.seconds)
    legend = "".join(f'<tspan fill="{colour}"> {name} </tspan>' for name, colour in COLOURS.items())
    parts.append(f'<text x="{LEFT}" y="{high - 8}">{options.network}, {options.seconds} s; steps end at the ticks;{legend}'
                 '<tspan fill="#777"> grey: processor in use</tspan></text></svg>')  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
