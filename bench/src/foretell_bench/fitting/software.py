"""How much longer kernels took under older versions of torch, fitted on steps that timm published of one board.

The same networks ran in inference under each version, so a ratio of two of their times tells the versions apart whatever a
forecast says of the board. Training was published under the older versions alone: there a step is compared with what is
forecast of it as of today, networks that other tables judge by are left out, and what is common to all of them is the
board's. What timm itself did otherwise then (norms in fp32) is captured, what torch did (attention that writes its scores,
optimizers that go from tensor to tensor) is priced, and the rest is one factor for each family of kernels, or one for all
where that says more of networks left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foretell.cost.folder import CARD, SHIPPED, seal
from foretell.cost.model import load_model
from foretell.cost.older_software import FILE, OlderSoftware, device_seconds
from foretell.forecasting.step import RoleStep, one_device_step
from foretell.hardware import device as known_device
from foretell.learn.transfer.published_steps import PublishedStep, graph_of, published_steps
from foretell.profile import FAMILIES, family_of
from foretell.software import Software
from foretell.store.importers import Row, public_rows
from foretell.units import Seconds
from foretell_bench.sources.settings import is_tested

Floats = npt.NDArray[np.float64]
TODAY: Final = "pt240"
VERSIONS: Final = {"pt111": "1.11", "pt112": "1.12", "pt113": "1.13", "pt210": "2.1"}
_BOARD: Final = ("rtx3090", "rtx-3090")
FAST_NORMS: Final = (2, 0)  # the first torch whose steps timm published with norms in half precision
_PULL: Final = 0.15  # towards 1, of a factor's logarithm beside the errors of steps
_FOLDS: Final = 5
_BACKWARD: Final = "_backward"
_EVERY: Final = ""  # stands for all families
_TRAINER: Final = "sgd-momentum-forloop"  # timm's benchmark
_LIKE: Final = "the board, trained"  # what forecasts of training are off by, whatever the version


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A network's step under a version, over what is known of it as of today."""

    source: str
    layout: str
    version: str
    trains: bool
    took: float  # times as long as today's: measured, or for training forecast
    families: Mapping[str, float]  # shares of today's, by family of today's kernels
    scores: float = 0.0  # what torch itself did otherwise, as such a share


def fit(
    data: Path, folder: Path, inherits: str, models: int, trained: int, jobs: int, say: Callable[[str], None],
    seconds: float = math.inf, rows: Path | None = None,
) -> None:  # fmt: skip
    """Fit on networks drawn by their names, report what is left out, and write a version that inherits all else.

    No capture begins after so many seconds. `rows` keeps what was compared; what it has is not captured again.
    """
    found = [Compared(**each) for each in json.loads(rows.read_text())] if rows is not None and rows.exists() else []
    known = {(row.source, row.layout, row.trains) for row in found}
    drawn = [
        each for each in _interleaved(_drawn(data, models), _drawn_to_train(data, trained)) if each.key not in known
    ]
    found += _compare(drawn, jobs, say, seconds)
    if rows is not None:
        rows.write_text("[" + ",\n".join(json.dumps(asdict(row)) for row in found) + "]\n")
    errors: list[float] = []
    times: dict[str, dict[str, float]] = {}
    for version in VERSIONS.values():
        some = [row for row in found if row.version == version]
        if not some:
            continue
        ways = {alike: _left_out(some, alike=alike) for alike in (False, True)}
        alike = not any(row.trains for row in some) and _mean(ways[True]) < _mean(ways[False])
        times[version] = _of_families(_solve(some, alike=alike), some)
        errors += [error for _, error in ways[alike]]
        for trains in (False, True):
            if any(row.trains is trains for row in some):
                say(_reported(version, some, ways, trains=trains))
    _write(folder, inherits, times, float(np.std(errors)), found)


def _reported(
    version: str, rows: Sequence[Compared], ways: Mapping[bool, Sequence[tuple[Compared, float]]], *, trains: bool
) -> str:
    own = [row for row in rows if row.trains is trains]
    none = [math.log(sum(row.families.values()) / row.took) for row in own]
    by, one = (_mean([pair for pair in ways[alike] if pair[0].trains is trains]) for alike in (False, True))
    return (
        f"torch {version}, {'training' if trains else 'inference'}: {len(own)} steps take "
        f"{math.exp(np.median([math.log(row.took) for row in own])):.2f} times as long; unseen networks {by:.1%} off by families, "
        f"{one:.1%} by one factor, {_mean([(row, log) for row, log in zip(own, none, strict=True)]):.1%} as of today"
    )


def _of_families(times: dict[str, float], rows: Sequence[Compared]) -> dict[str, float]:
    every = times.pop(_EVERY, None)
    times.pop(_LIKE, None)
    families = {family for row in rows for family in row.families}
    return times if every is None else dict.fromkeys(sorted(families), every)


def _mean(errors: Sequence[tuple[Compared, float]]) -> float:
    return float(np.abs(np.expm1([error for _, error in errors])).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    model: str
    layout: str
    rows: Mapping[str, Row]  # by version as the file names it
    trains: bool

    @property
    def source(self) -> str:
        return f"timm/{self.model}"

    @property
    def key(self) -> tuple[str, str, bool]:
        return self.source, self.layout, self.trains


def _drawn(data: Path, models: int) -> list[_Drawn]:
    """Networks in the order of a hash of their names, each in both layouts, with their rows by version."""
    several = {key: rows for key, rows in _by_network(data, "timm_infer").items() if TODAY in rows and len(rows) > 1}
    return _first(several, {model for model, _ in several}, models, trains=False)


def _drawn_to_train(data: Path, models: int) -> list[_Drawn]:
    """Networks whose training steps no other table judges forecasts by."""
    judged = {step.source for step in published_steps(data)["timm_train"].items}
    rows = {key: own for key, own in _by_network(data, "timm_train").items() if set(own) & set(VERSIONS)}
    names = {model for model, _ in rows if f"timm/{model}" not in judged and not is_tested(model)}
    return _first(rows, names, models, trains=True)


def _by_network(data: Path, name: str) -> dict[tuple[str, str], dict[str, Row]]:
    found: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in public_rows(data, name):
        if row["device"] == _BOARD[0] and not row["compiled"] and row["batch"] and row["step_seconds"]:
            found[row["model"], row["layout"]][row["torch"]] = row
    return found


def _first(
    several: Mapping[tuple[str, str], Mapping[str, Row]], models: set[str], most: int, *, trains: bool
) -> list[_Drawn]:
    names = sorted(models, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:most]
    return [
        _Drawn(model=model, layout=layout, rows=several[model, layout], trains=trains)
        for name in names
        for model, layout in sorted(several)
        if model == name
    ]


def _interleaved(*lists: Sequence[_Drawn]) -> list[_Drawn]:
    """So that a fit that is stopped has a part of each."""
    placed = [((i + 0.5) / len(those), n, each) for n, those in enumerate(lists) for i, each in enumerate(those)]
    return [each for _, _, each in sorted(placed, key=lambda place: place[:2])]


def _compare(drawn: Sequence[_Drawn], jobs: int, say: Callable[[str], None], seconds: float) -> list[Compared]:
    found: list[Compared] = []
    until = time.monotonic() + seconds
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        waiting = pool.imap_unordered(_compared, drawn)
        for number in range(len(drawn)):
            try:
                found += waiting.next(max(0.0, until - time.monotonic()))
            except multiprocessing.TimeoutError:
                say(f"{number} networks and layouts of {len(drawn)}: the time is up")
                break
        pool.terminate()
    return sorted(found, key=lambda row: (row.source, row.version, row.took))


def _compared(drawn: _Drawn) -> list[Compared]:
    """None where the network is not built today, or each version ran other images."""
    return list(_trained(drawn) if drawn.trains else _inferred(drawn))


def _step(drawn: _Drawn, row: Row, **more: str) -> PublishedStep:
    return PublishedStep(
        origin="timm_train" if drawn.trains else "timm_infer",
        device=_BOARD[1],
        source=drawn.source,
        settings={
            "batch": str(row["batch"]),
            "image_size": str(row["image_size"]),
            "precision": "amp-fp16",
            "channels_last": str(drawn.layout == "nhwc").lower(),
            "optimizer": _TRAINER if drawn.trains else "none",
            **more,
        },
        seconds=row["step_seconds"],
    )


def _inferred(drawn: _Drawn) -> Iterator[Compared]:
    row = drawn.rows[TODAY]
    alike = {v: each for v, each in drawn.rows.items() if v in VERSIONS and each["image_size"] == row["image_size"]}
    then, now = (_priced(_step(drawn, row, **more)) for more in ({}, {"fast_norm": "true"}))
    if then is None or now is None:
        return
    base = now.device_seconds
    for name, each in alike.items():
        version = VERSIONS[name]
        step = now if Software.parse(version).torch >= FAST_NORMS else then
        took = each["step_seconds"] / each["batch"] / (row["step_seconds"] / row["batch"])
        yield _of_step(drawn, version, took, step, base)


def _trained(drawn: _Drawn) -> Iterator[Compared]:
    """A batch that differs between versions is nearly as fast a sample; what the host adds is forecast."""
    known = {VERSIONS[v]: each for v, each in drawn.rows.items() if v in VERSIONS}
    if not known:
        return
    row = list(known.values())[-1]
    step = _priced(_step(drawn, row))
    if step is None:
        return
    base = step.device_seconds
    per_sample = step.step_seconds / int(row["batch"])
    for version, each in known.items():
        if each["image_size"] == row["image_size"]:
            yield _of_step(drawn, version, each["step_seconds"] / each["batch"] / per_sample, step, base)


def _of_step(drawn: _Drawn, version: str, took: float, step: RoleStep, base: Seconds) -> Compared:
    graph = step.role.graph
    seconds = step.durations.device
    under = device_seconds(seconds, graph, known_device(_BOARD[1]), Software.parse(version), OlderSoftware())
    parts: dict[str, float] = defaultdict(float)
    for call, each in zip(graph.calls.distinct, graph.calls.sums(seconds * graph.runs), strict=True):
        parts[family_of(call.signature)] += each / base
    scores = float((under - seconds) @ graph.runs) / base
    return Compared(
        source=drawn.source,
        layout=drawn.layout,
        version=version,
        trains=drawn.trains,
        took=took,
        families=dict(parts),
        scores=scores,
    )


@cache
def _model() -> Any:
    return load_model()


def _priced(step: PublishedStep) -> RoleStep | None:
    graph = graph_of(step)
    return None if graph is None else one_device_step(graph, known_device(_BOARD[1]), _model())


def _plain(family: str) -> str:
    return family.removesuffix(_BACKWARD)


def _solve(rows: Sequence[Compared], *, alike: bool) -> dict[str, float]:
    """Factors of families; those that take little of every step stay near 1, gradients near their kernels."""
    from scipy.optimize import least_squares

    names = [_EVERY] if alike else sorted({family for row in rows for family in row.families})
    trains = np.array([row.trains for row in rows])
    table = np.array(
        [[sum(row.families.values())] if alike else [row.families.get(f, 0.0) for f in names] for row in rows]
    )
    scores = np.array([row.scores for row in rows])
    wanted = np.log([row.took for row in rows])
    like = [names.index(_plain(f)) if _plain(f) != f and _plain(f) in names else -1 for f in names]
    pulled = np.array([i for i, other in enumerate(like) if other < 0])
    paired = [(i, other) for i, other in enumerate(like) if other >= 0]

    def residuals(x: Floats) -> Floats:
        logs, board = x[:-1], x[-1]
        near = np.array([logs[i] - logs[other] for i, other in paired])
        off = np.log(table @ np.exp(logs) + scores) + board * trains - wanted
        return np.concatenate([off, _PULL * logs[pulled], _PULL * near, [_PULL * board]])

    x = least_squares(residuals, np.zeros(len(names) + 1), loss="soft_l1", f_scale=0.1, bounds=(-0.6, 2.2)).x
    return dict(zip([*names, _LIKE], np.exp(x).tolist(), strict=True))


def _left_out(rows: Sequence[Compared], *, alike: bool) -> list[tuple[Compared, float]]:
    """Errors, as logarithms, of networks that a fit has not seen."""
    folds: dict[int, list[Compared]] = defaultdict(list)
    for row in rows:
        folds[int(hashlib.sha256(row.source.encode()).hexdigest(), 16) % _FOLDS].append(row)
    errors = []
    for number, left in folds.items():
        seen = [row for each, some in folds.items() if each != number for row in some]
        factors = _solve(seen, alike=alike) if seen else {}
        for row in left:
            every = factors.get(_EVERY)
            under = sum(s * (every or _factor(factors, family)) for family, s in row.families.items())
            errors.append((row, math.log((under + row.scores) / row.took)))
    return errors


def _factor(factors: Mapping[str, float], family: str) -> float:
    return factors.get(family, factors.get(_plain(family), 1.0))


def _write(
    folder: Path, inherits: str, times: Mapping[str, Mapping[str, float]], spread: float, rows: Sequence[Compared]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"torch-{version}": _with_gradients(factors) for version, factors in times.items()}
    named["torch-2.4"] = {}
    count = [sum(row.trains is trains for row in rows) for trains in (False, True)]
    content = {
        "source": f"Kernels of other versions of torch are from {count[0]} steps of inference and {count[1]} of training of "
        "timm on one RTX 3090.",
        "spread": round(spread, 4),
        "times": named,
    }
    (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")
    if not (folder / CARD).exists():
        card: dict[str, Any] = json.loads((SHIPPED / inherits / CARD).read_text())
        (folder / CARD).write_text(json.dumps({**card, "name": folder.name, "inherits": inherits}, indent=2) + "\n")
    seal(folder)


def _with_gradients(factors: Mapping[str, float]) -> dict[str, float]:
    """A gradient that no training step told of is as its kernel."""
    gradients = {f"{family}{_BACKWARD}": factor for family, factor in factors.items()}
    return {f: round(times, 3) for f, times in {**gradients, **factors}.items() if f in FAMILIES}
