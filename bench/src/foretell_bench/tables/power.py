"""`foretell bench power`: what a board draws over steps that ran for seconds, and the numbers of it that the model ships with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

import foretell
from foretell.cost.folder import seal
from foretell.cost.power import FILE, Power, Use, use_of
from foretell.errors import InputError
from foretell.hardware import device as known_device
from foretell.learn.fit import FAMILIES, family_of
from foretell.learn.power import LIMIT, fit_power
from foretell.store.store import Store
from foretell_bench.rounding import short
from foretell_bench.tables.figures import Figure

DEVICE: Final = "h200"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """A step that ran for seconds."""

    source: str
    family: str
    use: Use  # parts of the measured step
    measured: float  # of the board's limit
    predicted: float  # by the product, from the graph alone


def run(data: Path, graphs: Path, *, progress: Callable[[str], None] = lambda text: None) -> list[Sustained]:
    """Every measured step whose graph a store has."""
    try:
        rows = [json.loads(line) for line in data.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{data} holds no measured power ({error}). Give --data bench/data/h200_power.jsonl."
        ) from error
    store, device = Store(graphs), known_device(DEVICE)
    known = {s.point: s for s in store.steps("kind = 'step'") if s.graph and s.device_seconds and s.outcome == "ok"}
    families = json.loads((graphs / FAMILIES).read_text())
    found = []
    for number, row in enumerate(rows, start=1):
        if (same := known.get(row["point"])) is None:
            continue
        progress(f"power of {number} of {len(rows)} steps")
        graph = store.graph(same.graph or "")
        use = use_of(graph, device, busy=same.device_seconds or 0.0).over(row["step_seconds"])
        energy = foretell.forecast(graph, on=DEVICE).energy
        found.append(
            Sustained(
                source=row["source"],
                family=family_of(row["source"], families),
                use=use,
                measured=row["watts"] / row["limit"],
                predicted=(energy.watts if energy else 0.0) / row["limit"],
            )
        )
    return found


def figures(steps: Sequence[Sustained]) -> list[Figure]:
    """Errors of the product, and of fits without each step's family."""
    measured = np.array([s.measured for s in steps])
    left_out = [_fitted([o for o in steps if o.family != s.family]).share(s.use) for s in steps]
    made = []
    for source, predicted in (
        ("forecasts as shipped", [s.predicted for s in steps]),
        ("the family left out", left_out),
    ):
        errors = np.abs(np.array(predicted) / measured - 1)
        for measure, value in (("mean error", errors.mean()), ("median error", np.median(errors))):
            bar = 0.08 if measure == "mean error" else None
            made.append(
                Figure(source=f"power, {source}", measure=measure, value=float(value), bar=bar, rows=len(steps))
            )
    return made


def _fitted(steps: Sequence[Sustained]) -> Power:
    return fit_power([(s.use, s.measured) for s in steps])


def write(steps: Sequence[Sustained], folder: Path) -> Path:
    """Into the folder of a model that is not shipped yet."""
    sources = {
        "parts": f"{len(steps)} steps of an H200 of as many networks that ran for 5 s each, bench/data/h200_power.jsonl: NVML's energy "
        "counter over the last 3 s",
        "idle": "59 steps of the H200 dataset with a kernel running for a tenth of the time at most",
        "most": f"boards at their limit draw {LIMIT} of it",
    }
    path = folder / FILE
    path.write_text(json.dumps({**short(asdict(_fitted(steps))), "sources": sources}, indent=2) + "\n")
    seal(folder)
    return path


def save(steps: Sequence[Sustained], path: Path) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(short(asdict(s))) for s in steps) + "\n]\n")


def read(path: Path) -> list[Sustained]:
    try:
        return [Sustained(**row | {"use": Use(**row["use"])}) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} holds no measured power ({error}). Make it: foretell bench power --save FILE"
        ) from error
