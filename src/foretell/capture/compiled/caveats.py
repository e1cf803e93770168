"""What a forecast of a compiled step says of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import torch

from foretell.capture.compiled.wishes import Compiled
from foretell.graph import Caveat

_FEW: Final = 4


def caveats_of(found: Compiled) -> Iterator[Caveat]:
    """Of what user code has compiled."""
    if found.functions:
        yield Caveat("compiled", f"torch.compile of {_named(found.functions)}: {_origin()}; all else runs as written.")
    for why, left in groupby(found.left, key=lambda each: each.why):
        names = _named([each.what for each in left])
        yield Caveat("compile-not-modelled", f"torch.compile of {names}: {why}; this is its eager step.")


def caveat_of_a_model() -> Caveat:
    """Of a model that is compiled as a whole."""
    return Caveat("compiled", f"{_origin()}; loss outside the model and optimizer run as written.")


def _origin() -> str:
    version = torch.__version__.partition("+")[0]
    return (
        f"Kernels are those that the compiler of torch {version} schedules for a Hopper board, "
        "priced as those of some measured steps"
    )


def _named(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more
