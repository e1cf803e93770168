"""Why an answer of this version may differ from the last release: each defect that was mended, and what it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from foretell import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field of one answer that two versions give differently."""

    question: Mapping[str, Any]
    field: str
    before: Any
    after: Any

    @property
    def text(self) -> str:
        of = self.question
        settings = " ".join(f"{name}={value}" for name, value in {**of["settings"], **of["conditions"]}.items())
        return f"{of['verb']} {of['source']} {settings} on {of['on']} {of['plan'] or ''}".rstrip()

    @property
    def is_of_an_interval(self) -> bool:
        """Whether it leaves the median times, memory, cost and plan as they were."""
        return self.field.endswith((".low", ".high", ".fit_probability")) or self.field.startswith("energy.")

    @property
    def change(self) -> float | None:
        """How much it changed, relative to what it was; None where it is no number."""
        if not isinstance(self.before, int | float) or not isinstance(self.after, int | float) or not self.before:
            return None
        return abs(self.after - self.before) / abs(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A mended defect in words, and which differences it explains."""

    text: str
    explains: Callable[[Difference], bool]


_UNITS: Final = {
    "tf32": "tf32",
    "torch-fp32": "tf32",
    "bf16": "bf16",
    "amp-bf16": "bf16",
    "compute:bf16": "bf16",
    "parameters:bf16": "bf16",
}


@cache
def _devices(on: str) -> tuple[Device, ...]:
    from foretell import Cluster

    return tuple({node.device.name: node.device for node in Cluster.parse(on).nodes}.values())


def _without_units(difference: Difference) -> bool:
    """Whether a device of the question has no units for its precision."""
    precision = difference.question["settings"].get("precision", "fp32")
    needed = next((unit for name, unit in _UNITS.items() if precision == name or name in precision.split("/")), None)
    return needed is not None and any(needed not in device.peaks for device in _devices(difference.question["on"]))


def _apple(difference: Difference) -> bool:
    return any(device.vendor == "Apple" for device in _devices(difference.question["on"]))


def _interval_of_several_devices(difference: Difference) -> bool:
    several = difference.question["verb"] == "scale" or sum(_counts(difference.question["on"])) > 1
    return several and difference.field in ("step_time.low", "step_time.high")


@cache
def _counts(on: str) -> tuple[int, ...]:
    from foretell import Cluster

    return tuple(node.count for node in Cluster.parse(on).nodes)


def _refused_alike(difference: Difference) -> bool:
    start = "SourceError: precision"
    return difference.field == "error" and all(
        str(each).startswith(start) for each in (difference.before, difference.after)
    )


REASONS: Final[tuple[Reason, ...]] = (
    Reason(
        text="A precision that the device has no units for (TF32 or bf16 before Ampere, on AMD, on a CPU) ran on "
        "matrix units by some tables and on plain ones by others; now one type decides.",
        explains=_without_units,
    ),
    Reason(
        text="A device whose system keeps a part of the memory was taken for one with check bits among its data; "
        "the catalog says which have them.",
        explains=_apple,
    ),
    Reason(
        text="What no part explains of the error of a job of several devices ended at the end of its search, 0.5; "
        "fitted inside a wider one it is 0.943.",
        explains=_interval_of_several_devices,
    ),
    Reason(
        text="Shares of a board's power when busy and idle were typed in from a page; the benchmark that measures them "
        "writes them into the model.",
        explains=lambda difference: difference.field.startswith("energy."),
    ),
    Reason(
        text="How far a forecast of memory may be off was typed in from a page, and is written by its benchmark too: the "
        "probability to fit follows, and the batch that fits with 95 %.",
        explains=lambda d: d.field == "memory.fit_probability" or d.question["verb"] == "fit_batch",
    ),
    Reason(
        text="Precisions in parts can say more (`autocast`, `tf32`): a refusal lists the parts.",
        explains=_refused_alike,
    ),
)
