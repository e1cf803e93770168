"""`foretell bench devices`: ops and steps of devices that nothing was learned from, and what was measured there.

Ops are of public measurements, each chip left out in turn. Steps are published ones; where ops of their device are
public, those are left out too.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from foretell.cost.model import load_model
from foretell.errors import InputError
from foretell.forecasting.uncertainty.other_devices import OtherDevices
from foretell.hardware import device as known_device
from foretell.learn.transfer.fit import fit_generations, offsets, without_each
from foretell.learn.transfer.published_ops import FILES, public_ops
from foretell.learn.transfer.published_steps import MAX_STEPS, published_steps
from foretell.learn.uncertainty.left_out import current_names
from foretell.learn.uncertainty.other_device_steps import (
    LEARNED,
    PHYSICS,
    ROOFLINE,
    LeftOutModels,
    OtherDeviceStep,
    predict_published,
)
from foretell.learn.uncertainty.other_devices import OneDeviceJob, errors_by_device, save_errors
from foretell_bench.errors import Errors
from foretell_bench.research.coverage import Coverage, coverage_on_other_devices
from foretell_bench.research.op_errors import LINEAR, OpErrors, errors_left_out, mean_errors
from foretell_bench.tables.figures import Figure
from foretell_bench.tables.published_rows import read as read_jobs

_STEP_WAYS: Final = {LEARNED: "Foretell", PHYSICS: "without what is learned", ROOFLINE: "roofline"}
# Mean errors and bias that were set as bars before anything was measured.
_ERROR_BARS: Final = {"neusight_e2e": 0.07, "timm_train": 0.10, "timm_infer": 0.12, "cnn_many_gpus": 0.20}
_BARS_OF_ALL: Final = ("neusight_e2e",)
_PRODUCTS_BAR, _BIAS_BAR = 0.12, 0.10
_LOW_POWER: Final = ("t4", "p4", "l4")
_CONVOLVES: Final = ("convolutional", "detection")  # networks of published jobs
WAYS: Final[Mapping[str, Mapping[str, str]]] = {"ops": _STEP_WAYS | {LINEAR: "linear"}, "steps": _STEP_WAYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceErrors:
    ops: Sequence[OpErrors]
    steps: Sequence[OtherDeviceStep]
    taken: Mapping[str, str] = field(
        default_factory=dict
    )  # public file → how many of its rows were predicted, and why not all


def run(
    data: Path,
    *,
    most: int = MAX_STEPS,
    workers: int = 1,
    answers: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DeviceErrors:
    """Everything anew: what is learned without each chip, and up to `most` steps of each source and device captured.

    Steps are predicted by `workers` processes, and kept in `answers`, from where a run that was stopped goes on.
    """
    if not data.is_dir():
        raise InputError(
            f"{data} is no folder. Give --data the folder of public measurements (docs/internals/data.md)."
        )
    model = load_model()
    assert model.operators is not None
    own = known_device(model.device)
    public = public_ops(data, own, progress)
    if not public:
        raise InputError(f"{data} holds none of {', '.join(FILES)}. Give --data the folder of public measurements.")
    off = offsets(public, own, model.operators, progress)
    left_out = without_each(off, public)
    ops = errors_left_out(public, left_out, own, model.operators)
    drawn = published_steps(data, most)
    models = LeftOutModels.of(model, left_out, fit_generations(off, public))
    wanted = [step for those in drawn.values() for step in those.items]
    steps = predict_published(wanted, models, workers=workers, keep=answers, progress=progress)
    return DeviceErrors(ops=ops, steps=steps, taken={name: f"{those}" for name, those in drawn.items()})


def figures(found: DeviceErrors) -> list[Figure]:
    """Mean errors by kind of op and by published source, for each way of predicting, and the coverage of intervals."""
    lines = []
    for (family, dtype), ways in sorted(mean_errors(found.ops).items()):
        count = sum(e.errors[LEARNED].count for e in found.ops if (e.family, e.dtype) == (family, dtype))
        lines += [
            Figure(source=f"ops: {family} {dtype}", measure=f"{way}, mean error by device", value=error, rows=count)
            for way, error in ways.items()
        ]
    notes = dict(found.taken)
    for (origin, device, trains), those in _by_source(found.steps).items():
        what = f"{origin} {device} {'training' if trains else 'inference'}"
        for way, error in _errors(those).items():
            measure, note = f"{way}, mean error", notes.pop(origin, "")
            lines.append(Figure(source=f"steps: {what}", measure=measure, value=error, rows=len(those), note=note))
    covered = [_covered(c) for c in coverage_on_other_devices(found.steps)]
    return lines + _over_devices(found.steps) + bars(found) + covered


def bars(found: DeviceErrors) -> list[Figure]:
    """What was found of devices that nothing was learned from, and the bar that was set before."""
    lines = []
    for origin, bar in _ERROR_BARS.items():
        steps = [s for s in found.steps if s.origin == origin]
        each = {device: (_errors(those)[LEARNED], len(those)) for device, those in _by_device(steps).items()}
        if origin in _BARS_OF_ALL and each:
            each = {"every device counted once": (sum(error for error, _ in each.values()) / len(each), len(steps))}
        lines += [
            Figure(source=origin, measure=f"{device}, mean error", value=error, bar=bar, rows=count)
            for device, (error, count) in each.items()
        ]
    lines += [
        Figure(
            source="products in 16 bits", measure=f"{e.device}, mean error", value=e.errors[LEARNED].mean,
            bar=_PRODUCTS_BAR, rows=e.errors[LEARNED].count,
        )
        for e in found.ops if (e.family, e.dtype) == ("matmul", "half")
    ]  # fmt: skip
    for device, those in _by_device([s for s in found.steps if s.device in _LOW_POWER]).items():
        bias = abs(sum(s.predicted[LEARNED] / s.seconds - 1 for s in those) / len(those))
        lines.append(
            Figure(
                source="boards of low power", measure=f"{device}, bias of steps", value=bias, bar=_BIAS_BAR,
                rows=len(those),
            )
        )  # fmt: skip
    return lines


def _errors(steps: Sequence[OtherDeviceStep]) -> dict[str, float]:
    """Way → mean error."""
    seconds = [s.seconds for s in steps]
    return {way: Errors.of([s.predicted[way] for s in steps], seconds).mean for way in steps[0].predicted}


def _over_devices(steps: Sequence[OtherDeviceStep]) -> list[Figure]:
    """Every device counted once, however many of its steps are published."""
    each = [_errors(those) for those in _by_device(steps).values()]
    return [
        Figure(
            source="steps: all, every device counted once",
            measure=f"{way}, mean error",
            rows=len(steps),
            value=sum(errors[way] for errors in each) / len(each),
        )
        for way in (each[0] if each else ())
    ]


def _by_device(steps: Sequence[OtherDeviceStep]) -> dict[str, list[OtherDeviceStep]]:
    devices: dict[str, list[OtherDeviceStep]] = defaultdict(list)
    for s in steps:
        devices[s.device].append(s)
    return dict(sorted(devices.items()))


def _covered(c: Coverage) -> Figure:
    return Figure(
        source=f"interval: {c.group or 'every device left out'}",
        measure="architectures inside 90 %",
        value=c.inside,
        bar=None if c.group else 0.85,
        at_least=True,
        rows=c.architectures,
        note=f"high ÷ low {c.width:.1f} in the median",
    )


def _by_source(steps: Sequence[OtherDeviceStep]) -> dict[tuple[str, str, bool], list[OtherDeviceStep]]:
    groups: dict[tuple[str, str, bool], list[OtherDeviceStep]] = defaultdict(list)
    for s in steps:
        groups[s.origin, s.device, s.trains].append(s)
    return dict(sorted(groups.items()))


def save(found: DeviceErrors, path: Path) -> None:
    """Forecasts over what was measured, which every figure is made of: the measurements are others'."""
    ops = [json.dumps(asdict(e)) for e in found.ops]
    steps = [json.dumps(asdict(_relative(s))) for s in found.steps]
    taken = json.dumps(dict(found.taken))
    path.write_text(
        f'{{"taken": {taken}, "ops": [\n' + ",\n".join(ops) + '\n], "steps": [\n' + ",\n".join(steps) + "\n]}\n"
    )


def _relative(step: OtherDeviceStep) -> OtherDeviceStep:
    predicted = {way: seconds / step.seconds for way, seconds in step.predicted.items()}
    curve = [(factor, seconds / step.seconds) for factor, seconds in step.curve]
    return replace(step, seconds=1.0, predicted=predicted, curve=curve)


def read(path: Path) -> DeviceErrors:
    try:
        found = json.loads(path.read_text())
        ops = [OpErrors(**e | {"errors": {way: Errors(**x) for way, x in e["errors"].items()}}) for e in found["ops"]]
        steps = [OtherDeviceStep(**current_names(s)) for s in found["steps"]]
        return DeviceErrors(ops=ops, steps=steps, taken=found.get("taken", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no results of this benchmark ({error}). Make some: foretell bench devices --save"
        ) from error


def one_device_jobs(published: Path, own: str) -> list[OneDeviceJob]:
    """Jobs of one device that `bench published` saved, but those of the model's own."""
    return [
        OneDeviceJob(
            origin=job.source,
            device=job.device,
            name=job.id,
            convolves=job.network in _CONVOLVES,
            error=-math.log1p(job.error),
        )
        for job in read_jobs(published).jobs
        if job.devices == 1 and job.device != own and job.error is not None
    ]


def write_intervals(found: DeviceErrors, published: Path | None, folder: Path) -> OtherDevices:
    """Fit intervals on other devices to what was found, and to published jobs of one device, into a model's folder."""
    jobs = [] if published is None else one_device_jobs(published, load_model().device)
    errors = errors_by_device(found.steps, jobs)
    folder.mkdir(parents=True, exist_ok=True)
    save_errors(errors, folder)
    return errors
