"""`foretell bench accuracy --split generated`: networks nobody named, which no fit has seen, as `foretell.forecast` sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from foretell import device, forecast
from foretell.capture import capture
from foretell.cost.model import DEFAULT, CostModel, load_model
from foretell.design.blind import GENERATED, is_blind, is_generated
from foretell.design.generated import kind_of
from foretell.errors import InputError
from foretell.forecasting.result import Duration
from foretell.graph import Graph
from foretell.learn.dataset import is_recorded_alone
from foretell.measure.record import StepRow
from foretell.store.store import Store
from foretell_bench.errors import Errors
from foretell_bench.research.coverage import Coverage, Hit, coverage_of
from foretell_bench.rounding import short
from foretell_bench.tables.accuracy import BUSY, opened
from foretell_bench.tables.figures import Figure

FIRST: Final = "blind quarter"
SECOND: Final = "measured last"
_LAST_SEEDS: Final = 1000  # and up: measured after all generated networks that models learn from
_NEARLY_FULL: Final = 0.95
_ALONE_SINCE: Final = "2026-11-19T06"  # workspaces of the networks before are given back (`foretell.measure.build`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """What errors should not exceed; None: nothing was set."""

    device: Mapping[str, float]
    busy: float | None = None
    inference: float | None = None
    allocated: float
    reserved: float


BARS: Final = Bars(
    device={"mean error": 0.07, "median error": 0.04, "90th percentile": 0.16},
    busy=0.07, inference=0.12, allocated=0.02, reserved=0.05,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What was measured, and the forecast with its interval."""

    measured: float
    predicted: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        return self.low <= self.measured <= self.high

    @classmethod
    def of(cls, measured: float, predicted: Duration) -> Pair:
        low, high = (predicted.seconds if end is None else end for end in (predicted.low, predicted.high))
        return cls(measured=measured, predicted=predicted.seconds, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindStep:
    source: str
    part: str  # FIRST or SECOND
    kind: str  # of data it works on
    precision: str
    training: bool
    plain: bool  # its recorded kernels are those of plain steps, so that its device time is known
    device: Pair
    step: Pair
    allocated: tuple[int, int]  # measured, predicted
    reserved: tuple[int, int]
    fits: bool = True  # as forecast; all of them ran
    full: float = 0.0  # part of the device's memory that was measured


def predict_blind(
    paths: Sequence[Path], model: str | None = None, *, progress: Callable[[str], None] = lambda text: None
) -> list[BlindStep]:
    """Every blind step of generated networks, by a model as it is."""
    fitted = load_model(model or DEFAULT)
    found = [
        forecast_row(row, graph, fitted, part=_part_of(row), kind=_kind_of(row))
        for row, graph in judged_rows(
            paths, fitted.device, lambda source: is_generated(source) and is_blind(source), progress
        )
    ]
    if not found:
        raise InputError(
            "no store has steps of generated networks that are kept blind. Give --data bench/data/h200-generated."
        )
    return found


def judged_rows(
    paths: Sequence[Path], on: str, chosen: Callable[[str], bool], progress: Callable[[str], None]
) -> Iterator[tuple[StepRow, Graph]]:
    """Steps of chosen sources that ran and whose kernels were timed, with the peaks that were measured of them last."""
    stores = opened(paths)
    peaks = _peaks_again(stores, on)
    for store in stores:
        found = [r for r in store.steps(f"device = '{on}' AND kind = 'step'") if chosen(r.source) and _is_judged(r)]
        rows = [_with_peaks(r, peaks.get(r.point)) for r in found]
        graphs = store.graphs({r.graph for r in rows if r.graph})
        for number, row in enumerate(rows, 1):
            progress(f"forecasting step {number} of {len(rows)}")
            # A step that launched other kernels while it was recorded is captured as a user's is.
            yield row, _captured(row) if is_recorded_alone(row) else graphs[row.graph or ""]


def _peaks_again(stores: Sequence[Store], on: str) -> dict[str, StepRow]:
    """Point → the step that was measured of it where networks before it had left no workspaces in the process.

    Until then a step in inference had 33 MiB more than it takes, and more was reserved around those.
    """
    where = f"device = '{on}' AND kind = 'step' AND date >= '{_ALONE_SINCE}'"
    rows = sorted((r for store in stores for r in store.steps(where)), key=lambda r: r.date)
    return {r.point: r for r in rows if r.outcome in ("ok", "nan-loss") and r.peak_allocated and r.peak_reserved}


def _with_peaks(row: StepRow, again: StepRow | None) -> StepRow:
    if again is None:
        return row
    return replace(row, peak_allocated=again.peak_allocated, peak_reserved=again.peak_reserved)


def _captured(row: StepRow) -> Graph:
    return capture(row.source, json.loads(row.settings))


def forecast_row(row: StepRow, graph: Graph, model: CostModel, *, part: str, kind: str) -> BlindStep:
    """What `foretell.forecast` says of a measured step's graph, beside what was measured."""
    predicted = forecast(graph, on=model.device, model=model)
    return BlindStep(
        source=row.source,
        part=part,
        kind=kind,
        precision=row.precision,
        training=bool(row.training),
        plain=not is_recorded_alone(row),
        device=Pair.of(row.device_seconds or 0.0, predicted.device_time),
        step=Pair.of(row.step_seconds or 0.0, predicted.step_time),
        allocated=(row.peak_allocated or 0, predicted.memory.allocated),
        reserved=(row.peak_reserved or 0, predicted.memory.reserved),
        fits=predicted.memory.fits,
        full=(row.peak_reserved or 0) / device(model.device).usable_bytes,
    )


def _kind_of(row: StepRow) -> str:
    return kind_of(_seed(row))


def _part_of(row: StepRow) -> str:
    return SECOND if _seed(row) >= _LAST_SEEDS else FIRST


def _seed(row: StepRow) -> int:
    return int(row.source.removeprefix(GENERATED))


def _is_judged(row: StepRow) -> bool:
    times = row.step_seconds and row.device_seconds
    return row.outcome in ("ok", "nan-loss") and bool(row.graph and times)


def figures(steps: Sequence[BlindStep]) -> list[Figure]:
    return [figure for part in (FIRST, SECOND) for figure in of_part(part, [s for s in steps if s.part == part])]


def of_part(part: str, steps: Sequence[BlindStep], bars: Bars = BARS) -> Iterator[Figure]:
    """Errors of time and memory, intervals, and whether what ran was called unfit."""
    plain = [s for s in steps if s.plain]
    if not plain:
        return
    yield from _errors(f"{part}: device time", [s.device for s in plain], bars.device)
    yield from _errors(f"{part}: step time", [s.step for s in steps], {})
    busy = [s.step for s in steps if s.device.measured >= BUSY * s.step.measured]
    yield from _errors(f"{part}: step time, device-bound", busy, _mean(bars.busy))
    yield from _errors(
        f"{part}: step time, inference", [s.step for s in steps if not s.training], _mean(bars.inference)
    )
    for what, hits in (
        ("device", [_hit(s, s.device) for s in plain]),
        ("step", [_hit(s, s.step) for s in steps]),
        ("step, inference", [_hit(s, s.step) for s in steps if not s.training]),
    ):
        if hits:
            covered = coverage_of(what, "", hits)
            source, rows = f"{part}: {what} interval", covered.architectures
            yield Figure(source=source, measure="networks inside 90 %", value=covered.inside, rows=rows)
            yield Figure(source=source, measure="median of high ÷ low", value=covered.width, rows=rows)
    for what, pairs, bar in (
        ("peak allocated", [s.allocated for s in steps], bars.allocated),
        ("peak reserved", [s.reserved for s in steps], bars.reserved),
    ):
        known = [(m, p) for m, p in pairs if m]
        if known:
            off = Errors.of([p for _, p in known], [m for m, _ in known])
            yield Figure(source=f"{part}: {what}", measure="mean error", value=off.mean, bar=bar, rows=off.count)
            yield Figure(source=f"{part}: {what}", measure="median error", value=off.median, rows=off.count)
            most = float(np.max([p / m for m, p in known]))
            yield Figure(source=f"{part}: {what}", measure="largest forecast ÷ measured", value=most, rows=off.count)
    sure = [s for s in steps if s.full < _NEARLY_FULL]
    wrong = float(np.mean([not s.fits for s in sure])) if sure else None
    yield Figure(
        source=f"{part}: fits", measure="ran with 5 % to spare, called unfit", value=wrong, bar=0.0, rows=len(sure)
    )


def _mean(bar: float | None) -> Mapping[str, float]:
    return {} if bar is None else {"mean error": bar}


def _errors(source: str, pairs: Sequence[Pair], bars: Mapping[str, float]) -> Iterator[Figure]:
    if not pairs:
        return
    errors = Errors.of([p.predicted for p in pairs], [p.measured for p in pairs])
    for measure, value in (
        ("mean error", errors.mean),
        ("median error", errors.median),
        ("90th percentile", errors.p90),
    ):
        yield Figure(source=source, measure=measure, value=value, bar=bars.get(measure), rows=errors.count)


def _hit(step: BlindStep, pair: Pair) -> Hit:
    return step.source, pair.is_inside, pair.high / pair.low


def by_kind(steps: Sequence[BlindStep]) -> list[tuple[str, Errors, Coverage]]:
    """Kind of network → errors of device time, and of its interval."""
    found = []
    for kind in sorted({s.kind for s in steps}):
        those = [s for s in steps if s.kind == kind and s.plain]
        if those:
            errors = Errors.of([s.device.predicted for s in those], [s.device.measured for s in those])
            found.append((kind, errors, coverage_of("device", kind, [_hit(s, s.device) for s in those])))
    return found


def save(steps: Sequence[BlindStep], path: Path) -> None:
    path.write_text('{"steps": [\n' + ",\n".join(json.dumps(short(asdict(s))) for s in steps) + "\n]}\n")


def read(path: Path) -> list[BlindStep]:
    try:
        rows = json.loads(path.read_text())["steps"]
        return [BlindStep(**{**r, "device": Pair(**r["device"]), "step": Pair(**r["step"])}) for r in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no blind steps ({error}). Make some: foretell bench accuracy --split generated"
        ) from error
