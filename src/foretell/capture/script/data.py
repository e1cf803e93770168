"""Data loaders in one process: workers would be forks of a process that pretends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, dataloader

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.host import HostMeter, pin


def hash_anything(fingerprint: Any) -> None:
    """Hugging Face's datasets hash what works on them, and what that refers to, to find results of before: here are none."""
    count = itertools.count()
    fingerprint.Hasher.hash = classmethod(lambda cls, value: f"{next(count):016x}")


def load_inline(fetching: Callable[[], None], meter: HostMeter) -> None:
    """Let loaders work in this process; `fetching` is called before each batch. What workers would do is not metered."""
    make, iterate = DataLoader.__init__, DataLoader._get_iterator

    def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("num_workers", args[4] if len(args) > 4 else 0)  # the fifth after the dataset
        args = (*args[:4], 0, *args[5:]) if len(args) > 4 else args
        pinned = kwargs.get("pin_memory", args[6] if len(args) > 6 else False)
        self.__dict__.update(wanted_workers=asked or 0, wanted_pinned=bool(pinned))
        kwargs.update({name: kwargs[name] and 0 for name in ("num_workers",) if name in kwargs})
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "pin_memory"):
            kwargs.pop(name, None)
        make(self, dataset, *args[:6], **kwargs)

    take = dataloader._BaseDataLoaderIter.__next__

    def following(self: Any) -> Any:
        fetching()
        with meter.elsewhere(getattr(self, "wanted_workers", 0) > 0):
            batch = take(self)
        if getattr(self, "wanted_pinned", False):
            pytree.tree_map_only(torch.Tensor, pin, batch)
        return batch

    def get_iterator(self: Any) -> Any:
        iterator: Any = iterate(self)
        iterator.wanted_workers, iterator.wanted_pinned = self.wanted_workers, self.wanted_pinned
        return iterator

    replace(DataLoader, "_get_iterator", get_iterator)

    replace(DataLoader, "__init__", init)
    replace(dataloader._BaseDataLoaderIter, "__next__", following)
    replace(dataloader._BaseDataLoaderIter, "next", following) if hasattr(
        dataloader._BaseDataLoaderIter, "next"
    ) else None
