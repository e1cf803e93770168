"""Forecasts of training scripts and what was measured of them on a device, as a table.

Forecasts are those of `foretell predict SCRIPT --on h200 --fake-data`, and need no accelerator. Public scripts run in their
checkouts, as a user would run them.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import foretell
from foretell_bench.checkout import EXAMPLES
from foretell_bench.studies.scripts.jobs import JOBS
from foretell_bench.studies.scripts.public_jobs import PUBLIC_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job's forecast, in seconds and bytes, and what was measured under the same names."""

    step: float
    low: float
    high: float
    allocated: int
    reserved: int
    measured: Mapping[str, float]

    def error(self, name: str) -> float:
        return float(getattr(self, name)) / self.measured[name] - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.measured["step"] <= self.high


def run(
    measured: Path,
    names: Sequence[str],
    on: str,
    save: Path | None,
    checkouts: Path | None = None,
    profile: str | None = None,
) -> None:
    """Print the table of these jobs, or of all that were measured; keep its numbers as they come."""
    known = json.loads(measured.read_text(encoding="utf-8"))
    rows: dict[str, Row] = {}
    print("| job | step predicted (90 % interval) | measured | error | allocated predicted | measured | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    jobs: Iterable[str] = PUBLIC_JOBS if checkouts else JOBS
    for name in names or [name for name in jobs if "step" in known.get(name, {})]:
        asking = partial(of_public, checkouts=checkouts) if checkouts else of_example
        rows[name] = predicted(asking(name), on, known[name], profile)
        print(line(name, rows[name]), flush=True)
        if save:
            save.write_text(json.dumps({job: asdict(row) for job, row in rows.items()}, indent=1), encoding="utf-8")
    print(summary(list(rows.values())))


def of_example(name: str) -> foretell.Script:
    file, arguments = JOBS[name]
    return foretell.Script(path=str(EXAMPLES / "scripts" / file), arguments=tuple(arguments), fake_data=True)


def of_public(name: str, checkouts: Path) -> foretell.Script:
    """The script in its folder, where this process goes: a capture runs where it is called."""
    job = PUBLIC_JOBS[name]
    root = checkouts.absolute() / job.checkout
    os.chdir(root / job.folder)
    os.environ["PYTHONPATH"] = str(root / job.packages)
    return foretell.Script(path=job.script, arguments=job.arguments, fake_data=True)


def predicted(script: foretell.Script, on: str, measured: Mapping[str, float], profile: str | None) -> Row:
    forecast = foretell.forecast(script, on, profile=profile)
    step, memory = forecast.step_time, forecast.memory
    return Row(
        step=step.seconds,
        low=step.low or 0.0,
        high=step.high or 0.0,
        allocated=memory.allocated,
        reserved=memory.reserved,
        measured=measured,
    )


def line(name: str, row: Row) -> str:
    step = f"{row.step * 1e3:.1f} ms ({row.low * 1e3:.1f} – {row.high * 1e3:.1f})"
    cells = (
        f"{step} | {row.measured['step'] * 1e3:.1f} ms | {row.error('step'):+.1%}",
        f"{row.allocated / 2**30:.2f} GiB | {row.measured['allocated'] / 2**30:.2f} GiB | {row.error('allocated'):+.1%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def summary(rows: Sequence[Row]) -> str:
    parts = []
    for name in ("step", "allocated", "reserved"):
        errors = [abs(row.error(name)) for row in rows]
        parts.append(f"{name}: {statistics.mean(errors):.1%} mean, {statistics.median(errors):.1%} median")
    inside = sum(row.inside for row in rows)
    return f"Errors of {len(rows)} jobs: {'; '.join(parts)}. Steps inside their interval: {inside}."
