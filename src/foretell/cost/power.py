"""Power that a board draws, as parts of its limit: what its parts take at full use, measured on steps that ran for seconds.

A board with its clocks up takes something while no kernel runs, more while any does, and beyond that as much of each
unit's part as the unit is used, and of the memory's as its bandwidth is. It never draws more than its limit: what would draw
more goes on at a lower clock, which takes a few tenths of a second to settle. Steps that were measured for less time than that
are faster than those of a job that goes on for hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from foretell.cost.files import check_numbers
from foretell.cost.folder import read_errors, read_once, shipped
from foretell.cost.roofline import on_tf32, peak_name, work_of
from foretell.graph import Graph
from foretell.hardware import Device
from foretell.hardware import device as known_device
from foretell.precision import Unit
from foretell.units import Seconds

FILE: Final = "power.json"
MEASURED: Final = "h200"  # the board of its steps
_UNITS: Final[tuple[Unit, ...]] = ("fp32", "tf32", "bf16")  # others of fewer bits take what bf16's do
_OTHER: Final = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How long each part of a device would be in use, working at its published rate: seconds, or parts of a step."""

    busy: Seconds  # any kernel runs
    units: Mapping[Unit, Seconds]
    memory: Seconds

    def over(self, step: Seconds, times: float = 1.0) -> Use:
        """As parts of a step that does all of it so many times; kernels run once for all."""
        share = {unit: seconds * times / step for unit, seconds in self.units.items()}
        return Use(busy=min(self.busy / step, 1.0), units=share, memory=self.memory * times / step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Parts of a board's limit."""

    idle: float  # no kernel runs, with its clocks up
    busy: float  # one does
    units: Mapping[Unit, float]  # beyond that, a unit at its published rate
    memory: float  # and memory at its bandwidth
    most: float  # what a board at its limit draws of it
    follows: float = 0.0  # the power of what a step would draw beyond that, by which it takes longer; 0: not known

    def __post_init__(self) -> None:
        check_numbers("a power", [self.idle, self.busy, self.memory, self.most, self.follows], least=0, most=2)
        check_numbers("a unit's power", [self.units[unit] for unit in _UNITS], least=0, most=2)

    def share(self, use: Use) -> float:
        """Of the limit that a board draws, its parts in use for these parts of the time."""
        return min(self.wanted(use), self.most)

    def wanted(self, use: Use) -> float:
        """Of the limit, what it would draw at its full clock."""
        work = sum(self.units[unit] * part for unit, part in use.units.items()) + self.memory * use.memory
        return self.idle + (self.busy - self.idle) * use.busy + work

    def times_longer(self, use: Use) -> float:
        """What a step takes that goes on at the limit, over what it takes for a moment."""
        return math.pow(max(self.wanted(use) / self.most, 1.0), self.follows)

    @classmethod
    def load(cls, path: Path) -> Power:
        return read_errors(path, cls.parse)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Power:
        return cls(**{name: value for name, value in content.items() if name != "sources"})


def power_in(folder: Path | None) -> Power | None:
    """Of a model's folder, or of versions that it goes on using; None where nothing is known."""
    return read_once(folder, Power.load, FILE)


def shipped_power() -> Power:
    """Of the model that is taken where none is named."""
    known = power_in(shipped())
    assert known is not None
    return known


def carried(use: Use, device: Device) -> Use:
    """The use of another board's memory in the share of the limit that it would have of the measured board's.

    A byte costs about the same energy on every board, so boards with much power for little bandwidth, as those with GDDR,
    spend a smaller part of their limit on it. Units are taken to share the limit alike: who makes them wider gives them more.
    """
    if not device.power_watts:
        return use
    own = known_device(MEASURED)
    scale = (device.bandwidth / device.power_watts) / (own.bandwidth / own.power_watts)
    return replace(use, memory=use.memory * scale)


def use_of(graph: Graph, device: Device, busy: Seconds = 0.0) -> Use:
    """What a step asks of a device's units and memory."""
    units, memory = graph.remember(("use", device), lambda: _work(graph, device))
    return Use(busy=busy, units=units, memory=memory)


def _work(graph: Graph, device: Device) -> tuple[dict[Unit, Seconds], Seconds]:
    """Seconds of each unit at its published rate, and of the memory at its bandwidth."""
    units = dict.fromkeys(_UNITS, 0.0)
    traffic = 0.0
    for call, times in zip(graph.calls.distinct, graph.calls.times, strict=True):
        work = work_of(call.signature, view=call.is_view, host=call.on_host)
        unit = peak_name(call.signature, tf32=on_tf32(call.signature.name, graph.precision, device))
        if work.flops:
            units[unit if unit in units else _OTHER] += work.flops * times / device.peak(unit)
        traffic += work.traffic * times
    return units, traffic / device.bandwidth
