"""How much longer kernels took under older versions of torch, fitted on inference steps that timm published under several.

The same networks ran on one board under each version, so a ratio of two of their times tells the versions apart whatever a
forecast says of the board. What timm itself did otherwise then (norms in fp32) is captured, what torch did (attention that
writes its scores) is priced, and the rest is one factor for each family of kernels, or one for all where that says more of
networks left out. Their gradients are taken to be alike.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.folder import CARD, SHIPPED, seal
from foretell.cost.model import load_model
from foretell.cost.older_software import FILE, OlderSoftware, device_seconds
from foretell.forecasting.step import one_device_step
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.learn.transfer.published_steps import PublishedStep, graph_of
from foretell.profile import FAMILIES, family_of
from foretell.software import Software
from foretell.store.importers import Row, public_rows

Floats = npt.NDArray[np.float64]
TODAY: Final = "pt240"
VERSIONS: Final = {"pt111": "1.11", "pt112": "1.12", "pt113": "1.13", "pt210": "2.1"}
_BOARD: Final = ("rtx3090", "rtx-3090")
FAST_NORMS: Final = (2, 0)  # the first torch whose steps timm published with norms in half precision
_PULL: Final = 0.15  # towards 1, of a factor's logarithm beside the errors of steps
_FOLDS: Final = 5
_BACKWARD: Final = "_backward"
_EVERY: Final = ""  # stands for all families


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A network under today's version and under older ones: measured ratios, and seconds by family as they are forecast."""

    source: str
    ratios: Mapping[str, float]  # by version
    today: float
    families: Mapping[str, Mapping[str, float]]  # of the network as timm ran it under a version, by today's kernels
    scores: Mapping[str, float]  # and what attention took beyond, by version

    def parts(self, version: str, *, alike: bool) -> Mapping[str, float]:
        """Seconds by family; all together where families are alike."""
        found = self.families[version]
        return {_EVERY: sum(found.values())} if alike else found


def fit(data: Path, folder: Path, inherits: str, models: int, jobs: int, say: Callable[[str], None]) -> None:
    """Fit on networks drawn by their names, report what is left out, and write a version that inherits all else."""
    drawn = _drawn(data, models)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        rows = [row for row in pool.imap_unordered(_compared, drawn) if row is not None]
    rows.sort(key=lambda row: row.source)
    say(f"{len(rows)} networks and layouts of {len(drawn)}")
    errors = []
    times: dict[str, dict[str, float]] = {}
    for version in VERSIONS.values():
        some = [row for row in rows if version in row.ratios]
        ways = {alike: _left_out(some, version, alike=alike) for alike in (False, True)}
        alike = _mean(ways[True]) < _mean(ways[False])
        times[version] = _of_families(_solve(some, version, alike=alike), some)
        errors += ways[alike]
        none = [math.log(row.ratios[version]) for row in some]
        say(
            f"torch {version}: {len(some)} steps take {math.exp(np.median(none)):.2f} times as long; unseen networks "
            f"{_mean(ways[False]):.1%} off by families, {_mean(ways[True]):.1%} by one factor, {_mean(none):.1%} as of today"
        )
    _write(folder, inherits, times, float(np.std(errors)), len(rows))


def _of_families(times: dict[str, float], rows: Sequence[Compared]) -> dict[str, float]:
    every = times.pop(_EVERY, None)
    families = {family for row in rows for parts in row.families.values() for family in parts}
    return times if every is None else dict.fromkeys(sorted(families), every)


def _mean(logs: Sequence[float]) -> float:
    return float(np.abs(np.expm1(logs)).mean())


def _drawn(data: Path, models: int) -> list[tuple[str, str, dict[str, Row]]]:
    """Networks in the order of a hash of their names, each in both layouts, with their rows by version."""
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in public_rows(data, "timm_infer"):
        if row["device"] == _BOARD[0] and not row["compiled"] and row["batch"] and row["step_seconds"]:
            found[row["model"], row["layout"]][row["torch"]] = row
    several = {key: rows for key, rows in found.items() if TODAY in rows and len(rows) > 1}
    names = sorted({model for model, _ in several}, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return [(*key, several[key]) for name in names[:models] for key in sorted(several) if key[0] == name]


def _compared(drawn: tuple[str, str, dict[str, Row]]) -> Compared | None:
    """None where the network is not built today, or each version ran other images."""
    model, layout, rows = drawn
    row = rows[TODAY]
    step = PublishedStep(
        origin="timm_infer",
        device=_BOARD[1],
        source=f"timm/{model}",
        settings={
            "batch": str(row["batch"]),
            "image_size": str(row["image_size"]),
            "precision": "amp-fp16",
            "channels_last": str(layout == "nhwc").lower(),
            "optimizer": "none",
        },
        seconds=row["step_seconds"],
    )
    then, now = graph_of(step), graph_of(replace(step, settings={**step.settings, "fast_norm": "true"}))
    per_sample = {
        VERSIONS[name]: each["step_seconds"] / each["batch"]
        for name, each in rows.items()
        if name in VERSIONS and each["image_size"] == row["image_size"]
    }
    if then is None or now is None or not per_sample:
        return None
    board, by = known_device(_BOARD[1]), load_model()
    today = row["step_seconds"] / row["batch"]
    ran = {version: now if Software.parse(version).torch >= FAST_NORMS else then for version in per_sample}
    seconds = {g.content_hash: one_device_step(g, board, by).durations.device for g in (then, now)}
    return Compared(
        source=step.source,
        ratios={version: each / today for version, each in per_sample.items()},
        today=float(one_device_step(now, board, by).device_seconds),
        families={version: _by_family(graph, seconds[graph.content_hash]) for version, graph in ran.items()},
        scores={v: _scores(graph, seconds[graph.content_hash], board, v) for v, graph in ran.items()},
    )


def _by_family(graph: Graph, seconds: Floats) -> dict[str, float]:
    parts: dict[str, float] = defaultdict(float)
    for call, each in zip(graph.calls.distinct, graph.calls.sums(seconds * graph.runs), strict=True):
        parts[family_of(call.signature)] += each
    return dict(parts)


def _scores(graph: Graph, seconds: Floats, board: Device, version: str) -> float:
    under = device_seconds(seconds, graph, board, Software.parse(version), OlderSoftware())
    return float((under - seconds) @ graph.runs)


def _solve(rows: Sequence[Compared], version: str, *, alike: bool) -> dict[str, float]:
    """Factors of families; those that take little of every step stay near 1."""
    from scipy.optimize import least_squares

    parts = [row.parts(version, alike=alike) for row in rows]
    families = sorted({family for each in parts for family in each})
    table = np.array([[each.get(f, 0.0) / row.today for f in families] for each, row in zip(parts, rows, strict=True)])
    scores = np.array([row.scores[version] / row.today for row in rows])
    wanted = np.log([row.ratios[version] for row in rows])

    def residuals(logs: Floats) -> Floats:
        return np.concatenate([np.log(table @ np.exp(logs) + scores) - wanted, _PULL * logs])

    logs = least_squares(residuals, np.zeros(len(families)), loss="soft_l1", f_scale=0.1, bounds=(-0.6, 2.2)).x
    return dict(zip(families, np.exp(logs).tolist(), strict=True))


def _left_out(rows: Sequence[Compared], version: str, *, alike: bool) -> list[float]:
    """Errors, as logarithms, of networks that a fit has not seen."""
    folds: dict[int, list[Compared]] = defaultdict(list)
    for row in rows:
        folds[int(hashlib.sha256(row.source.encode()).hexdigest(), 16) % _FOLDS].append(row)
    errors = []
    for number, left in folds.items():
        seen = [row for each, some in folds.items() if each != number for row in some]
        factors = _solve(seen, version, alike=alike)
        for row in left:
            under = sum(s * factors.get(family, 1.0) for family, s in row.parts(version, alike=alike).items())
            errors.append(math.log((under + row.scores[version]) / row.today / row.ratios[version]))
    return errors


def _write(folder: Path, inherits: str, times: Mapping[str, Mapping[str, float]], spread: float, rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"torch-{version}": _with_gradients(factors) for version, factors in times.items()}
    named["torch-2.4"] = {}
    content = {
        "source": f"Kernels of other versions of torch are from {rows} inference steps of timm on one RTX 3090.",
        "spread": round(spread, 4),
        "times": named,
    }
    (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")
    card: dict[str, Any] = json.loads((SHIPPED / inherits / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, "name": folder.name, "inherits": inherits}, indent=2) + "\n")
    seal(folder)


def _with_gradients(factors: Mapping[str, float]) -> dict[str, float]:
    gradients = {f"{family}{_BACKWARD}": factor for family, factor in factors.items()}
    return {f: round(times, 3) for f, times in {**factors, **gradients}.items() if f in FAMILIES}
