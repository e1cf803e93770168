"""Batches of examples, of like lengths or of a running text, as torchtext made them before 0.12."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator as Iterating
from typing import Any

import torch


def _device(device: Any) -> Any:
    """Before 0.4 a device was a number, and -1 the host."""
    return None if device in (-1, None) else torch.device("cuda", device) if isinstance(device, int) else device


def batches(data: Any, batch_size: int, batch_size_fn: Any = None) -> Iterating[list[Any]]:
    """Lists of examples, each as large as the size allows."""
    if batch_size_fn is None:
        examples = list(data)
        yield from (examples[i : i + batch_size] for i in range(0, len(examples), batch_size))
        return
    kept: list[Any] = []
    size = 0
    for example in data:
        kept.append(example)
        size = batch_size_fn(example, len(kept), size)
        if size == batch_size:
            yield kept
            kept, size = [], 0
        elif size > batch_size:
            yield kept[:-1]
            kept = kept[-1:]
            size = batch_size_fn(example, 1, 0)
    if kept:
        yield kept


def pool(data: Any, batch_size: int, key: Any, batch_size_fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    return batches(sorted(data, key=key) if key else data, batch_size, batch_size_fn)


class Batch:
    """Tensors by the names of fields."""

    def __init__(self, data: Any = None, dataset: Any = None, device: Any = None, train: bool = True) -> None:
        if data is None:
            return
        self.batch_size, self.dataset, self.fields = len(data), dataset, list(dataset.fields)
        self.input_fields = [name for name, field in dataset.fields.items() if field and not field.is_target]
        self.target_fields = [name for name, field in dataset.fields.items() if field and field.is_target]
        for name, field in dataset.fields.items():
            if field is not None:
                setattr(self, name, field.process([getattr(example, name) for example in data], device=device))

    def __len__(self) -> int:
        return self.batch_size

    def __iter__(self) -> Iterating[Any]:
        inputs = [getattr(self, name) for name in self.input_fields]
        targets = [getattr(self, name) for name in self.target_fields]
        yield inputs[0] if len(inputs) == 1 else tuple(inputs)
        yield None if not targets else targets[0] if len(targets) == 1 else tuple(targets)


class Iterator:
    """Goes through a data set in batches."""

    def __init__(
        self, dataset: Any, batch_size: int, sort_key: Any = None, device: Any = None, batch_size_fn: Any = None, train: bool = True,
        repeat: bool = False, shuffle: bool | None = None, sort: bool | None = None, sort_within_batch: bool | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.dataset, self.batch_size, self.batch_size_fn = dataset, batch_size, batch_size_fn
        self.sort_key = sort_key or getattr(dataset, "sort_key", None)
        self.train, self.repeat, self.shuffle, self.sort = train, repeat, train if shuffle is None else shuffle, sort
        self.sort_within_batch, self.device, self.iterations, self.epoch = sort_within_batch, _device(device), 0, 0.0
        self.batches: Any = ()

    @classmethod
    def splits(cls, datasets: Any, batch_sizes: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        sizes = batch_sizes or [kwargs.pop("batch_size")] * len(datasets)
        kwargs.pop("batch_size", None)
        return tuple(
            cls(part, batch_size=size, train=i == 0, **kwargs)
            for i, (part, size) in enumerate(zip(datasets, sizes, strict=True))
        )

    def data(self) -> list[Any]:
        examples = list(self.dataset)
        if self.sort and self.sort_key is not None:
            return sorted(examples, key=self.sort_key)
        return random.sample(examples, len(examples)) if self.shuffle else examples

    def create_batches(self) -> None:
        self.batches = batches(self.data(), self.batch_size, self.batch_size_fn)

    def init_epoch(self) -> None:
        self.create_batches()

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterating[Any]:
        while True:
            self.init_epoch()
            for examples in self.batches:
                self.iterations += 1
                if self.sort_within_batch and self.sort_key is not None:
                    examples = sorted(examples, key=self.sort_key, reverse=True)
                yield Batch(examples, self.dataset, self.device, self.train)
            if not self.repeat:
                return


class BucketIterator(Iterator):
    """Whose batches are of like lengths."""


class BPTTIterator(Iterator):
    """Pieces of a running text, and the same one word on."""

    def __init__(self, dataset: Any, batch_size: int, bptt_len: int, **kwargs: Any) -> None:
        self.bptt_len = bptt_len
        super().__init__(dataset, batch_size, **kwargs)

    def __len__(self) -> int:
        return math.ceil((len(self.dataset[0].text) / self.batch_size - 1) / self.bptt_len)

    def __iter__(self) -> Iterating[Any]:
        field = self.dataset.fields["text"]
        words = self.dataset[0].text
        rows = len(words) // self.batch_size
        numbers = [field.vocab.stoi[word] for word in words[: rows * self.batch_size]]
        whole = torch.tensor(numbers, device=self.device).view(self.batch_size, -1).t().contiguous()
        while True:
            for i in range(0, rows - 1, self.bptt_len):
                length = min(self.bptt_len, rows - 1 - i)
                batch = Batch()
                batch.batch_size, batch.dataset, batch.fields = self.batch_size, self.dataset, ["text", "target"]
                pair = whole[i : i + length], whole[i + 1 : i + 1 + length]
                batch.text, batch.target = (p.t().contiguous() for p in pair) if field.batch_first else pair  # type: ignore[attr-defined]
                yield batch
            if not self.repeat:
                return
