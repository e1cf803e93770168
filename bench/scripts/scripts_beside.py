"""Forecasts of training scripts beside what `scripts_on_device.py` measured of them, as a table.

    python bench/scripts/scripts_beside.py MEASURED.json [--on h200] [--forecasts OUT.json] [NAME …]

Forecasts are those of `foretell predict SCRIPT --on h200 --fake-data`, and need no accelerator.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from scripts_on_device import EXAMPLES, JOBS

import foretell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--on", default="h200")
    parser.add_argument("--forecasts", type=Path, help="where predictions are kept")
    options = parser.parse_args()
    measured = json.loads(options.measured.read_text(encoding="utf-8"))
    rows = {}
    print("| job | step predicted (90 % interval) | measured | error | allocated predicted | measured | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in options.names or [name for name in JOBS if "step" in measured.get(name, {})]:
        rows[name] = predicted(name, options.on) | {"measured": measured[name]}
        print(line(name, rows[name]), flush=True)
        if options.forecasts:
            options.forecasts.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(summary(list(rows.values())))


def predicted(name: str, on: str) -> dict[str, float]:
    script, arguments = JOBS[name]
    asked = foretell.Script(path=str(EXAMPLES / script), arguments=tuple(arguments), fake_data=True)
    forecast = foretell.forecast(asked, on)
    step = forecast.step_time
    return {
        "step": step.seconds,
        "low": step.low or 0.0,
        "high": step.high or 0.0,
        "allocated": forecast.memory.allocated,
        "reserved": forecast.memory.reserved,
    }


def error(row: dict[str, dict[str, float]], what: str) -> float:
    return row[what] / row["measured"][what] - 1  # type: ignore[operator]


def line(name: str, row: dict[str, float]) -> str:
    took = row["measured"]
    step = f"{row['step'] * 1e3:.1f} ms ({row['low'] * 1e3:.1f} – {row['high'] * 1e3:.1f})"
    cells = (
        f"{step} | {took['step'] * 1e3:.1f} ms | {error(row, 'step'):+.1%}",
        f"{row['allocated'] / 2**30:.2f} GiB | {took['allocated'] / 2**30:.2f} GiB | {error(row, 'allocated'):+.1%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def summary(rows: list[dict[str, float]]) -> str:
    parts = []
    for what in ("step", "allocated", "reserved"):
        errors = [abs(error(row, what)) for row in rows]
        parts.append(f"{what}: {statistics.mean(errors):.1%} mean, {statistics.median(errors):.1%} median")
    inside = sum(row["low"] <= row["measured"]["step"] <= row["high"] for row in rows)
    return f"Errors of {len(rows)} jobs: {'; '.join(parts)}. Steps inside their interval: {inside}."


if __name__ == "__main__":
    main()
