"""How far forecasts are off where nothing says more, and what power devices draw: the figures that benchmarks measured, in the
shipped model's folder.

`foretell bench resources` writes them; nothing that a page of accuracy has is typed into the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from foretell.cost.files import check_numbers
from foretell.cost.folder import read_errors, read_once, shipped

FILE: Final = "accuracy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Sigmas are one standard deviation of the logarithm of predicted over measured."""

    step_sigma: float  # of a step whose forecast has no interval
    memory_sigma: float  # of what a rank of one device takes
    memory_sigma_several: float  # and the heaviest of several, whose trainers keep buffers of their own
    busy_power: float  # part of its power limit that a device draws while kernels run
    idle_power: float  # and while none do, with its clocks up

    def __post_init__(self) -> None:
        check_numbers("a sigma", [self.step_sigma, self.memory_sigma, self.memory_sigma_several], least=1e-6, most=10)
        check_numbers("a power", [self.busy_power, self.idle_power], least=0, most=1)

    @classmethod
    def load(cls, path: Path) -> Accuracy:
        return read_errors(path, cls.parse)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Accuracy:
        return cls(**{name: value for name, value in content.items() if name != "sources"})


def shipped_accuracy() -> Accuracy:
    """Of the model that is taken where none is named."""
    known = read_once(shipped(), Accuracy.load, FILE)
    assert known is not None
    return known
