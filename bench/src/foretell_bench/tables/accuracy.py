"""`foretell bench accuracy`: steps of a store, predicted while their kind was left out, and what was measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.design.blind import is_generated
from foretell.errors import InputError
from foretell.learn.dataset import Measured, OpTable, is_recorded_alone, load_to_fit
from foretell.learn.fit import families_of
from foretell.learn.options import FitOptions
from foretell.learn.transfer.published_ops import own_products
from foretell.learn.uncertainty.left_out import (
    SUM,
    LeftOutStep,
    Unseen,
    leave_groups_out,
    operator_errors_file,
    read_unseen,
)
from foretell.measure.record import StepRow
from foretell.store.store import Store
from foretell_bench.errors import Errors
from foretell_bench.research.ablations import ABOUT, Ablation, ablate
from foretell_bench.research.coverage import GENERATED, Coverage, coverage
from foretell_bench.research.groups import SPLITS, groups
from foretell_bench.research.rivals import NAMES, Rivals
from foretell_bench.rounding import short
from foretell_bench.tables.figures import Figure

BUSY: Final = 0.9  # of the step with a kernel running, at least: the device's speed is the step's
Progress = Callable[[str], None]


def predict_stores(
    paths: Sequence[Path],
    *,
    device: str = "h200",
    products: Path | None = None,
    split: str = "family",
    seed: int = 0,
    workers: int = 2,
    progress: Progress = lambda text: None,
) -> Unseen:
    """Every step of stores, predicted by models that saw nothing of its group, and by rivals that saw as little."""
    measured, group_of, extra = _opened(paths, device, products, split, seed, progress)
    options = FitOptions(seed=seed, workers=workers, progress=progress)
    others = Rivals(measured, group_of, options).predict()
    unseen = leave_groups_out(measured, group_of, options, extra)
    return replace(unseen, steps=[replace(s, rivals={**s.rivals, **others[s.record]}) for s in unseen.steps])


def ablate_stores(
    paths: Sequence[Path],
    *,
    device: str = "h200",
    products: Path | None = None,
    seed: int = 0,
    workers: int = 2,
    progress: Progress = lambda text: None,
) -> list[Ablation]:
    """Every step of stores, predicted with parts of the predictor removed, its family left out."""
    measured, group_of, extra = _opened(paths, device, products, "family", seed, progress)
    return ablate(measured, group_of, FitOptions(seed=seed, workers=workers, progress=progress), extra)


def _opened(
    paths: Sequence[Path], device: str, products: Path | None, split: str, seed: int, progress: Progress
) -> tuple[Measured, dict[int, str], list[OpTable]]:
    if split not in SPLITS:
        raise InputError(f"no split {split!r}. Allowed: {', '.join((*SPLITS, GENERATED))}.")
    stores = opened(paths)
    measured = load_to_fit(stores, device, progress)
    group_of = groups(measured, split, families_of(*stores), seed)
    if len(set(group_of.values())) < (1 if split == "batch" else 2):
        raise InputError(
            f"{paths[0]} holds too few steps measured on {device} to leave some out. Measure more architectures."
        )
    return measured, group_of, list(own_products(products, measured.device, progress).values()) if products else []


def opened(paths: Sequence[Path]) -> list[Store]:
    stores = [Store(path) for path in paths]
    for store in stores:
        if not store.exists():
            raise InputError(
                f"there is no store in {store.path}. Measure into one with: foretell measure SOURCE --store {store.path}"
            )
    return stores


def noise(paths: Sequence[Path], device: str = "h200") -> dict[str, float]:
    """How far the same point moves between occasions, on average: of the step, of its device time."""
    by_point: dict[str, list[StepRow]] = defaultdict(list)
    for path in paths:
        for row in Store(path).steps(f"device = '{device}' AND outcome = 'ok' AND kind = 'step'"):
            if not is_recorded_alone(row):
                by_point[row.point].append(row)
    moved: dict[str, list[float]] = {"step": [], "device": []}
    for rows in by_point.values():
        for a, b in combinations(rows, 2):
            if a.occasion != b.occasion:
                for what, first, second in (
                    ("step", a.step_seconds, b.step_seconds),
                    ("device", a.device_seconds, b.device_seconds),
                ):
                    if first and second:
                        moved[what].append(abs(first - second) / ((first + second) / 2))
    return {what: float(np.mean(those)) for what, those in moved.items() if those}


def is_device_bound(step: LeftOutStep) -> bool:
    return step.device >= BUSY * step.step


def figures(steps: Sequence[LeftOutStep], moves: dict[str, float]) -> list[Figure]:
    """The table, with the bars the project set itself for families left out."""
    covered = coverage(steps)
    drawn = [s for s in steps if is_generated(s.source)]
    steps = named(steps)
    device = errors_of(steps, "device")
    step = errors_of(steps, "step")
    busy = [s for s in steps if is_device_bound(s)]
    bar = max(0.10, 1.3 * moves.get("step", 0.0))
    note = (
        f"1.3 times the difference of the same step between occasions ({moves['step']:.1%}) where that is more than 10 %"
        if moves
        else ""
    )
    lines = [
        Figure(source="device time", measure="mean error", value=device.mean, bar=0.05, rows=device.count),
        Figure(source="device time", measure="median error", value=device.median, bar=0.04, rows=device.count),
        Figure(source="device time", measure="90th percentile", value=device.p90, rows=device.count),
        Figure(source="device time", measure="rank correlation", value=device.rank, rows=device.count),
        Figure(source="step time", measure="mean error", value=step.mean, bar=bar, rows=step.count, note=note),
        Figure(source="step time", measure="median error", value=step.median, rows=step.count),
    ]
    if busy:
        kept = errors_of(busy, "step")
        lines.append(
            Figure(source="step time", measure="device-bound, mean error", value=kept.mean, bar=0.05, rows=kept.count)
        )
    lines += [
        Figure(source=f"rival: {name}", measure="device time, mean error", value=errors.mean, rows=errors.count)
        for name, errors in rival_errors(steps).items()
    ]
    inside = "architectures inside 90 %"
    lines += [
        Figure(source=f"{c.what} interval", measure=inside, value=c.inside, rows=c.architectures)
        for c in covered
        if not c.group
    ]
    return lines + _generated_figures(drawn, covered)


def _generated_figures(steps: Sequence[LeftOutStep], covered: Sequence[Coverage]) -> list[Figure]:
    """Of generated networks that are fitted on, each fold while it was left out."""
    if not steps:
        return []
    device, step = errors_of(steps, "device"), errors_of(steps, "step")
    return [
        Figure(source="generated, device time", measure="mean error", value=device.mean, rows=device.count),
        Figure(source="generated, device time", measure="median error", value=device.median, rows=device.count),
        Figure(source="generated, step time", measure="mean error", value=step.mean, rows=step.count),
        *(
            Figure(
                source=f"generated, {c.what} interval",
                measure="networks inside 90 %",
                value=c.inside,
                rows=c.architectures,
            )
            for c in covered
            if c.group == GENERATED
        ),
    ]


def named(steps: Sequence[LeftOutStep]) -> Sequence[LeftOutStep]:
    """Steps of networks with a name, where there are any."""
    return [s for s in steps if not is_generated(s.source)] or steps


def rival_errors(steps: Sequence[LeftOutStep]) -> dict[str, Errors]:
    measured = [s.device for s in steps]
    found = {"roofline": Errors.of([s.roofline for s in steps], measured)}
    return found | {
        name: Errors.of([s.rivals[name] for s in steps], measured)
        for name in (SUM, *NAMES)
        if all(name in s.rivals for s in steps)
    }


def tables(steps: Sequence[LeftOutStep], moves: dict[str, float]) -> dict[str, Any]:
    """What a page shows, as plain numbers."""
    covered = {(c.what, c.group): c for c in coverage(steps)}
    if not covered:
        raise InputError("a page needs intervals, and those need several groups. Leave out families or architectures.")
    shown, steps = figures(steps, moves), named(steps)
    by_group: dict[str, list[LeftOutStep]] = defaultdict(list)
    for s in steps:
        by_group[s.group].append(s)
    kinds = ("device", "step")
    families = [
        {
            "family": group,
            "steps": len(those),
            "architectures": len({s.source for s in those}),
            "inside": {what: covered[what, group].inside for what in kinds},
            "p": {what: covered[what, group].p_value for what in kinds},
            **{what: asdict(errors_of(those, what)) for what in kinds},
        }
        for group, those in sorted(by_group.items(), key=lambda t: -len(t[1]))
    ]
    bound = {
        "all": steps,
        "device-bound": [s for s in steps if is_device_bound(s)],
        "host-bound": [s for s in steps if not is_device_bound(s)],
    }
    worst = sorted(steps, key=lambda s: -abs(s.device_predicted / s.device - 1))[:12]
    errors = {"Foretell": errors_of(steps, "device"), **rival_errors(steps)}
    return {
        "figures": [figure.to_dict() for figure in shown],
        "families": families,
        "methods": {name: asdict(e) for name, e in errors.items()},
        "step": {name: asdict(errors_of(those, "step")) for name, those in bound.items() if those},
        "coverage": {what: asdict(covered[what, ""]) for what in kinds},
        "points": {what: [(*_pair(s, what)[::-1], s.group) for s in steps] for what in kinds},
        "worst": [(s.source, s.settings, s.group, s.device, s.device_predicted) for s in worst],
        "noise": moves,
    }


def save(unseen: Unseen, moves: dict[str, float], path: Path) -> None:
    lines = [json.dumps(short(asdict(s))) for s in unseen.steps]
    if unseen.operator_errors is not None:
        unseen.operator_errors.save(operator_errors_file(path))
    path.write_text('{"noise": ' + json.dumps(short(moves)) + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n")


def read(path: Path) -> tuple[Unseen, dict[str, float]]:
    return read_unseen(path), json.loads(path.read_text()).get("noise", {})


def ablation_figures(ablations: Sequence[Ablation]) -> list[Figure]:
    return [
        Figure(source=a.name, measure=f"{what}, mean error", value=errors.mean, rows=errors.count, note=ABOUT[a.name])
        for a in ablations
        for what, errors in (("device time", a.device), ("step time", a.step))
    ]


def save_ablations(ablations: Sequence[Ablation], path: Path) -> None:
    lines = [json.dumps(short(asdict(a)) | {"about": ABOUT[a.name]}) for a in ablations]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read_ablations(path: Path) -> list[dict[str, Any]]:
    """What `save_ablations` wrote, as a page shows it."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())
        return [{key: a[key] for key in ("name", "about", "device", "step")} for a in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no ablations ({error}). Make some: foretell bench accuracy --data STORE --ablations --save {path}"
        ) from error


def read_newer(path: Path) -> dict[str, Any]:
    """What `foretell bench newer --save` wrote."""
    try:
        found = json.loads(path.read_text())
        return {
            "model": found["model"],
            "last": found["last"],
            "figures": found["figures"],
            "architectures": len({s["source"] for s in found["steps"]}),
            "count": len(found["steps"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no newer steps ({error}). Make some: foretell bench newer --save") from error


def errors_of(steps: Sequence[LeftOutStep], what: str) -> Errors:
    predicted, measured = zip(*(_pair(s, what) for s in steps), strict=True)
    return Errors.of(predicted, measured)


def _pair(step: LeftOutStep, what: str) -> tuple[float, float]:
    """Predicted and measured."""
    return (step.device_predicted, step.device) if what == "device" else (step.step_predicted, step.step)
