"""What single ops take where some were timed: a log factor on what a model says of an op, smooth over numbers that describe it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretell.errors import ProfileError
from foretell.graph import Signature
from foretell.limits import parse_json
from foretell.profile.families import family_of, plain
from foretell.profile.residuals import Residuals, read_arrays, write_arrays
from foretell.units import Bytes, Flops, Seconds

_NAMES: Final = "names"  # of the curves, in their file
_SHORT: Final[Seconds] = 1e-9


@dataclass(frozen=True, kw_only=True)
class Operators:
    """A curve for each operator that was timed often, and one for each family of them."""

    curves: Mapping[str, Residuals]

    def log_factor(self, signature: Signature, flops: Flops, traffic: Bytes, seconds: Seconds) -> float:
        """Of an op that a model says takes so long."""
        family = family_of(signature)
        for name in (signature.name, family, plain(family)):
            if (curve := self.curves.get(name)) is not None:
                return curve.log_factor(numbers_of(signature, flops, traffic, seconds))
        return 0.0

    @classmethod
    def load(cls, path: Path) -> Operators:
        arrays = read_arrays(path)
        try:
            names = parse_json(bytes(arrays[_NAMES]))
            parts: dict[int, dict[str, object]] = {}
            for key, array in arrays.items():
                place, _, part = key.partition(".")
                if key != _NAMES:
                    parts.setdefault(int(place), {})[part] = array
            return cls(curves={str(name): Residuals.of(parts[place]) for place, name in enumerate(names)})  # type: ignore[arg-type]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ProfileError(f"{path} holds no times of operators: {error!r}. Make the profile again.") from error

    def save(self, path: Path) -> None:
        import numpy as np

        names = np.frombuffer(json.dumps(list(self.curves)).encode(), dtype=np.uint8)
        each = enumerate(self.curves.values())
        arrays = {f"{place}.{name}": array for place, curve in each for name, array in curve.arrays().items()}
        write_arrays({_NAMES: names, **arrays}, path)


def numbers_of(signature: Signature, flops: Flops, traffic: Bytes, seconds: Seconds) -> dict[str, float]:
    """Logarithms that say how large an op is, of which shape, and what a model thinks of it."""
    shape = signature.outputs[0].shape if signature.outputs else ()
    sides = [side for x in signature.inputs[:2] for side in x.shape if side]
    return {
        "seconds": math.log(max(seconds, _SHORT)),
        "flops": math.log(max(flops, 1.0)),
        "traffic": math.log(max(traffic, 1)),
        "last": math.log(max(shape[-1], 1)) if shape else 0.0,
        "channels": math.log(max(shape[1], 1)) if len(shape) > 1 else 0.0,
        "narrow": math.log(min(sides)) if sides else 0.0,
    }
