"""Steps of one device that a model was not measured on: how far published steps were off while their device was left out.

Errors are kept by group: what a step mostly runs (convolutions, or products) and what class its device is of. A group's width
is what contains nine of ten steps of a device, a source and a network that are all new. Beside its device a step is uncertain
by its host; both pass through the simulator, so a step that its device bounds is as sure as its group, and one that waits for
its host as sure as hosts are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np

from foretell.cost.files import check_numbers
from foretell.cost.folder import read_errors, read_once
from foretell.cost.model import CostModel
from foretell.distribution import LEVEL, LogNormal
from foretell.errors import check_count
from foretell.forecasting.step import RoleStep
from foretell.forecasting.uncertainty.device_classes import CLASSES, DeviceClass, class_of
from foretell.forecasting.uncertainty.operators import repetition
from foretell.forecasting.uncertainty.own_device import Curve, draw_steps
from foretell.graph import Graph
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.units import Seconds

Kind = Literal["grouped convolutions", "convolutions", "products"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
FILE: Final = "other_devices.json"
_OLD_FILE, _OLD_KEYS = "elsewhere.json", ("devices", "held")  # of models up to h200-2026.11.3, whose errors are lists
_OLD_SCALE: Final[Mapping[Kind, float]] = {"convolutions": 1.0, "products": 0.4}  # that those were divided by
HOST: Final = 0.5  # of a host that was not measured, as a logarithm: hosts of the catalog take 7 to 19 µs per op
_GROUPED, _CONVOLVED = 0.2, 0.5  # parts of the device time
_WIDEST: Final = 20.0  # that an error can be, as a logarithm
_STRANGE: Final = (
    1.5  # how many times wider than the widest known an interval is for a class of which no device was left out
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """What of a step its error on another device goes by."""

    half: bool
    trains: bool
    convolutions: float  # their part of the device time
    grouped: float = 0.0  # and that of those in groups, whose algorithms differ most
    unknown: float  # and that of ops no model knows
    alike: float = 0.0  # its `repetition`: 1 where it is one product over and over

    @classmethod
    def of(cls, step: RoleStep) -> StepKind:
        return cls(
            half=step.role.graph.precision.is_half,
            trains=step.role.graph.training,
            convolutions=convolutions(step.families),
            grouped=grouped(step),
            unknown=step.unknown,
            alike=repetition(step),
        )

    @property
    def shares(self) -> Mapping[Kind, float]:
        """How much a step is of each kind: a fifth of it in grouped convolutions decides, as does half in others."""
        of_groups, convolved = min(self.grouped / _GROUPED, 1.0), min(self.convolutions / _CONVOLVED, 1.0)
        rest = 1 - of_groups
        return {"grouped convolutions": of_groups, "convolutions": rest * convolved, "products": rest * (1 - convolved)}

    @property
    def mostly(self) -> Kind:
        return max(KINDS, key=lambda kind: self.shares[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Steps of one kind on devices of one class."""

    kind: Kind
    devices: DeviceClass
    width: float  # half of the interval, as a logarithm, that contains nine of ten steps of a device and source that are new
    units: int  # sources × devices that it is from
    steps: int

    def __post_init__(self) -> None:
        check_numbers("width", self.width, dims=0, least=1e-3, most=_WIDEST)
        for name in ("units", "steps"):
            check_count(name, getattr(self, name), ValueError)
        if self.kind not in KINDS or self.devices not in CLASSES:
            raise ValueError(f"a group of {self.kind!r} on {self.devices!r} is not known")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDevices:
    """Intervals on devices a model was not measured on."""

    groups: Sequence[Group]
    host: float  # half of the interval of a host that was not measured, as a logarithm
    unknown: float  # added for ops no model knows, by their part of the step
    single: float = 0.0  # added for calls whose errors do not even out, by how much of a step is alike
    usual: float = 0.0  # how much of the steps left out is alike, which their errors count already
    own: str = ""  # the model's own device

    def __post_init__(self) -> None:
        check_numbers("a width", [self.unknown, self.single, self.host], least=0, most=_WIDEST)
        check_numbers("a part", self.usual, dims=0, least=0, most=1)
        if not self.groups:
            raise ValueError("errors of no device")

    def step_time(self, curve: Curve, device: Device, kind: StepKind) -> LogNormal:
        """From the step time at several speeds of the device, all else as predicted."""
        median, wide = dict(curve)[1.0], self.width(device, kind)
        drawn = draw_steps(curve, np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, self.host], [0.0, -self.host]]), wide)
        slower, faster, slow_host, fast_host = np.log(drawn / median).tolist()
        return LogNormal(median=median, below=math.hypot(faster, fast_host), above=math.hypot(slower, slow_host))

    def device_time(self, seconds: Seconds, device: Device, kind: StepKind) -> LogNormal:
        return LogNormal.symmetric(seconds, self.width(device, kind))

    def width(self, device: Device, kind: StepKind) -> float:
        """Half of the interval of the device time, as a logarithm."""
        more = self.unknown * kind.unknown + self.single * max(0.0, kind.alike - self.usual)
        return more + sum(share * self._group(each, device)[0] for each, share in kind.shares.items() if share)

    def source(self, device: Device, kind: StepKind) -> str:
        """What an interval on a device is made from, in words."""
        steps = sum(group.steps for group in self.groups)
        text = f"The interval is from errors on {steps} published steps, each predicted while its device was left out"
        if self.is_strange(device, kind):
            text += f"; none was of a device like {device.name}, so it is wider than any that was"
        return f"{text}."

    def is_strange(self, device: Device, kind: StepKind) -> bool:
        """Whether no step like it was published for the class of its device."""
        return not self._group(kind.mostly, device)[1]

    def _group(self, kind: Kind, device: Device) -> tuple[float, bool]:
        """The width of steps of a kind, no narrower than of kinds and on devices better known, and whether steps of the kind
        were published for the class of the device."""
        own, kinds = class_of(device), (kind, "convolutions") if kind == "grouped convolutions" else (kind,)
        widths = {(group.kind, group.devices): group.width for group in self.groups}
        nearer = CLASSES[: CLASSES.index(own) + 1]
        known = [width for (each, devices), width in widths.items() if each in kinds and devices in nearer]
        if (kind, own) in widths:  # few steps of a stranger kind or class may have been right by chance
            return max(known), True
        known = known or [width for (each, _), width in widths.items() if each in kinds] or list(widths.values())
        return _STRANGE * max(known), False

    @classmethod
    def load(cls, path: Path) -> OtherDevices:
        return read_errors(path, cls.parse)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> OtherDevices:
        rest = dict(content)
        if old := next((key for key in _OLD_KEYS if key in rest), None):
            return _of_lists(rest.pop(old), rest)
        return cls(groups=[Group(**group) for group in rest.pop("groups")], **rest)


def _of_lists(devices: Sequence[Mapping[str, Any]], rest: Mapping[str, Any]) -> OtherDevices:
    """Of an older file: errors of each device over the scale of a step's kind, every device counting as one."""
    check_numbers("reach", rest["reach"], dims=0, least=1e-3)  # which those files have
    errors: dict[DeviceClass, list[Sequence[float]]] = defaultdict(list)
    for each in devices:
        check_numbers("errors", each["errors"], least=-_WIDEST, most=_WIDEST)
        if not len(each["errors"]):
            raise ValueError("a device without errors")
        errors[class_of(known_device(each["device"]))].append(each["errors"])
    groups = [
        Group(
            kind=kind, devices=name, width=_unit_quantile(units) * scale, units=len(units), steps=sum(map(len, units))
        )
        for name, units in errors.items()
        for kind, scale in _OLD_SCALE.items()
    ]
    known = {key: rest[key] for key in ("unknown", "single", "usual") if key in rest}
    return OtherDevices(groups=groups, host=HOST, **known)


def _unit_quantile(units: Sequence[Sequence[float]]) -> float:
    """The size that nine of ten errors stay below, every unit counting as one."""
    return weighted_quantile([e for unit in units for e in unit], [1 / len(unit) for unit in units for _ in unit])


def weighted_quantile(errors: Sequence[float], weights: Sequence[float]) -> float:
    """The size that nine of ten errors stay below, by weight."""
    sizes = np.abs(np.asarray(errors, dtype=float))
    order = np.argsort(sizes)
    reached = np.cumsum(np.asarray(weights)[order]) / np.sum(weights)
    return float(sizes[order][min(int(np.searchsorted(reached, LEVEL - 1e-9)), len(sizes) - 1)])


def other_devices_of(model: CostModel) -> OtherDevices | None:
    """A model's errors on other devices than its own; None where they are not known."""
    errors = read_once(model.folder, OtherDevices.load, FILE, _OLD_FILE)
    return errors and replace(errors, own=model.device)


def convolutions(families: Mapping[str, Seconds]) -> float:
    """Their part of a step, of the device time of each family of its ops."""
    convolved = sum(families.get(name, 0.0) for name in ("convolution", "convolution_backward"))
    return convolved / (sum(families.values()) or 1.0)


def grouped(step: RoleStep) -> float:
    """The part of a step's device time that is convolutions in groups."""
    graph = step.role.graph
    places = graph.remember("grouped convolutions", lambda: _grouped(graph))
    of_calls = step.of_calls if places else []
    return sum(of_calls[place] for place in places) / (step.device_seconds or 1.0)


def _grouped(graph: Graph) -> list[int]:
    """Places of their calls."""
    return [
        place
        for place, call in enumerate(graph.calls.distinct)
        if operator_of(call.signature.name).family in ("convolution", "convolution_backward")
        and call.signature.argument("groups", 1) != 1
    ]
