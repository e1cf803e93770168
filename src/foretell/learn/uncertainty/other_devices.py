"""Published steps predicted by models that saw nothing of their device → how wide intervals on a new device must be."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from foretell.cost.model import CostModel
from foretell.cost.transfer import FILE, Generations
from foretell.errors import InputError
from foretell.forecasting.step import SLOWER, one_device_step
from foretell.forecasting.uncertainty import other_devices
from foretell.forecasting.uncertainty.device_classes import CLASSES, DeviceClass, class_of
from foretell.forecasting.uncertainty.other_devices import (
    HOST,
    KINDS,
    Group,
    Kind,
    OtherDevices,
    StepKind,
    unit_quantile,
)
from foretell.graph import Graph
from foretell.hardware import device as known_device
from foretell.hardware import host as known_host
from foretell.learn.transfer.fit import chip, fit_generations, offsets, without_each
from foretell.learn.transfer.published_ops import public_ops
from foretell.learn.transfer.published_steps import (
    MAX_STEPS,
    PublishedStep,
    graph_of,
    outside_step,
    published_steps,
)
from foretell.units import Seconds

LEARNED, PHYSICS, ROOFLINE = "learned", "physics", "roofline"
_HOST_BOUND: Final = 0.5  # how a step follows its host, from which it says little of its device
_SHRINKS: Final = 2.0  # units that all classes together count as beside those of one
_SUREST: Final = (
    0.15  # as a logarithm: boards of one model differ by as much in clocks, cooling and versions of libraries
)
_SINGLE: Final = 0.2  # contains nine of ten products of a device left out, the mean of H100, A100 and L40S
_UNKNOWN: Final = 0.5  # the error of an op no model knows, about, as on our own device


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDeviceStep:
    """A published step, and what was predicted of it while its device was left out."""

    origin: str
    device: str
    source: str
    trains: bool
    half: bool
    seconds: Seconds
    predicted: Mapping[str, Seconds]  # by LEARNED (with factors of generations), PHYSICS (without), ROOFLINE
    unknown: float  # part of the device time that no model knows
    convolutions: float = 0.0  # and part that is convolutions
    grouped: float = 0.0  # of them in groups
    alike: float = 0.0  # how likely two seconds of it are of one call
    curve: Sequence[tuple[float, Seconds]] = ()  # the step were the device slower; (): it follows the device alone

    @property
    def kind(self) -> StepKind:
        return StepKind(
            half=self.half,
            trains=self.trains,
            convolutions=self.convolutions,
            grouped=self.grouped,
            unknown=self.unknown,
            alike=self.alike,
        )

    @property
    def error(self) -> float:
        return math.log(self.seconds / self.predicted[LEARNED])

    @property
    def at_speeds(self) -> Sequence[tuple[float, Seconds]]:
        """The step were the device slower or faster."""
        return self.curve or [(factor, factor * self.predicted[LEARNED]) for factor in SLOWER]

    @property
    def slopes(self) -> tuple[float, float]:
        """How the step follows its device and its host, as powers, to the side that was measured."""
        at = dict(self.at_speeds)
        slower, faster = max(at), min(at)
        longer = self.error > 0
        device, other = (slower, faster) if longer else (faster, slower)
        by_device = math.log(at[device] / at[1.0]) / math.log(device)
        return by_device, 1.0 - math.log(at[other] / at[1.0]) / math.log(other)


def fit_others(
    model: CostModel,
    public: Path,
    folder: Path,
    *,
    intervals: bool = True,
    most: int = MAX_STEPS,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, int]:
    """Fit and save what is learned of other devices than a model's own; how many ops of each it took."""
    assert model.operators is not None
    own = known_device(model.device)
    ops = public_ops(public, own, progress)
    off = offsets(ops, own, model.operators, progress)
    everything = fit_generations(off, ops)
    (folder / FILE).write_text(json.dumps(asdict(everything)["factors"], indent=2) + "\n")
    if intervals:
        steps = predict_published(captured(public, most, progress), model, without_each(off, ops), everything)
        save_errors(errors_by_device(steps), folder)
    return {name: len(those.signatures) for name, those in ops.items()}


def save_errors(errors: OtherDevices, folder: Path) -> None:
    written = {name: value for name, value in asdict(errors).items() if name != "own"}
    (folder / other_devices.FILE).write_text(json.dumps(written) + "\n")


def captured(folder: Path, most: int, progress: Callable[[str], None]) -> Iterable[tuple[PublishedStep, Graph]]:
    """Published steps of a folder that today's libraries still build."""
    for taken in published_steps(folder, most).values():
        for step in taken.items:
            if (graph := graph_of(step, progress)) is not None:
                yield step, graph


def predict_published(
    steps: Iterable[tuple[PublishedStep, Graph]],
    model: CostModel,
    left_out: Mapping[str, Generations],
    everything: Generations,
) -> list[OtherDeviceStep]:
    """`left_out` has what is learned without a chip, by its name; a chip nobody measured ops of needs none."""
    learned = {name: replace(model, generations=known) for name, known in {**left_out, "": everything}.items()}
    ways = {PHYSICS: replace(model, generations=Generations()), ROOFLINE: CostModel(name=ROOFLINE, host=model.host)}
    left_out_steps = []
    for step, graph in steps:
        models = {LEARNED: learned.get(chip(step.device), learned[""]), **ways}
        device = known_device(step.device)
        predicted = {way: one_device_step(graph, device, one) for way, one in models.items()}
        fed = outside_step(step, graph, known_host(device.host))
        kind = StepKind.of(predicted[LEARNED])
        left_out_steps.append(
            OtherDeviceStep(
                origin=step.origin,
                device=step.device,
                source=step.source,
                trains=step.trains,
                half=kind.half,
                seconds=step.seconds,
                predicted={way: one.step_seconds + fed for way, one in predicted.items()},
                unknown=kind.unknown,
                convolutions=round(kind.convolutions, 3),
                grouped=round(kind.grouped, 3),
                alike=round(kind.alike, 3),
                curve=[(factor, seconds + fed) for factor, seconds in predicted[LEARNED].curve()],
            )
        )
    return left_out_steps


def errors_by_device(steps: Sequence[OtherDeviceStep], jobs: Sequence[OneDeviceJob] = ()) -> OtherDevices:
    """How wide intervals must be for steps of each kind on devices of each class, a device and a source both being new."""
    on_device = [step for step in steps if step.slopes[1] < _HOST_BOUND]
    rows = [_Row.of(step) for step in on_device] + [_Row.of_job(job) for job in jobs]
    if not rows:
        raise InputError("intervals on other devices need published steps, got none.")
    usual = round(median(s.alike for s in steps), 3) if steps else 0.0
    groups = [group for kind in KINDS for group in _groups(kind, [row for row in rows if row.kind == kind])]
    return OtherDevices(groups=groups, host=HOST, unknown=_UNKNOWN, single=_SINGLE, usual=usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDeviceJob:
    """A published job of one device that the model was not measured on."""

    origin: str
    device: str
    convolves: bool  # most of its device time
    error: float  # log(measured ÷ predicted)


class _Row(NamedTuple):
    """What one step says of its group: how far its device must be off to explain it, beyond what its host explains."""

    unit: tuple[str, str]  # source and chip
    kind: Kind
    devices: DeviceClass
    error: float

    @classmethod
    def of(cls, step: OtherDeviceStep) -> _Row:
        by_device, by_host = step.slopes
        beyond = math.sqrt(max(step.error**2 - (by_host * HOST) ** 2, 0.0)) / by_device
        unit = step.origin, chip(step.device)
        return cls(unit, step.kind.mostly, class_of(known_device(step.device)), beyond)

    @classmethod
    def of_job(cls, job: OneDeviceJob) -> _Row:
        kind: Kind = "convolutions" if job.convolves else "products"
        return cls((job.origin, chip(job.device)), kind, class_of(known_device(job.device)), abs(job.error))


def _groups(kind: Kind, rows: Sequence[_Row]) -> Iterator[Group]:
    """Of each class that has steps, as wide as the widest of: a chip is new, a source is, both are."""
    for devices in CLASSES:
        if own := [row for row in rows if row.devices == devices]:
            width = max(_width(own, rows, unit) for unit in (_both, _source_of, _chip_of)) or unit_quantile(
                _by_unit(own, _both)
            )
            units = len({row.unit for row in own})
            yield Group(kind=kind, devices=devices, width=round(max(width, _SUREST), 4), units=units, steps=len(own))


def _width(own: Sequence[_Row], every: Sequence[_Row], unit: Callable[[_Row], object]) -> float:
    """That contains nine of ten errors, every unit counting as one: the fewer a class has, the more all classes say."""
    units, of_all = _by_unit(own, unit), _by_unit(every, unit)
    count = len(units)
    if len(of_all) == 1:  # one says nothing of others
        return 0.0
    drawn = (count * unit_quantile(units) ** 2 + _SHRINKS * unit_quantile(of_all) ** 2) / (count + _SHRINKS)
    return math.sqrt(drawn * (1 + 1 / count))


def _by_unit(rows: Sequence[_Row], unit: Callable[[_Row], object]) -> list[list[float]]:
    units: dict[object, list[float]] = defaultdict(list)
    for row in rows:
        units[unit(row)].append(row.error)
    return list(units.values())


def _both(row: _Row) -> tuple[str, str]:
    return row.unit


def _source_of(row: _Row) -> str:
    return row.unit[0]


def _chip_of(row: _Row) -> str:
    return row.unit[1]
