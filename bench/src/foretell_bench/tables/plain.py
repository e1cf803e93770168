"""`foretell bench plain`: steps that were timed where nothing was ever traced, as `foretell.forecast` sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from foretell import forecast
from foretell.cost.model import DEFAULT, load_model
from foretell.design.blind import is_blind
from foretell.errors import InputError
from foretell.forecasting.result import Duration
from foretell.learn.dataset import is_recorded_alone
from foretell.measure.record import StepRow
from foretell_bench.errors import Errors
from foretell_bench.rounding import short
from foretell_bench.tables.accuracy import opened
from foretell_bench.tables.figures import Figure

_HOST_BOUND: Final = 0.6  # of the step with a kernel running, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """What was measured, and the forecast with its interval."""

    source: str
    training: bool
    blind: bool  # a generated network that no fit has seen
    busy: float  # the part of the step with a kernel running
    measured: float
    predicted: float
    low: float
    high: float


def predict(
    data: Path, graphs: Sequence[Path], *, progress: Callable[[str], None] = lambda text: None
) -> list[PlainStep]:
    """Every plainly timed step of a store; its graph and kernels are those of the same point in others."""
    device = load_model(DEFAULT).device
    timed = [s for s in opened([data])[0].steps(f"device = '{device}' AND kind = 'step'") if s.outcome == "ok"]
    found = []
    for store in opened(graphs):
        known = {s.point: s for s in store.steps(f"device = '{device}' AND kind = 'step'") if _is_known(s)}
        rows = [s for s in timed if s.point in known and s.step_seconds]
        read = store.graphs({known[s.point].graph or "" for s in rows})
        for number, row in enumerate(rows, 1):
            progress(f"forecasting step {number} of {len(rows)}")
            same = known[row.point]
            found.append(_step(row, same, forecast(read[same.graph or ""], on=device).step_time))
    if not found:
        raise InputError(f"{data} has no step whose graph the other stores have. Give --data bench/data/h200-plain.")
    return found


def _is_known(row: StepRow) -> bool:
    return bool(row.graph and row.device_seconds) and row.outcome == "ok" and not is_recorded_alone(row)


def _step(row: StepRow, same: StepRow, predicted: Duration) -> PlainStep:
    low, high = (predicted.seconds if end is None else end for end in (predicted.low, predicted.high))
    measured = row.step_seconds or 0.0
    return PlainStep(
        source=row.source, training=bool(same.training), blind=is_blind(row.source), busy=(same.device_seconds or 0.0) / measured,
        measured=measured, predicted=predicted.seconds, low=low, high=high,
    )  # fmt: skip


def figures(steps: Sequence[PlainStep]) -> Iterator[Figure]:
    bound = [s for s in steps if s.busy < _HOST_BOUND]
    for source, those in (
        ("all", steps),
        ("the host sets the pace", bound),
        ("the host sets the pace, training", [s for s in bound if s.training]),
        ("the host sets the pace, inference", [s for s in bound if not s.training]),
        ("the host sets the pace, networks that no fit has seen", [s for s in bound if s.blind]),
    ):
        if not those:
            continue
        errors = Errors.of([s.predicted for s in those], [s.measured for s in those])
        inside = sum(s.low <= s.measured <= s.high for s in those) / len(those)
        for measure, value in (
            ("step time, mean error", errors.mean),
            ("step time, median error", errors.median),
            ("step time, predicted over measured less one, mean", errors.bias),
            ("inside the 90 % interval", inside),
        ):
            yield Figure(source=source, measure=measure, value=value, rows=errors.count)


def save(steps: Sequence[PlainStep], path: Path) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(short(asdict(s))) for s in steps) + "\n]\n")


def read(path: Path) -> list[PlainStep]:
    try:
        return [PlainStep(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{path} holds no plain steps ({error}). Make some: foretell bench plain --save FILE"
        ) from error
