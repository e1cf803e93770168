"""`foretell bench accuracy`: steps of a store, foretold while their kind was left out, beside what was measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from foretell.errors import InputError
from foretell.learn import holdout as evaluate
from foretell.learn.calibrate import Coverage, coverage
from foretell.learn.dataset import RECORDED_ALONE, Measured, OpTable, load
from foretell.learn.fit import families_of, public_products
from foretell.learn.holdout import Errors, Foretold
from foretell.measure.record import StepRow
from foretell.store.store import Store
from foretell_bench.research.ablations import ABOUT, Ablation, ablate
from foretell_bench.research.rivals import NAMES as RIVALS
from foretell_bench.research.rivals import Rivals
from foretell_bench.tables.figures import Figure


def foretell_store(
    path: Path, *, device: str = "h200", products: Path | None = None, split: str = "family", seed: int = 0,
    workers: int = 2, say: Callable[[str], None] = lambda text: None,
) -> list[Foretold]:  # fmt: skip
    """Every step of a store, foretold by models that saw nothing of its group."""
    measured, groups, beside = _opened(path, device, products, split, seed, say)
    rivals = Rivals(measured, groups, seed=seed, workers=workers, progress=say)
    return evaluate.leave_groups_out(
        measured, groups, beside=beside, rivals=rivals, seed=seed, workers=workers, progress=say
    )


def ablate_store(
    path: Path, *, device: str = "h200", products: Path | None = None, seed: int = 0, workers: int = 2,
    say: Callable[[str], None] = lambda text: None,
) -> list[Ablation]:  # fmt: skip
    """Every step of a store, foretold with parts of the predictor taken away, its family left out."""
    measured, groups, beside = _opened(path, device, products, "family", seed, say)
    return ablate(measured, groups, beside=beside, seed=seed, workers=workers, progress=say)


def _opened(
    path: Path, device: str, products: Path | None, split: str, seed: int, say: Callable[[str], None]
) -> tuple[Measured, dict[int, str], list[OpTable]]:
    if split not in evaluate.SPLITS:
        raise InputError(f"no split {split!r}. Allowed: {', '.join(evaluate.SPLITS)}.")
    store = Store(path)
    if not store.exists():
        raise InputError(f"there is no store in {path}. Measure into one with: foretell measure SOURCE --store {path}")
    measured = load(store, device, say)
    groups = evaluate.groups(measured, split, families_of(store), seed)
    if len(set(groups.values())) < (1 if split == "batch" else 2):
        raise InputError(
            f"{path} holds too few steps measured on {device} to leave some out. Measure more architectures."
        )
    return measured, groups, list(public_products(products, device, say).values()) if products else []


def noise(path: Path, device: str = "h200") -> dict[str, float]:
    """How far the same point moves between occasions, on average: of the step, of its device time."""
    by_point: dict[str, list[StepRow]] = defaultdict(list)
    for row in Store(path).steps(f"device = '{device}' AND outcome = 'ok' AND kind = 'step'"):
        if not any(mark.startswith(RECORDED_ALONE) for mark in row.marks):
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


def figures(steps: Sequence[Foretold], moves: dict[str, float]) -> list[Figure]:
    """The table, with the bars the project set itself for families left out."""
    device = errors_of(steps, "device")
    step = errors_of(steps, "step")
    busy = [s for s in steps if s.busy]
    bar = max(0.10, 1.3 * moves.get("step", 0.0))
    said = (
        f"1.3 times what the same step moves between occasions ({moves['step']:.1%}) where that is more than 10 %"
        if moves
        else ""
    )
    lines = [
        Figure(source="device time", measure="mean error", value=device.mean, bar=0.06, rows=device.count),
        Figure(source="device time", measure="median error", value=device.median, bar=0.04, rows=device.count),
        Figure(source="device time", measure="90th percentile", value=device.p90, rows=device.count),
        Figure(source="device time", measure="rank correlation", value=device.rank, rows=device.count),
        Figure(source="step time", measure="mean error", value=step.mean, bar=bar, rows=step.count, note=said),
        Figure(source="step time", measure="median error", value=step.median, rows=step.count),
    ]
    if busy:
        kept = errors_of(busy, "step")
        lines.append(
            Figure(source="step time", measure="device-bound, mean error", value=kept.mean, bar=0.05, rows=kept.count)
        )
    lines += [Figure(source=f"rival: {name}", measure="device time, mean error", value=errors.mean, rows=errors.count)
              for name, errors in rivals(steps).items()]  # fmt: skip
    for c in coverage(steps):
        if not c.group:
            lines.append(
                Figure(
                    source=f"{c.what} interval",
                    measure="architectures inside 90 %",
                    value=c.inside,
                    rows=c.architectures,
                )
            )
    return lines


def rivals(steps: Sequence[Foretold]) -> dict[str, Errors]:
    measured = [s.device for s in steps]
    found = {"roofline": Errors.of([s.roofline for s in steps], measured)}
    return found | {
        name: Errors.of([s.others[name] for s in steps], measured)
        for name in RIVALS
        if all(name in s.others for s in steps)
    }


def tables(steps: Sequence[Foretold], moves: dict[str, float]) -> dict[str, Any]:
    """What a page shows, as plain numbers."""
    by_group: dict[str, list[Foretold]] = defaultdict(list)
    for s in steps:
        by_group[s.group].append(s)
    covered = {(c.what, c.group): c for c in coverage(steps)}
    if not covered:
        raise InputError("a page needs intervals, and those need several groups. Leave out families or architectures.")
    worst = sorted(steps, key=lambda s: -abs(s.device_said / s.device - 1))[:12]
    families = [
        {"family": group, "steps": len(those), "architectures": len({s.source for s in those}),
         "device": asdict(errors_of(those, "device")), "step": asdict(errors_of(those, "step")),
         "inside": {what: covered[what, group].inside for what in ("device", "step")},
         "p": {what: covered[what, group].p_value for what in ("device", "step")}}
        for group, those in sorted(by_group.items(), key=lambda t: -len(t[1]))
    ]  # fmt: skip
    busy, idle = [s for s in steps if s.busy], [s for s in steps if not s.busy]
    return {
        "figures": [figure.to_dict() for figure in figures(steps, moves)], "families": families,
        "methods": {"Foretell": asdict(errors_of(steps, "device"))} | {n: asdict(e) for n, e in rivals(steps).items()},
        "step": {name: asdict(errors_of(those, "step")) for name, those in
                 (("all", steps), ("device-bound", busy), ("host-bound", idle)) if those},
        "coverage": {what: asdict(covered[what, ""]) for what in ("device", "step")},
        "points": {"device": [(s.device, s.device_said, s.group) for s in steps],
                   "step": [(s.period, s.period_said, s.group) for s in steps]},
        "worst": [(s.source, s.settings, s.group, s.device, s.device_said) for s in worst], "noise": moves,
    }  # fmt: skip


def save(steps: Sequence[Foretold], moves: dict[str, float], path: Path) -> None:
    lines = [json.dumps(short(asdict(s))) for s in steps]
    path.write_text('{"noise": ' + json.dumps(short(moves)) + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n")


def read(path: Path) -> tuple[list[Foretold], dict[str, float]]:
    return evaluate.read_steps(path), json.loads(path.read_text()).get("noise", {})


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
        return {"model": found["model"], "last": found["last"], "figures": found["figures"],
                "architectures": len({s["source"] for s in found["steps"]}), "count": len(found["steps"])}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no newer steps ({error}). Make some: foretell bench newer --save") from error


def rejected(steps: Sequence[Foretold]) -> list[Coverage]:
    """Groups whose intervals hold too few or too many architectures to be chance."""
    return [c for c in coverage(steps) if c.group and c.p_value < 0.05]


def errors_of(steps: Sequence[Foretold], what: str) -> Errors:
    if what == "device":
        return Errors.of([s.device_said for s in steps], [s.device for s in steps])
    return Errors.of([s.period_said for s in steps], [s.period for s in steps])


def short(value: Any) -> Any:
    """Four digits say all there is."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return [short(v) for v in value] if isinstance(value, list | tuple) else value
