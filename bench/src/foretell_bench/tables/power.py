"""`foretell bench power`: what a board draws over steps that ran for seconds, and the numbers of it that the model ships with."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

import foretell
from foretell.cost.folder import seal
from foretell.cost.power import FILE, Power, Use, use_of
from foretell.errors import InputError
from foretell.hardware import device as known_device
from foretell.learn.fit import FAMILIES, family_of
from foretell.learn.power import LIMIT, AtLimit, fit_follows, fit_power
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """Steps that go on at their limit of power, and the same ones under lower limits."""

    above: tuple[AtLimit, ...]
    limits: tuple[tuple[float, float], ...]  # how many times lower a limit, how many times longer a step

    @property
    def follows(self) -> float:
        return fit_follows(self.limits)

    def without(self, kind: str) -> Limited:
        return replace(self, above=tuple(step for step in self.above if step.kind != kind))


def read_limited(path: Path) -> Limited:
    """Each row says what ran, the limit and seconds; those at the board's own limit their use and seconds at full clock too."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        own = {row["what"]: row for row in rows if "use" in row}
        above = tuple(
            AtLimit(_kind(row["what"]), Use(**row["use"]), row["seconds"] / row["full_clock_seconds"])
            for row in own.values()
        )
        limits = tuple(
            (own[row["what"]]["limit"] / row["limit"], row["seconds"] / own[row["what"]]["seconds"])
            for row in rows
            if "use" not in row
        )
        return Limited(above=above, limits=limits)
    except (OSError, ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise InputError(
            f"{path} holds no steps at their limit of power ({error}). Give --limits bench/data/h200_power_limit.jsonl."
        ) from error


def _kind(what: str) -> str:
    """Sizes of products count as one; what else ran, each as one."""
    return "product" if what.startswith("product") and " and " not in what else what


def limited_figures(steps: Sequence[Sustained], limited: Limited) -> list[Figure]:
    """How far times at the limit are off, each kind of step predicted from the others."""
    errors: dict[str, list[float]] = defaultdict(list)
    for step in limited.above:
        fitted = _fitted(steps, limited.without(step.kind))
        errors[step.kind].append(abs(fitted.times_longer(step.use) / step.longer - 1))
    found = [float(np.mean(each)) for each in errors.values()]
    return [
        Figure(
            source="steps at the limit, their kind left out", measure="how much longer, mean error", value=float(np.mean(found)),
            rows=len(limited.above),
        ),
        Figure(source="steps at the limit", measure="by which power of the limit", value=limited.follows, rows=len(limited.limits)),
    ]  # fmt: skip


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


def _fitted(steps: Sequence[Sustained], limited: Limited | None = None) -> Power:
    pairs = [(s.use, s.measured) for s in steps]
    return fit_power(pairs, limited.above, limited.follows) if limited else fit_power(pairs)


def write(steps: Sequence[Sustained], folder: Path, limited: Limited | None = None) -> Path:
    """Into the folder of a model that is not shipped yet."""
    sources = {
        "parts": f"{len(steps)} steps of an H200 of as many networks that ran for 5 s each, bench/data/h200_power.jsonl: NVML's energy "
        "counter over the last 3 s",
        "idle": "59 steps of the H200 dataset with a kernel running for a tenth of the time at most",
        "most": f"boards at their limit draw {LIMIT} of it",
    }
    if limited is not None:
        sources["follows"] = (
            "a product and a decoder on an H200 limited to 500, 600 and 650 W; products, sums and decoders that went on for seconds at "
            "700 W say what parts would draw beyond it, bench/data/h200_power_limit.jsonl"
        )
    path = folder / FILE
    path.write_text(json.dumps({**short(asdict(_fitted(steps, limited))), "sources": sources}, indent=2) + "\n")
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
