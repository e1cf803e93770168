"""Published steps of devices that a model was not measured on, predicted while all that was learned of them is left out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from foretell.cost.model import CostModel
from foretell.cost.transfer import Generations
from foretell.engine import engine_digest
from foretell.forecasting.step import SLOWER, one_device_step
from foretell.forecasting.uncertainty.other_devices import StepKind
from foretell.hardware import device as known_device
from foretell.hardware import host as known_host
from foretell.learn.transfer.fit import chip
from foretell.learn.transfer.published_steps import PublishedStep, graph_of, outside_step
from foretell.learn.workers import each
from foretell.units import Seconds

LEARNED, PHYSICS, ROOFLINE = "learned", "physics", "roofline"
_ANY: Final = ""  # a chip nobody measured ops of


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
    torch: str = ""  # the version that ran it, where it is known

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
    def is_of_older_software(self) -> bool:
        return self.torch.startswith(("0.", "1."))

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


class LeftOutModels(NamedTuple):
    """What predicts a step of a chip: a model that learned nothing of it, and plainer ones."""

    learned: Mapping[str, CostModel]  # by chip; `_ANY` for those that nobody measured ops of
    plainer: Mapping[str, CostModel]

    @classmethod
    def of(cls, model: CostModel, left_out: Mapping[str, Generations], everything: Generations) -> LeftOutModels:
        """`left_out` has what is learned without a chip, by its name."""
        known = {**left_out, _ANY: everything}
        return cls(
            learned={name: replace(model, generations=factors) for name, factors in known.items()},
            plainer={
                PHYSICS: replace(model, generations=Generations()),
                ROOFLINE: CostModel(name=ROOFLINE, host=model.host),
            },
        )

    def for_device(self, name: str) -> dict[str, CostModel]:
        return {LEARNED: self.learned.get(chip(name), self.learned[_ANY]), **self.plainer}


def predict_published(
    steps: Sequence[PublishedStep],
    models: LeftOutModels,
    *,
    workers: int = 1,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[OtherDeviceStep]:
    """Those that today's libraries still build, in the order of `steps`.

    What was predicted is kept as lines of `keep`, so that a run that was stopped goes on from there.
    """
    names = [_name(step, models) for step in steps]
    known = dict(_read(keep)) if keep is not None and keep.exists() else {}
    waiting = [number for number, name in enumerate(names) if name not in known]
    for count, (number, found) in enumerate(each(_predicted, (steps, models), waiting, workers), start=1):
        known[names[number]] = found
        if keep is not None:
            _append(keep, names[number], found)
        progress(f"predicted {count} of {len(waiting)} published steps")
    return [step for name in names if (step := known[name]) is not None]


def _predicted(shared: tuple[Sequence[PublishedStep], LeftOutModels], number: int) -> OtherDeviceStep | None:
    steps, models = shared
    step = steps[number]
    graph = graph_of(step)
    if graph is None:
        return None
    device = known_device(step.device)
    predicted = {
        way: one_device_step(graph, device, one, software=step.software)
        for way, one in models.for_device(step.device).items()
    }
    fed = outside_step(step, graph, known_host(device.host), device)
    kind = StepKind.of(predicted[LEARNED])
    return OtherDeviceStep(
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
        torch=step.torch,
    )


def _name(step: PublishedStep, models: LeftOutModels) -> str:
    """Of a prediction, by all that it rests on."""
    factors = models.for_device(step.device)[LEARNED].generations.factors
    content = json.dumps([asdict(step), factors, engine_digest()], sort_keys=True, default=dict)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def _append(path: Path, name: str, found: OtherDeviceStep | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"name": name, "step": found and asdict(found)}) + "\n")


def _read(path: Path) -> Iterator[tuple[str, OtherDeviceStep | None]]:
    """A line that was cut off when a run was stopped is predicted again."""
    for line in path.read_text().splitlines():
        try:
            kept: dict[str, Any] = json.loads(line)
            yield kept["name"], OtherDeviceStep(**kept["step"]) if kept["step"] else None
        except (ValueError, TypeError, KeyError):
            continue
