"""Data sets in which nothing is, since what they look for is not on this machine: the next run has samples in them.

A data set that is given to a loader or a sampler and is empty has a length in the next run; what its methods then fail to read
is made up, as everywhere.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, sampler
from torch.utils.data.distributed import DistributedSampler

from foretell.capture.as_gpu.patches import replace
from foretell.capture.reads import is_library
from foretell.capture.script.session import Session

EMPTY: Final = "classes of data sets that are empty"
_SAMPLES: Final = 2048
_SAMPLERS: Final[tuple[Any, ...]] = (sampler.RandomSampler, sampler.SequentialSampler, DistributedSampler)


def install(session: Session) -> None:
    """Look at every data set that a loader or a sampler is made for."""
    if not session.script.fake_data:
        return
    for kind in (DataLoader, *_SAMPLERS):
        replace(kind, "__init__", _looking(session, kind.__init__))


def _looking(session: Session, make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(given, Dataset) and not isinstance(given, IterableDataset | Sampler):
            _look(session, given)
        make(self, *args, **kwargs)

    return init


def _look(session: Session, data: Any) -> None:
    kind = type(data)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if is_library(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<none>"):
        return
    known = session.guesses.known.get(EMPTY, [])
    try:
        empty = len(data) == 0
    except Exception:  # whatever a length of the script's own raises
        return
    if not empty:
        return
    if name in known:
        kind.__len__ = lambda self: _SAMPLES
        session.stand_in(f"data set {name}, which is empty", f"{_SAMPLES:,} samples", decides_size=False)
    else:
        session.guesses.contradict(EMPTY, [*known, name])
