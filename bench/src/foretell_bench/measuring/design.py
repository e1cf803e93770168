"""D-optimal against A-optimal and random choice of what to measure: error on other networks by seconds of measuring.

A third of the architectures is left out, whole. From the points of the others each method chooses under growing
budgets; the same models are fitted on what it chose and forecast the device time of the steps left out. What a point
costs is what it took to measure: every run of its step, and its share of building, by the clock of one campaign. `by expected
seconds` chooses by what `foretell design` expects before anything ran, and is charged what it took. Steps whose ops
could not be timed in a plain step (marked `recorded alone`) are left out throughout.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from foretell.design.design import design
from foretell.design.information import BUILDING, FLOOR, FURTHER_RUNS, Candidate, features, op_set_of, row_keys
from foretell.design.information import candidate as candidate_of
from foretell.design.space import standardised
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.measure.record import Point
from foretell.store.store import Store
from foretell_bench.pages.design_chart import error_curves

BUDGETS: Final = (10, 15, 20, 30, 45, 60, 90, 120, 180, 240)  # seconds
EXCHANGED: Final = (30, 60, 120)  # budgets at which exchange is tried too: it takes a while
LEVELS: Final = (0.35, 0.30, 0.27, 0.25, 0.23, 0.21, 0.20, 0.19, 0.18, 0.17, 0.16, 0.15)  # step errors to reach
Method = Literal["d-optimal", "a-optimal"]
Array = npt.NDArray[Any]
Curves = dict[str, list[tuple[float, float, float, float]]]  # method → seconds, error, its 10th and 90th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A point that was measured: what it is to a design, what it cost, and the times of its rows."""

    candidate: Candidate
    seconds: float  # what measuring it took
    times: dict[str, float]  # row → device seconds of one run; those that were timed


def read(store: Store, device: Device) -> list[Measured]:
    found = []
    for record in store.records(f"outcome = 'ok' AND device = '{device.name}'"):
        step = record.step
        if any(mark.startswith("recorded alone") for mark in step.marks):
            continue
        assert record.graph is not None
        graph = Graph.from_bytes(record.graph.file)
        sums: dict[str, tuple[float, int]] = {}
        for key, op, row in zip(row_keys(graph), graph.ops, record.ops, strict=True):
            if row.device_seconds:
                seconds, runs = sums.get(key, (0.0, 0))
                sums[key] = (seconds + row.device_seconds, runs + op.times)
        point = Point(source=step.source, settings=json.loads(step.settings), kind=step.kind, plan=step.plan)
        spent = BUILDING[step.kind] + (step.repetitions + FURTHER_RUNS) * (step.step_seconds or 0.0)
        times = {key: seconds / runs for key, (seconds, runs) in sums.items()}
        candidate = candidate_of(point, op_set_of(graph), device)
        found.append(Measured(candidate=candidate, seconds=spent, times=times))
    return found


# The models, on the rows of all points side by side.


class Table:
    """Every timed row of every point: its family, φ, how often it ran and what it took."""

    def __init__(self, points: Sequence[Measured], device: Device) -> None:
        rows = [
            (i, row, p.times[row.key])
            for i, p in enumerate(points)
            for row in p.candidate.ops.rows
            if row.key in p.times
        ]
        described = [features(row, device) for _, row, _ in rows]
        names = list(dict.fromkeys(name for values in described for name in values))
        shared = [name for name in names if all(name in values for values in described)]
        self.shared = len(shared)  # columns that every family has, which come first
        self.names = shared + [name for name in names if name not in shared]
        self.phi = np.array([[values.get(name, 0.0) for name in self.names] for values in described])
        self.families, self.family = np.unique([row.family for _, row, _ in rows], return_inverse=True)
        self.point = np.array([i for i, _, _ in rows])
        self.runs = np.array([row.times for _, row, _ in rows])
        self.seconds = np.array([seconds for _, _, seconds in rows])
        self.base = np.array([row.seconds(device) for _, row, _ in rows])
        self.y = np.log(self.seconds / self.base)
        self.weight = np.sqrt(self.base / FLOOR)

    def of(self, points: Array) -> Array:
        return np.flatnonzero(np.isin(self.point, points))


def linear(t: Table, train: Array, test: Array) -> Array:
    """What the design is for: one model of all families on what they share, and each family's own of what is left."""
    a, b = _scaled(t.phi[train, : t.shared], t.phi[test, : t.shared])
    shared = _ridge(a, t.y[train], t.weight[train])
    left, forecast = t.y[train] - a @ shared, b @ shared
    for family in np.unique(t.family[train]):
        own, theirs = t.family[train] == family, t.family[test] == family
        if theirs.any():
            a, b = _scaled(t.phi[train[own]], t.phi[test[theirs]])
            fitted = b @ _ridge(a, left[own], t.weight[train[own]])
            forecast[theirs] += np.clip(fitted, left[own].min(), left[own].max())  # nothing beyond what was seen
    return forecast


def _ridge(phi: Array, y: Array, weight: Array) -> Array:
    heavy = phi * weight[:, None]
    return np.linalg.solve(heavy.T @ phi + np.eye(phi.shape[1]), heavy.T @ y)


def _scaled(train: Array, test: Array) -> tuple[Array, Array]:
    scaled = standardised(np.vstack([train, test]))  # of what is forecast shapes are known, times are not
    return scaled[: len(train)], scaled[len(train) :]


def boosted(t: Table, train: Array, test: Array) -> Array:
    import lightgbm

    table = np.column_stack([t.family, np.log(t.base), t.phi])
    options = {"objective": "l2", "learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 10, "verbose": -1,
               "num_threads": 1, "seed": 0}  # fmt: skip
    data = lightgbm.Dataset(table[train], t.y[train], weight=t.weight[train], categorical_feature=[0])
    return np.asarray(lightgbm.train(options, data, num_boost_round=150).predict(table[test]))


Model = Callable[[Table, Array, Array], Array]
MODELS: Final[dict[str, Model]] = {"linear": linear, **({"boosted": boosted} if find_spec("lightgbm") else {})}


def errors(t: Table, test: Array, forecast: Array) -> tuple[float, float]:
    """Of a step's device time, as a share; of an op's log(time), weighted by its share of the step."""
    measured, predicted = t.seconds[test] * t.runs[test], np.exp(forecast) * t.base[test] * t.runs[test]
    point = t.point[test]
    steps, sums = np.bincount(point, measured), np.bincount(point, predicted)
    there = steps > 0
    share = measured / steps[point]
    errors = np.abs(forecast - t.y[test])
    return float(np.abs(sums[there] / steps[there] - 1).mean()), float((share * errors).sum() / share.sum())


# The experiment.


def orders(
    points: Sequence[Measured], pool: Array, device: Device, draws: int, seed: int
) -> Iterator[tuple[str, Sequence[float], Array]]:
    """Method, budgets to look at, and what it chose, in the order of measuring."""

    def chosen(
        method: Literal["d-optimal", "a-optimal"],
        budget: float = math.inf,
        *,
        expected: bool = False,
        exchange: bool = False,
    ) -> Array:
        own = [points[i].candidate for i in pool]
        if not expected:
            own = [replace(points[i].candidate, seconds=points[i].seconds) for i in pool]
        place = {id(c): i for c, i in zip(own, pool, strict=True)}
        made = design(own, device, budget, method=method, exchange=exchange)
        return np.array([place[id(choice.candidate)] for choice in made.choices])

    yield "d-optimal", BUDGETS, chosen("d-optimal")
    yield "a-optimal", BUDGETS, chosen("a-optimal")
    yield "d-optimal by expected seconds", BUDGETS, chosen("d-optimal", expected=True)
    for budget in EXCHANGED:
        yield "d-optimal with exchange", (budget,), chosen("d-optimal", budget, exchange=True)
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        yield "random", BUDGETS, rng.permutation(pool)


def fit_all(
    points: Sequence[Measured], device: Device, splits: range, draws: int, boosted_draws: int
) -> list[dict[str, Any]]:
    t = Table(points, device)
    is_step = np.array([p.candidate.point.kind == "step" for p in points])
    sources = np.array([p.candidate.point.source for p in points])
    architectures = np.unique(sources[is_step])
    costs = np.array([p.seconds for p in points])
    results = []
    for split in splits:
        began = time.monotonic()
        away = np.random.default_rng(split).permutation(architectures)[: len(architectures) // 3]
        left_out = is_step & np.isin(sources, away)
        test, pool = t.of(np.flatnonzero(left_out)), np.flatnonzero(~left_out)
        every = ("all", (math.inf,), pool)
        drawn = 0
        for method, budgets, order in (every, *orders(points, pool, device, draws, split)):
            drawn += method == "random"
            ends = np.cumsum(costs[order])
            for budget in budgets:
                count = int(np.searchsorted(ends, budget, side="right"))
                if not count:
                    continue
                for name, model in MODELS.items():
                    if name == "boosted" and (drawn > boosted_draws or "exchange" in method):
                        continue
                    step, op = errors(t, test, model(t, t.of(order[:count]), test))
                    results.append({"split": split, "method": method, "model": name, "budget": budget, "points": count,
                                    "seconds": float(ends[count - 1]), "step": step, "op": op})  # fmt: skip
        print(f"split {split}: {len(pool)} points of {costs[pool].sum():.0f} s, {left_out.sum()} steps left out "
              f"({time.monotonic() - began:.0f} s)", flush=True)  # fmt: skip
    return results


def curves(results: Sequence[dict[str, Any]], model: str, error: str) -> Curves:
    found: Curves = {}
    for method in dict.fromkeys(r["method"] for r in results):
        every = [r for r in results if (r["method"], r["model"]) == (method, model)]
        for budget in sorted({r["budget"] for r in every}):
            own = [r for r in every if r["budget"] == budget]
            low, high = np.percentile([r[error] for r in own], [10, 90])
            point = (np.mean([r["seconds"] for r in own]), np.mean([r[error] for r in own]), low, high)
            found.setdefault(method, []).append(tuple(round(float(x), 4) for x in point))  # type: ignore[arg-type]
    return found


def seconds_to(curve: Sequence[tuple[float, ...]], level: float) -> float | None:
    """When a curve gets down to a level for good, on a line in log(seconds); None if it never does."""
    for (s0, e0, *_), (s1, e1, *_) in reversed(list(pairwise(curve))):
        if e0 > level >= e1:
            return float(np.exp(np.interp(level, [e1, e0], [np.log(s1), np.log(s0)])))
    return None


def ratios(found: Curves, levels: Sequence[float]) -> list[dict[str, Any]]:
    ratios = []
    for level in levels:
        at = {method: s for method, curve in found.items() if (s := seconds_to(curve, level)) is not None}
        if "d-optimal" in at and "random" in at:
            ratios.append({"error": level, "seconds": at, "ratio": at["random"] / at["d-optimal"]})
    return ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How often the experiment is repeated; φ was revised looking at splits 0 to 3."""

    splits: int = 8
    seed: int = 100  # of the first split
    draws: int = 16  # of random, in each split
    boosted_draws: int = 3  # of random, fitted with boosted trees too
    operators: bool = False  # operator points, measured cold, are candidates too


def run(store: Path, out: Path, device_name: str, options: Options) -> None:
    device = known_device(device_name)
    points = [p for p in read(Store(store), device) if options.operators or p.candidate.point.kind == "step"]
    splits = range(options.seed, options.seed + options.splits)
    results = fit_all(points, device, splits, options.draws, options.boosted_draws)
    report: dict[str, Any] = {
        "device": device.name, "points": len(points), "splits": list(splits), "draws": options.draws,
        "building_seconds": dict(BUILDING), "curves": {}, "ratios": {},
    }  # fmt: skip
    for model in MODELS:
        for kind in ("step", "op"):
            name, found = f"{model}, {kind}", curves(results, model, kind)
            [(_, least, _, _)] = found["all"]
            worst = found["random"][0][1]
            levels = LEVELS if kind == "step" else np.linspace(worst, least, 10)[1:-1].round(3).tolist()
            report["curves"][name], report["ratios"][name] = found, ratios(found, levels)
            print(f"\n{name} error, by seconds of measuring")
            for method, curve in found.items():
                print(f"  {method:30}", "  ".join(f"{s:.0f} s {e:.3f}" for s, e, *_ in curve))
            for r in report["ratios"][name]:
                predicted = ", ".join(f"{m} {s:.0f} s" for m, s in r["seconds"].items())
                print(f"  to {r['error']:.3f}: {predicted}: {r['ratio']:.1f} times fewer than random")
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    shown = {m: c for m, c in report["curves"]["linear, step"].items() if m in ("random", "a-optimal", "d-optimal")}
    out.with_suffix(".svg").write_text(error_curves(shown), encoding="utf-8")
