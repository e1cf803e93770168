"""Published steps predicted by models that saw nothing of their device → how wide intervals on a new device must be."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from foretell.cost.model import CostModel
from foretell.cost.transfer import FILE
from foretell.distribution import Z90
from foretell.errors import InputError
from foretell.forecasting.uncertainty import other_devices
from foretell.forecasting.uncertainty.device_classes import CLASSES, DeviceClass, class_of
from foretell.forecasting.uncertainty.other_devices import (
    HOST,
    KINDS,
    Group,
    Kind,
    OtherDevices,
    weighted_quantile,
)
from foretell.hardware import device as known_device
from foretell.learn.transfer.fit import chip, fit_generations, offsets, without_each
from foretell.learn.transfer.published_ops import public_ops
from foretell.learn.transfer.published_steps import MAX_STEPS, published_steps
from foretell.learn.uncertainty.few_units import SHRINKS, students_factor
from foretell.learn.uncertainty.other_device_steps import LEARNED, LeftOutModels, OtherDeviceStep, predict_published

_HOST_BOUND: Final = 0.5  # how a step follows its host, from which it says little of its device
_SUREST: Final = (
    0.15  # as a logarithm: boards of one model differ by as much in clocks, cooling and versions of libraries
)
_SINGLE: Final = 0.2  # contains nine of ten products of a device left out, the mean of H100, A100 and L40S
_UNKNOWN: Final = 0.5  # the error of an op no model knows, about, as on our own device


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
        models = LeftOutModels.of(model, without_each(off, ops), everything)
        drawn = [step for those in published_steps(public, most).values() for step in those.items]
        save_errors(errors_by_device(predict_published(drawn, models, progress=progress)), folder)
    return {name: len(those.signatures) for name, those in ops.items()}


def save_errors(errors: OtherDevices, folder: Path) -> None:
    written = {name: value for name, value in asdict(errors).items() if name != "own"}
    (folder / other_devices.FILE).write_text(json.dumps(written) + "\n")


def errors_by_device(steps: Sequence[OtherDeviceStep], jobs: Sequence[OneDeviceJob] = ()) -> OtherDevices:
    """How wide intervals must be for steps of each kind on devices of each class, a device and a source both being new.

    Steps that older software ran do not count: on one board and of one network it took up to several times as long as today's.
    """
    every = [*steps, *(job.step for job in jobs)]
    rows = [_Row.of(step) for step in every if step.slopes[1] < _HOST_BOUND and not step.is_of_older_software]
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
    name: str = ""
    convolves: bool  # most of its device time
    error: float  # log(measured ÷ predicted)

    @property
    def step(self) -> OtherDeviceStep:
        """As a step that follows its device alone."""
        return OtherDeviceStep(
            origin=self.origin,
            device=self.device,
            source=self.name,
            trains=True,
            half=False,
            seconds=1.0,
            predicted={LEARNED: math.exp(-self.error)},
            unknown=0.0,
            convolutions=float(self.convolves),
        )


class _Row(NamedTuple):
    """What one step says of its group: how far its device must be off to explain it, beyond what its host explains."""

    source: str
    chip: str
    kind: Kind
    devices: DeviceClass
    error: float

    @classmethod
    def of(cls, step: OtherDeviceStep) -> _Row:
        by_device, by_host = step.slopes
        beyond = math.sqrt(max(step.error**2 - (by_host * HOST / Z90) ** 2, 0.0)) / by_device
        return cls(step.origin, chip(step.device), step.kind.mostly, class_of(known_device(step.device)), beyond)


def _groups(kind: Kind, rows: Sequence[_Row]) -> Iterator[Group]:
    """Of each class that has steps."""
    for devices in CLASSES:
        if own := [row for row in rows if row.devices == devices]:
            units = len({(row.source, row.chip) for row in own})
            width = round(max(_width(own, rows, units), _SUREST), 4)
            yield Group(kind=kind, devices=devices, width=width, units=units, steps=len(own))


def _width(own: Sequence[_Row], every: Sequence[_Row], units: int) -> float:
    """That contains nine of ten steps of a new source on a new chip: the fewer of them a class has, the more all classes say,
    and the less sure is what they say together (Student's factor for as many)."""
    drawn = (units * _quantile(own) ** 2 + SHRINKS * _quantile(every) ** 2) / (units + SHRINKS)
    return math.sqrt(drawn) * students_factor(units)


def _quantile(rows: Sequence[_Row]) -> float:
    """The size that nine of ten errors stay below: every source counts as one, and within it every chip."""
    chips = Counter(source for source, _ in {(row.source, row.chip) for row in rows})
    steps = Counter((row.source, row.chip) for row in rows)
    weights = [1 / (chips[row.source] * steps[row.source, row.chip]) for row in rows]
    return weighted_quantile([row.error for row in rows], weights)
