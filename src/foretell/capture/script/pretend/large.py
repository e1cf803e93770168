"""Batches of very many samples: data that stand in shall fill neither the host's memory nor its time.

A script may read all of a data set as one batch. Samples that stand in are alike, so a few stand for all; and a tensor that is too
large for what is only asked for its shape is a fake one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import _utils

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session
from foretell.units import Bytes, Seconds

LIMIT: Final[Bytes] = 2**30  # of one tensor of data that stand in
_MANY: Final = 1024  # samples of a batch: no step takes more, as a rule
_FEW: Final = 2  # that show how large all of them are
_ENOUGH, _LONG = 256, 3.0  # samples that are read in any case; seconds of the processor for the others


def install(session: Session) -> None:
    if not session.script.fake_data:
        return
    fetcher = _utils.fetch._MapDatasetFetcher
    take: Callable[[Any, Any], Any] = fetcher.fetch

    def fetch(self: Any, index: Any) -> Any:
        if not self.auto_collation or len(index) <= _MANY or not session.findings.stand_ins:
            return take(self, index)
        return _batch(session, self.dataset, list(index), self.collate_fn)

    replace(fetcher, "fetch", fetch)


def made(session: Session, shape: Sequence[int], dtype: torch.dtype, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What `make` makes, or a fake one where it would be too large."""
    is_large = math.prod(shape) * dtype.itemsize > LIMIT
    return session.place.data(shape, dtype) if is_large else make()


def _batch(session: Session, data: Any, index: list[Any], collate: Callable[[list[Any]], Any]) -> Any:
    samples: list[Any] = []
    began: Seconds = time.process_time()
    for at in index:
        if len(samples) == _FEW and _bytes(samples[-1]) * len(index) > LIMIT:
            return _grown(session, collate(samples), len(index))
        if len(samples) >= _ENOUGH and time.process_time() - began > _LONG:
            break
        samples.append(data[at])
    if len(samples) < len(index):
        session.stand_in(f"a batch of {len(index):,} samples of {type(data).__name__}", f"{len(samples):,} in turn")
    return collate(list(itertools.islice(itertools.cycle(samples), len(index))))


def _grown(session: Session, few: Any, samples: int) -> Any:
    """A batch of a few samples with as many as there should be."""

    def grow(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (_FEW,):
            return leaf
        again = torch.arange(samples) % _FEW
        return made(session, (samples, *leaf.shape[1:]), leaf.dtype, lambda: leaf[again])

    return pytree.tree_map(grow, few)


def _bytes(sample: Any) -> Bytes:
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(sample) if isinstance(leaf, torch.Tensor | np.ndarray))
