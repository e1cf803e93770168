"""How far off the time of an op may be: boosted trees, fitted on errors of ops in steps that no model had seen.

A convolution of a shape that was measured a thousand times is known to a few percent; one for which a library may pick
a kernel ten times slower is not. The description of an op tells which it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import Description
from foretell.cost.operators import FamilyModel, load_families, places_by_family, save_families

Floats = npt.NDArray[np.float64]
FILE: Final = "spreads.safetensors"
FUSED_FILE: Final = "fused_spreads.safetensors"  # of kernels that a compiler writes
SMALLEST: Final = 0.005  # no op is known better, as a logarithm
LARGEST: Final = 2.0  # beyond, an error says no more
UNKNOWN_FAMILY: Final = 0.4  # of a family whose errors are not known, about what the worst have


@dataclass(frozen=True, kw_only=True)
class OperatorErrors:
    families: Mapping[str, FamilyModel]

    def of(self, names: Sequence[str], descriptions: Sequence[Description]) -> Floats:
        """The error that is to be expected of each op (the root of the mean square), as a logarithm."""
        out = np.full(len(names), UNKNOWN_FAMILY)
        for family, places in places_by_family(descriptions).items():
            model = self.families.get(family)
            if model is not None:
                predicted = model.log_ratio([names[i] for i in places], [descriptions[i] for i in places])
                out[places] = np.exp(predicted / 2).clip(SMALLEST, LARGEST)  # trees know the logarithm of its square
        return out

    def save(self, path: Path) -> None:
        save_families(path, self.families)

    @classmethod
    def load(cls, path: Path, fused: Path | None = None) -> OperatorErrors:
        """From a file, and from that of a compiler's kernels, where there is one."""
        return cls(
            families={
                name: model for p in (path, fused) if p for name, model in load_families(p, "model of errors").items()
            }
        )
