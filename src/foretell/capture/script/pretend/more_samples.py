"""Data sets of the script's own with as many samples as its training needs, where what stands in for their files has fewer.

A batch that a loader cannot fill would be another batch without a word. So a data set whose loader has too few samples for some
full ones has more in the next run: those that it has, again.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, RandomSampler, Subset
from torch.utils.data.distributed import DistributedSampler

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.batches import class_name, name_of
from foretell.capture.script.samples import LARGEST, LENGTHS, SAMPLES
from foretell.capture.script.session import Session

_FULL: Final = 3  # batches, before the step that is recorded has come
_MORE: Final = 4  # that there are then
_AT_RANDOM: Final = (RandomSampler, DistributedSampler)


def install(session: Session) -> None:
    """Look at what loaders are made of; give data sets that an earlier run has found too small more samples."""
    if not session.script.fake_data:
        return
    wanted: dict[str, int] = session.guesses.known.get(SAMPLES, {})
    make = DataLoader.__init__
    longer: set[type] = set()

    def lengthen(kind: Any) -> None:
        if (name := class_name(kind)) in wanted and kind not in longer and callable(vars(kind).get("__len__")):
            longer.add(kind)
            _lengthen(session, kind, name, wanted[name])

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(Dataset, cls).__init_subclass__(**kwargs)
        lengthen(cls)

    @functools.wraps(make)  # libraries make loaders anew by its signature
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        data = _base(inspect.signature(make).bind(self, *args, **kwargs).arguments.get("dataset"))
        lengthen(type(data))
        make(self, *args, **kwargs)
        if not isinstance(data, IterableDataset) and (name := name_of(data)) is not None:
            _look(session, self, data, name)

    if wanted:
        Dataset.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment,method-assign]
    replace(DataLoader, "__init__", init)


def _base(data: Any) -> Any:
    while isinstance(data, Subset | ConcatDataset):
        data = data.dataset if isinstance(data, Subset) else next(iter(data.datasets), None)
    return data


def _lengthen(session: Session, kind: Any, name: str, wanted: int) -> None:
    count: Callable[[Any], int] = kind.__len__
    take: Callable[[Any, Any], Any] | None = getattr(kind, "__getitem__", None)

    def length(data: Any) -> int:
        session.stand_in(f"samples of {name}", f"{wanted:,}, so that its batches are full")
        return max(int(count(data)), wanted)

    @functools.wraps(take or count)
    def item(data: Any, at: Any) -> Any:
        assert take is not None
        have = int(count(data))
        return take(data, at % have if isinstance(at, int) and have <= at < wanted and have else at)

    kind.__len__ = length
    if take is not None:
        kind.__getitem__ = item


def _look(session: Session, loader: Any, data: Any, name: str) -> None:
    try:
        have, turn = len(data), len(loader.sampler)
    except Exception:  # whatever a length of the script's own raises
        return
    session.guesses.made.setdefault(LENGTHS, {})[name] = have
    batch, known = loader.batch_size, session.guesses.known.get(SAMPLES, {})
    if not session.findings.stand_ins or not isinstance(batch, int) or turn <= 0 or name in known:
        return
    full = _FULL if isinstance(loader.sampler, _AT_RANDOM) else 1
    if turn < full * batch and have < LARGEST:
        more = min(have * math.ceil(_MORE * batch / turn), LARGEST)
        session.guesses.contradict(SAMPLES, {**known, name: more})
