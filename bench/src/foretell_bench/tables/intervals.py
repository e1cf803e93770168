"""`foretell bench intervals`: how many measured steps of each class lie inside their 90 % intervals, from saved results.

Nothing of what is judged is in what judges it: of the model's own device a family of networks is left out, of other devices
the chip and the source, of several devices the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from foretell.cost.model import load_model
from foretell.forecasting.uncertainty.device_classes import FROM_TURING, DeviceClass, class_of
from foretell.hardware import device as known_device
from foretell.learn.uncertainty.left_out import LeftOutStep, read_steps
from foretell.learn.uncertainty.other_device_steps import LEARNED, OtherDeviceStep
from foretell.learn.uncertainty.other_devices import OneDeviceJob
from foretell_bench.research.coverage import chip_of, coverage, hits_left_out, source_of
from foretell_bench.tables import devices
from foretell_bench.tables.published_rows import Compared, read

NINE_IN_TEN: Final = (
    0.85,
    0.95,
)  # of what an interval of nine in ten contains, where it is neither too narrow nor too wide
WIDEST: Final = 2.2  # times its low end, from Turing on
MIDDLE: Final = 0.05  # that the median of forecast over measured may be from one
_CLASSES: Final[dict[DeviceClass, str]] = {
    "recent": "NVIDIA from Turing to Hopper", "newer": "newer NVIDIA", "older": "older NVIDIA", "other makers": "other makers",
}  # fmt: skip
_BOTH: Final[Mapping[str, Callable[[OtherDeviceStep], str]]] = {"chip": chip_of, "source": source_of}
_OLDER_SOFTWARE: Final = "NVIDIA under torch before 2, which counts for no interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalClass:
    """Steps of one class against intervals that none of what was left out went into."""

    steps: str
    left_out: str
    rows: int
    inside: float
    width: float  # high over low, in the median
    ratio: float  # forecast over measured, in the median

    @property
    def misses(self) -> bool:
        return not NINE_IN_TEN[0] <= self.inside <= NINE_IN_TEN[1]

    @property
    def is_too_wide(self) -> bool:
        return self.steps in [_CLASSES[name] for name in FROM_TURING] and self.width > WIDEST

    @property
    def is_off(self) -> bool:
        return abs(self.ratio - 1) > MIDDLE


def read_classes(results: Path) -> list[IntervalClass]:
    """From what `bench accuracy`, `bench devices` and `bench published` saved in a folder."""
    published = results / "published.json"
    one_device = devices.one_device_jobs(published, load_model().device)
    others = devices.read(results / "devices.json").steps
    return classes_of_intervals(read_steps(results / "accuracy.json"), others, one_device, read(published).jobs)


def classes_of_intervals(
    own: Sequence[LeftOutStep],
    others: Sequence[OtherDeviceStep],
    one_device: Sequence[OneDeviceJob],
    jobs: Sequence[Compared],
) -> list[IntervalClass]:
    """Of every class that has steps."""
    every = [*others, *(job.step for job in one_device)]
    current = [step for step in every if not step.is_of_older_software]
    former = [step for step in every if step.is_of_older_software]
    return [
        *_own(own),
        *(each for name in _CLASSES for each in _other(_CLASSES[name], _of_class(current, name), current)),
        *_other("one device of any class", current, current, {"chip": chip_of}),
        *_other("one device of any class", current, current, {"source": source_of}),
        *_other(_OLDER_SOFTWARE, former, every),
        *_several(jobs),
    ]


def _own(steps: Sequence[LeftOutStep]) -> Iterator[IntervalClass]:
    for found in coverage(steps):
        if found.what == "step" and not found.group:
            ratio = median(step.step_predicted / step.step for step in steps)
            yield IntervalClass(
                steps="the model's own device", left_out="family", rows=len(steps), inside=found.inside, width=found.width,
                ratio=ratio,
            )  # fmt: skip


def _of_class(steps: Sequence[OtherDeviceStep], name: DeviceClass) -> list[OtherDeviceStep]:
    return [step for step in steps if class_of(known_device(step.device)) == name]


def _other(
    name: str,
    judged: Sequence[OtherDeviceStep],
    every: Sequence[OtherDeviceStep],
    left_out: Mapping[str, Callable[[OtherDeviceStep], str]] = _BOTH,
) -> Iterator[IntervalClass]:
    if hits := [hit for _, hit in hits_left_out(judged, every, *left_out.values())]:
        yield IntervalClass(
            steps=name,
            left_out=" and ".join(left_out),
            rows=len(hits),
            inside=sum(inside for _, inside, _ in hits) / len(hits),
            width=median(width for _, _, width in hits),
            ratio=math.exp(median(math.log(step.predicted[LEARNED] / step.seconds) for step in judged)),
        )


def _several(jobs: Sequence[Compared]) -> Iterator[IntervalClass]:
    rows = [job for job in jobs if job.left_out_inside is not None and job.error is not None]
    if rows:
        yield IntervalClass(
            steps="several devices",
            left_out="source",
            rows=len(rows),
            inside=sum(bool(job.left_out_inside) for job in rows) / len(rows),
            width=median(job.left_out_width or 1.0 for job in rows),
            ratio=median(1 + (job.error or 0.0) for job in rows),
        )
