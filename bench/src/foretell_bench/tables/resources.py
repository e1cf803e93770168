"""`foretell bench resources`: memory of measured steps, and the figures of them that the model ships with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

import foretell
from foretell.cost.accuracy import FILE, Accuracy
from foretell.cost.folder import seal
from foretell.errors import InputError
from foretell.store.store import Store
from foretell.units import Bytes
from foretell_bench.graphs import Say, quiet
from foretell_bench.tables import published
from foretell_bench.tables.figures import Figure

_QUARTILE: Final = NormalDist().inv_cdf(0.75)  # a median error is so many standard deviations
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step of one device: what was predicted and what it took."""

    source: str
    settings: str
    allocated: tuple[Bytes, Bytes]  # predicted, measured
    reserved: tuple[Bytes, Bytes]
    context: Bytes  # what the device's driver takes beside

    @property
    def error(self) -> float:
        """Of its total: what was predicted over what was measured, less one."""
        predicted, measured = (nbytes + self.context for nbytes in self.reserved)
        return predicted / measured - 1


def run(store: Path, device: str = "h200", say: Say = quiet) -> list[MeasuredStep]:
    """Every plain step that a store has of a device. Memory does not depend on a cost model, so the quickest prices it."""
    kept = Store(store)
    rows = [
        r for r in kept.steps(f"device = '{device}'") if r.kind == "step" and r.outcome == "ok" and r.world_size == 1
    ]
    steps = []
    for number, row in enumerate(rows, start=1):
        if row.graph is None or row.peak_allocated is None or row.peak_reserved is None:
            continue
        say(f"memory of {number} of {len(rows)} steps")
        memory = foretell.forecast(kept.graph(row.graph), device, model="roofline").memory
        steps.append(
            MeasuredStep(
                source=row.source,
                settings=row.settings,
                allocated=(memory.allocated, row.peak_allocated),
                reserved=(memory.reserved, row.peak_reserved),
                context=memory.context,
            )
        )
    return steps


def accuracy(steps: Sequence[MeasuredStep], jobs: Sequence[published.Compared]) -> Accuracy:
    """What their middle error says."""
    several = [j.memory_error for j in jobs if j.devices > 1 and j.memory_error is not None]
    return Accuracy(
        step_sigma=_sigma([j.error for j in jobs if j.error is not None]),
        memory_sigma=_sigma([s.error for s in steps]),
        memory_sigma_several=_sigma(several),
    )


def _sigma(errors: Sequence[float]) -> float:
    """Of a normal distribution with as large an error in the middle."""
    return round(float(np.median(np.abs(errors))) / _QUARTILE, _DIGITS)


def write(found: Accuracy, steps: Sequence[MeasuredStep], jobs: Sequence[published.Compared], folder: Path) -> Path:
    """Into the folder of a model that is not shipped yet."""
    timed, sized = (
        sum(j.error is not None for j in jobs),
        sum(j.memory_error is not None and j.devices > 1 for j in jobs),
    )
    sources = {
        "step_sigma": f"median error of {timed} published jobs, bench/results/published.json",
        "memory_sigma": f"median error of the total of {len(steps)} steps of an H200, bench/results/resources.json",
        "memory_sigma_several": f"median error of {sized} published jobs, bench/results/published.json",
    }
    path = folder / FILE
    path.write_text(json.dumps({**asdict(found), "sources": sources}, indent=2) + "\n")
    seal(folder)
    return path


def figures(steps: Sequence[MeasuredStep]) -> list[Figure]:
    """Median and mean errors of memory."""
    made = []
    for name in ("allocated", "reserved"):
        predicted, measured = np.array([getattr(s, name) for s in steps], dtype=float).T
        errors = np.abs(predicted / measured - 1)
        for statistic, value in (("median", np.median(errors)), ("mean", np.mean(errors))):
            made.append(
                Figure(source=f"peak {name}", measure=f"{statistic} error", value=float(value), rows=len(steps))
            )
    return made


def save(steps: Sequence[MeasuredStep], path: Path) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(asdict(step)) for step in steps) + "\n]\n")


def read(path: Path) -> list[MeasuredStep]:
    try:
        return [
            MeasuredStep(**row | {name: tuple(row[name]) for name in ("allocated", "reserved")})
            for row in json.loads(path.read_text())
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} holds no measured steps ({error}). Make it: foretell bench resources --store FOLDER --save"
        ) from error
