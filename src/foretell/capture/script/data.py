"""Data loaders in one process: workers would be forks of a process that pretends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, dataloader

from foretell.capture.as_gpu.patches import replace


def load_inline(fetching: Callable[[], None]) -> None:
    """Let loaders work in this process; `fetching` is called before each batch."""
    make = DataLoader.__init__

    def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        args = (*args[:4], 0, *args[5:]) if len(args) > 4 else args  # num_workers is the fifth after the dataset
        kwargs.update({name: kwargs[name] and 0 for name in ("num_workers",) if name in kwargs})
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "pin_memory"):
            kwargs.pop(name, None)
        make(self, dataset, *args[:6], **kwargs)

    take = dataloader._BaseDataLoaderIter.__next__

    def following(self: Any) -> Any:
        fetching()
        return take(self)

    replace(DataLoader, "__init__", init)
    replace(dataloader._BaseDataLoaderIter, "__next__", following)
    replace(dataloader._BaseDataLoaderIter, "next", following) if hasattr(
        dataloader._BaseDataLoaderIter, "next"
    ) else None
