"""What is left of log(measured ÷ predicted): a smooth function of numbers that describe a step or an op, kept in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import ProfileError
from foretell.limits import parse_json, read_bytes

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

_FARTHEST: Final = 2.0
_BOUND: Final = 20.0  # e-folds that a file may let it go: far beyond any fit, and a factor that a float still holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Known points, and what each of them says of others as far as they are alike; on top of a plane."""

    columns: tuple[str, ...]  # what describes a point
    scales: tuple[float, ...]  # how far apart, in each column, points are strangers
    points: tuple[tuple[float, ...], ...]  # in scales
    weights: tuple[float, ...]
    slopes: tuple[float, ...] = ()  # of the plane, by scale; () is none
    offset: float = 0.0
    low: float = -_FARTHEST  # that it may go, in e-folds
    high: float = _FARTHEST

    def __post_init__(self) -> None:
        rows, wide = len(self.weights), len(self.columns)
        each = (self.scales, *self.points, *((self.slopes,) if self.slopes else ()))
        numbers = (*self.weights, self.offset, self.low, self.high, *(x for part in each for x in part))
        fits = len(self.points) == rows and {len(part) for part in each} == {wide}
        bounded = -_BOUND <= self.low <= self.high <= _BOUND and all(scale > 0 for scale in self.scales)
        if not fits or not bounded or not all(map(math.isfinite, numbers)):
            raise ProfileError(
                f"a residual model of {rows} points and {wide} columns does not hold together. Fit it again."
            )

    def log_factor(self, described: Mapping[str, float]) -> float:
        """By Matérn's kernel of 3/2: it may bend, not jump."""
        if missing := [name for name in self.columns if name not in described]:
            raise ProfileError(f"steps are not described by {', '.join(missing)} any more. Make the profile again.")
        place = [described[name] / scale for name, scale in zip(self.columns, self.scales, strict=True)]
        away = (math.sqrt(3) * math.dist(place, point) for point in self.points)
        near = sum(w * (1 + d) * math.exp(-d) for w, d in zip(self.weights, away, strict=True))
        plane = self.offset + sum(slope * x for slope, x in zip(self.slopes, place, strict=bool(self.slopes)))
        return max(self.low, min(self.high, near + plane))

    def arrays(self) -> Arrays:
        import numpy as np

        return {
            "scales": np.array(self.scales), "weights": np.array(self.weights), "slopes": np.array(self.slopes),
            "points": np.array(self.points, dtype=float).reshape(len(self.weights), len(self.columns)),
            "offset": np.array([self.offset]), "bounds": np.array([self.low, self.high]),
            "columns": np.frombuffer(json.dumps(self.columns).encode(), dtype=np.uint8),
        }  # fmt: skip

    @classmethod
    def of(cls, arrays: Arrays) -> Residuals:
        """Files of before have no plane."""
        lists = {name: arrays[name].astype(float).tolist() for name in arrays if name != "columns"}
        low, high = lists.get("bounds", (-_FARTHEST, _FARTHEST))
        (offset,) = lists.get("offset", [0.0])
        return cls(
            columns=tuple(map(str, parse_json(bytes(arrays["columns"])))),
            points=tuple(map(tuple, lists["points"])), slopes=tuple(lists.get("slopes", ())),
            scales=tuple(lists["scales"]), weights=tuple(lists["weights"]),
            offset=offset, low=low, high=high,
        )  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> Residuals:
        arrays = read_arrays(path)
        try:
            return cls.of(arrays)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ProfileError(
                f"{path} holds no residual model of a profile: {error!r}. Make the profile again."
            ) from error

    def save(self, path: Path) -> None:
        write_arrays(self.arrays(), path)


def read_arrays(path: Path) -> Arrays:
    from safetensors.numpy import load

    try:
        return load(read_bytes(path, "bytes of a file of arrays"))
    except Exception as error:  # whatever the library makes of a broken file
        raise ProfileError(f"{path} holds no residual model of a profile: {error}. Make the profile again.") from error


def write_arrays(arrays: Arrays, path: Path) -> None:
    from safetensors.numpy import save

    path.write_bytes(save(dict(arrays)))
