"""`foretell bench newer`: steps that were measured after a model was fitted, predicted by that model as it is shipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from foretell.cost.model import DEFAULT, SHIPPED, load_model
from foretell.errors import InputError
from foretell.forecasting.uncertainty.own_device import Calibration, calibration_of
from foretell.learn.dataset import load
from foretell.learn.fit import families_of, read_card
from foretell.learn.uncertainty.left_out import LeftOutStep, predict
from foretell.store.store import Store
from foretell_bench.research.coverage import coverage_of, hits_of
from foretell_bench.rounding import short
from foretell_bench.tables.accuracy import errors_of, is_device_bound
from foretell_bench.tables.figures import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Newer:
    """What a model predicted of steps it could not know."""

    model: str
    last: str  # date of the last measurement it was fitted on
    steps: Sequence[LeftOutStep]
    calibration: Calibration | None


def predict_newer(path: Path, model: str | None, *, progress: Callable[[str], None] = lambda text: None) -> Newer:
    """What a model predicts of steps on its device that are newer than all it was fitted on, of architectures new to it."""
    model = model or DEFAULT
    fitted = load_model(model)
    folder = SHIPPED / model if (SHIPPED / model).is_dir() else Path(model)
    card = read_card(folder)
    measured = load(Store(path), card.device, progress)
    known = {s.source for s in measured.steps if s.date <= card.last}
    newer = [
        i for i, s in enumerate(measured.steps) if s.date > card.last and s.source not in known and measured.is_timed(i)
    ]
    if not newer:
        raise InputError(
            f"{path} holds no step of a new architecture measured after {card.last}, when the last measurement that model "
            f"{model} was fitted on was made. Measure some, or give an older model: --model FOLDER."
        )
    families = families_of(Store(path))
    steps = []
    for number, i in enumerate(newer, 1):
        progress(f"predicting step {number} of {len(newer)}")
        source = measured.steps[i].source
        steps.append(predict(measured, i, families.get(source, source), fitted))
    return Newer(model=folder.name, last=card.last, steps=steps, calibration=calibration_of(fitted))


def save(found: Newer, path: Path) -> None:
    lines = [json.dumps(short(asdict(s))) for s in found.steps]
    about = {"model": found.model, "last": found.last, "figures": [figure.to_dict() for figure in figures(found)]}
    path.write_text(json.dumps(about)[:-1] + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n")


def figures(found: Newer) -> list[Figure]:
    lines, steps = [], found.steps
    busy = [s for s in steps if is_device_bound(s)]
    for source, what, those in (
        ("device time", "device", steps),
        ("step time", "step", steps),
        ("step time, device-bound", "step", busy),
    ):
        if those:
            errors = errors_of(those, what)
            lines += [
                Figure(source=source, measure="mean error", value=errors.mean, rows=errors.count),
                Figure(source=source, measure="median error", value=errors.median, rows=errors.count),
                Figure(source=source, measure="90th percentile", value=errors.p90, rows=errors.count),
            ]
    return lines + (_inside(steps, found.calibration) if found.calibration else [])


def _inside(steps: Sequence[LeftOutStep], calibration: Calibration) -> list[Figure]:
    """How many measured steps lie inside the intervals the model itself gives."""
    found = [coverage_of(what, "", hits) for what, hits in hits_of(steps, calibration).items()]
    return [
        Figure(source=f"{c.what} interval", measure="architectures inside 90 %", value=c.inside, rows=c.architectures)
        for c in found
    ]
