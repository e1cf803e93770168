"""Data loaders in one process: workers would be forks of a process that pretends."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, _utils, dataloader

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.host import pin
from foretell.capture.script.session import Session

_OF_WORKERS: Final = frozenset(
    ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "pin_memory")
)


def hash_anything(fingerprint: Any) -> None:
    """Hugging Face's datasets hash what works on them, and what that refers to, to find results of before: here are none."""
    count = itertools.count()
    fingerprint.Hasher.hash = classmethod(lambda cls, value: f"{next(count):016x}")


def install(session: Session) -> None:
    """Let loaders work in this process; what their workers would do is not the script's host work."""
    make, iterate = DataLoader.__init__, DataLoader._get_iterator
    signature = inspect.signature(make)

    @functools.wraps(make)  # libraries make loaders anew by its signature
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        workers, pinned = given.get("num_workers") or 0, bool(given.get("pin_memory", False))
        self.__dict__.update(wanted_workers=workers, wanted_pinned=pinned)
        make(**{name: value for name, value in given.items() if name not in _OF_WORKERS})

    take = dataloader._BaseDataLoaderIter.__next__

    def following(self: Any) -> Any:
        session.updates.begin()
        if session.loops.ends(self, getattr(self, "wanted_length", None)):
            raise StopIteration
        with session.recorder.host.by_others(getattr(self, "wanted_workers", 0) > 0):
            batch = take(self)
        if getattr(self, "wanted_pinned", False):
            pytree.tree_map_only(torch.Tensor, pin, batch)
        return batch

    def get_iterator(self: Any) -> Any:
        iterator: Any = iterate(self)
        iterator.wanted_workers, iterator.wanted_pinned = self.wanted_workers, self.wanted_pinned
        with contextlib.suppress(TypeError, NotImplementedError):  # of data without a length
            iterator.wanted_length = len(self)
        return iterator

    _count_samples(session)
    replace(DataLoader, "_get_iterator", get_iterator)
    replace(DataLoader, "__init__", init)
    replace(dataloader._BaseDataLoaderIter, "__next__", following)


def _count_samples(session: Session) -> None:
    """A loader knows how many samples a batch is of, whatever becomes of them: pictures in a list, graphs in one."""

    def counting(kind: Any) -> None:
        take = kind.fetch

        def fetch(self: Any, index: Any) -> Any:
            session.recorder.fetched(self.dataset, len(index) if self.auto_collation else None)
            return take(self, index)

        replace(kind, "fetch", fetch)

    counting(_utils.fetch._MapDatasetFetcher)
    counting(_utils.fetch._IterableDatasetFetcher)
