"""What the loops of a fused kernel compute, in numbers that a cost model can read; those who measure kernels count alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# Instructions that a thread takes for one number, about: CUDA's libraries approximate these by polynomials, and draw random
# numbers by ten rounds of Philox. Whatever is not here takes one.
_INSTRUCTIONS: Final[Mapping[str, int]] = {
    "erf": 32, "erfc": 40, "tanh": 20, "exp": 6, "exp2": 4, "expm1": 20, "log": 12, "log1p": 20, "log2": 8, "sin": 40,
    "cos": 40, "pow": 30, "sigmoid": 14, "truediv": 8, "sqrt": 6, "rsqrt": 6, "reciprocal": 6, "rand": 100, "randn": 140,
    "randint64": 100, "floordiv": 16, "truncdiv": 16, "remainder": 16, "mod": 16, "fmod": 16,
}  # fmt: skip
_FREE: Final = frozenset(
    ("load", "store", "output", "constant", "index_expr", "check_bounds", "to_dtype", "store_reduction")
)
_ACCESSES: Final = ("load", "store")
FACTS: Final = ("traffic", "elements", "reduced", "operations", "accesses", "apart", "of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop of a kernel: places, numbers that are reduced in each, and how often each operation is in its body."""

    places: int
    reduced: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, sizes: Sequence[int], reduced: Sequence[int], counts: Mapping[str, int]) -> Loop:
        return cls(places=math.prod(sizes), reduced=math.prod(reduced), counts=counts)

    @property
    def instructions(self) -> int:
        each = sum(_INSTRUCTIONS.get(name, 1) * n for name, n in self.counts.items() if name not in _FREE)
        return self.places * self.reduced * each

    @property
    def accesses(self) -> int:
        """Numbers that are read or written, each time that they are."""
        each = sum(self.counts.get(name, 0) for name in _ACCESSES)
        return self.places * (self.reduced * each + self.counts.get("store_reduction", 0))


def facts_of(loops: Sequence[Loop], traffic: int, apart: int, of: Sequence[str]) -> dict[str, int | str]:
    """The facts of a kernel; `apart` are bytes that neighbouring threads find apart from each other."""
    return {
        "traffic": traffic,
        "elements": max((loop.places * loop.reduced for loop in loops), default=1),
        "reduced": max((loop.reduced for loop in loops), default=1),
        "operations": sum(loop.instructions for loop in loops),
        "accesses": sum(loop.accesses for loop in loops),
        "apart": apart,
        "of": " ".join(sorted(of)),
    }
