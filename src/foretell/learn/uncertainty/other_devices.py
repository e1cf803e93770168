"""Published steps predicted by models that saw nothing of their device → how wide intervals on a new device must be."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from foretell.cost.model import CostModel
from foretell.cost.transfer import FILE, Generations
from foretell.forecasting.step import one_device_step
from foretell.forecasting.uncertainty import other_devices
from foretell.forecasting.uncertainty.other_devices import (
    LeftOutDevice,
    OtherDevices,
    StepKind,
    make_of,
    numbers_of,
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
_REACH: Final = 2.0  # doublings of a device's numbers within which errors are likely to be alike
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
    alike: float = 0.0  # how likely two seconds of it are of one call

    @property
    def kind(self) -> StepKind:
        return StepKind(
            half=self.half,
            trains=self.trains,
            convolutions=self.convolutions,
            unknown=self.unknown,
            alike=self.alike,
        )

    @property
    def error(self) -> float:
        """Over the scale of its kind."""
        return math.log(self.seconds / self.predicted[LEARNED]) / self.kind.scale


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
    written = {name: value for name, value in asdict(errors).items() if name != "measured"}
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
                alike=round(kind.alike, 3),
            )
        )
    return left_out_steps


def errors_by_device(steps: Sequence[OtherDeviceStep]) -> OtherDevices:
    """Each device with its errors, by precision and by whether steps train."""
    groups: dict[tuple[str, bool, bool], list[float]] = defaultdict(list)
    for s in steps:
        groups[s.device, s.half, s.trains].append(round(s.error, 4))
    devices = []
    for (name, half, trains), errors in sorted(groups.items()):
        known = known_device(name)
        numbers, make = numbers_of(known, half), make_of(known)
        devices.append(
            LeftOutDevice(device=name, make=make, half=half, trains=trains, numbers=numbers, errors=sorted(errors))
        )
    usual = round(median(s.alike for s in steps), 3)
    return OtherDevices(devices=devices, reach=_REACH, unknown=_UNKNOWN, single=_SINGLE, usual=usual)
