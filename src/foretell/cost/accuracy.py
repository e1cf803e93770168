"""How far forecasts are off where nothing says more: the figures that benchmarks measured, in the shipped model's folder.

`foretell bench resources` writes them; nothing that a page of accuracy has is typed into the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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

    def __post_init__(self) -> None:
        check_numbers("a sigma", [self.step_sigma, self.memory_sigma, self.memory_sigma_several], least=1e-6, most=10)

    @classmethod
    def load(cls, path: Path) -> Accuracy:
        return read_errors(path, cls.parse)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Accuracy:
        """Older files have what power devices draw too."""
        return cls(**{each.name: content[each.name] for each in fields(cls)})


def shipped_accuracy() -> Accuracy:
    """Of the model that is taken where none is named."""
    known = read_once(shipped(), Accuracy.load, FILE)
    assert known is not None
    return known
