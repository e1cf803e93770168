"""Published steps foretold by models that saw nothing of their device → how wide intervals on a new device must be."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from foretell.cost.model import ELSEWHERE, CostModel
from foretell.cost.operators import OperatorModels
from foretell.forecasting.calibration import ELSEWHERE_FILE, HeldDevice, Unmeasured, distance, numbers_of
from foretell.forecasting.step import one_device_step
from foretell.graph import Graph
from foretell.hardware import device as known_device
from foretell.learn.calibrate import Coverage, coverage_of
from foretell.learn.dataset import OpTable
from foretell.learn.transfer.fit import chip, fit_elsewhere, without_each
from foretell.learn.transfer.published_ops import public_ops
from foretell.learn.transfer.published_steps import MOST, PublishedStep, graph_of, published_steps
from foretell.units import Seconds

LEARNED, CLOCKS, DISTANCE, ROOFLINE = "learned", "clocks", "distance", "roofline"
_UNKNOWN: Final = 0.5  # an op no model knows is off by about this, as on our own device


@dataclass(frozen=True, slots=True, kw_only=True)
class ForetoldElsewhere:
    """A published step, and what was said of it while its device was left out."""

    origin: str
    device: str
    source: str
    trains: bool
    half: bool
    seconds: Seconds
    said: Mapping[str, Seconds]  # by LEARNED (from many devices), CLOCKS and DISTANCE (from ours alone), ROOFLINE
    unknown: float  # part of the device time that no model knows

    @property
    def error(self) -> float:
        return math.log(self.seconds / self.said[LEARNED])


def fit_others(
    ops: OpTable, model: CostModel, public: Path, folder: Path, *, intervals: bool = True, seed: int = 0,
    most: int = MOST, progress: Callable[[str], None] = lambda text: None,
) -> dict[str, int]:  # fmt: skip
    """Fit and save what a model says of other devices than its own; how many ops of each device it took."""
    assert model.operators is not None
    tables = public_ops(public, known_device(model.device), model.operators, progress)
    everything = fit_elsewhere(tables, ops, seed=seed, progress=progress)
    everything.save(folder / ELSEWHERE)
    if intervals:
        left_out = without_each(tables, ops, seed=seed, progress=progress)
        asked = ((step, graph_of(step, progress)) for step in published_steps(public, most))
        steps = foretell_published(((s, g) for s, g in asked if g is not None), model, left_out, everything)
        save_held(hold(steps), folder)
    return {name: len(table) for name, table in tables.items()}


def save_held(unmeasured: Unmeasured, folder: Path) -> None:
    (folder / ELSEWHERE_FILE).write_text(json.dumps(asdict(unmeasured)) + "\n")


def foretell_published(
    steps: Iterable[tuple[PublishedStep, Graph]], model: CostModel, left_out: Mapping[str, OperatorModels],
    everything: OperatorModels,
) -> list[ForetoldElsewhere]:  # fmt: skip
    """`left_out` has the models that did not see a chip, by its name; a chip nobody measured ops of needs none."""
    assert model.operators is not None
    pricing: dict[str, dict[str, CostModel]] = {}
    found = []
    for step, graph in steps:
        if chip(step.device) not in pricing:
            plain = CostModel(name=DISTANCE, device=model.device, operators=model.operators, host=model.host)
            pricing[chip(step.device)] = {
                LEARNED: replace(plain, name=LEARNED, elsewhere=left_out.get(chip(step.device), everything)),
                CLOCKS: replace(plain, name=CLOCKS, elsewhere=OperatorModels(families={})),
                DISTANCE: plain,
                ROOFLINE: CostModel(name=ROOFLINE, host=model.host),
            }
        ways = pricing[chip(step.device)]
        said = {way: one_device_step(graph, known_device(step.device), ways[way]) for way in ways}
        found.append(
            ForetoldElsewhere(
                origin=step.origin, device=step.device, source=step.source, trains=step.trains,
                half=graph.precision.endswith("16"), seconds=step.seconds,
                said={way: found.step_seconds for way, found in said.items()}, unknown=said[LEARNED].unknown,
            )
        )  # fmt: skip
    return found


def hold(steps: Sequence[ForetoldElsewhere]) -> Unmeasured:
    """Each device with its errors; `reach` is as far as any of them lies from the nearest other."""
    groups: dict[tuple[str, bool], list[ForetoldElsewhere]] = defaultdict(list)
    for s in steps:
        groups[s.device, s.half].append(s)
    held = [
        HeldDevice(
            device=device, half=half, numbers=numbers_of(known_device(device), half),
            errors=sorted(round(s.error, 4) for s in those),
        )
        for (device, half), those in sorted(groups.items())
    ]  # fmt: skip
    nearest = (
        [min(distance(a.numbers, b.numbers) for b in held if b is not a) for a in held] if len(held) > 1 else [1.0]
    )
    return Unmeasured(held=held, reach=round(max(float(np.max(nearest)), 0.5), 3), unknown=_UNKNOWN)


def coverage_elsewhere(steps: Sequence[ForetoldElsewhere]) -> list[Coverage]:
    """Every device against intervals from the errors on the others; first all of them, then each."""
    rows: dict[str, list[tuple[str, bool, float]]] = defaultdict(list)
    for device in sorted({s.device for s in steps}):
        known = hold([s for s in steps if chip(s.device) != chip(device)])
        for s in steps:
            if s.device == device:
                low, high = known.step_range(s.said[LEARNED], known_device(device), s.half, s.unknown)
                rows[device].append((f"{device} {s.source}", low <= s.seconds <= high, high / low))
    everything = [row for those in rows.values() for row in those]
    return [coverage_of("step", "", everything), *(coverage_of("step", d, those) for d, those in rows.items())]
