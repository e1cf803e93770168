"""Bags of words, large embeddings, and recommenders that let features meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import FULL, Batch, classify, network, step

SPARSE = ("sgd", "adagrad")  # optimizers that take sparse gradients


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def clicked(model: nn.Module, b: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(b["dense"], b["x"]).float(), b["y"].float())


def clicks(batch: int, fields: int, rows: int, dense: int) -> Batch:
    return {"dense": torch.randn(batch, dense), "x": torch.randint(rows, (batch, fields)), "y": torch.rand(batch)}


class BagClassifier(nn.Module):
    def __init__(self, rows: int, width: int, classes: int, *, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, width, mode="mean", sparse=sparse)
        self.classes = nn.Linear(width, classes)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        out: Tensor = self.classes(self.bag(words, starts))
        return out


def _text_bag(name: str, batch: int, sparse: bool, precision: PrecisionName, optimizer: str) -> Workload:
    def batches() -> Batch:
        starts = torch.arange(0, 40 * batch, 40)
        return {"x": torch.randint(100_000, (40 * batch,)), "starts": starts, "y": torch.randint(4, (batch,))}

    return step(name, lambda: BagClassifier(100_000, 64, 4, sparse=sparse), batches,
                lambda m, b: F.cross_entropy(m(b["x"], b["starts"]), b["y"]), precision=precision, optimizer=optimizer,
                forward=lambda m, b: m(b["x"], b["starts"]))  # fmt: skip


@network("lookup", (16, 16_384))
def text_bag(batch: int = 512, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """The mean of forty words, a class of four."""
    return _text_bag("text_bag", batch, False, precision, optimizer)


@network("lookup", (16, 16_384), precisions=FULL, optimizers=SPARSE)
def text_bag_sparse(batch: int = 512, precision: PrecisionName = "fp32", optimizer: str = "sgd") -> Workload:
    """The same with sparse gradients."""
    return _text_bag("text_bag_sparse", batch, True, precision, optimizer)


class SkipGram(nn.Module):
    """Words near one another score high, words drawn at random low."""

    def __init__(self, words: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.centre = nn.Embedding(words, width, sparse=sparse)
        self.context = nn.Embedding(words, width, sparse=sparse)

    def forward(self, x: Tensor, others: Tensor) -> Tensor:
        return torch.bmm(self.context(others), self.centre(x).unsqueeze(2)).squeeze(2)


@network("lookup", (128, 32_768), precisions=FULL, optimizers=SPARSE)
def skip_gram(batch: int = 1024, precision: PrecisionName = "fp32", optimizer: str = "sgd") -> Workload:
    """Two hundred thousand words of 128 numbers, sparse gradients, ten negatives."""

    def loss(m: nn.Module, b: Batch) -> Tensor:
        scores = m(b["x"], b["others"])
        return -F.logsigmoid(torch.cat([scores[:, :1], -scores[:, 1:]], 1)).sum(1).mean()

    def batches() -> Batch:
        return {"x": torch.randint(200_000, (batch,)), "others": torch.randint(200_000, (batch, 11))}

    return step("skip_gram", lambda: SkipGram(200_000, 128, sparse=True), batches, loss, precision=precision,
                optimizer=optimizer)  # fmt: skip


class DotInteraction(nn.Module):
    """Every table's row and the dense features meet in dot products, their triangle goes to an MLP."""

    def __init__(self, tables: Sequence[int], width: int, dense: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for rows in tables)
        self.bottom = nn.Sequential(perceptron(dense, 512, 256, width), nn.ReLU())
        pairs = len(tables) * (len(tables) + 1) // 2
        self.top = perceptron(width + pairs, 512, 256, 1)

    def forward(self, dense: Tensor, x: Tensor) -> Tensor:
        low = self.bottom(dense)
        rows = [table(x[:, i : i + 1]) for i, table in enumerate(self.tables)]
        every = torch.stack([low, *(row.to(low.dtype) for row in rows)], 1)
        products = every @ every.transpose(1, 2)
        i, j = torch.tril_indices(every.shape[1], every.shape[1], -1, device=x.device)
        return self.top(torch.cat([low, products[:, i, j]], 1)).squeeze(1)  # type: ignore[no-any-return]


@network("interaction", (128, 16_384))
def dot_interaction(batch: int = 2048, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """Twenty-six tables of forty thousand rows, 64 wide."""
    return step("dot_interaction", lambda: DotInteraction([40_000] * 26, 64, 13), lambda: clicks(batch, 26, 40_000, 13),
                clicked, precision=precision, optimizer=optimizer, forward=lambda m, b: m(b["dense"], b["x"]))  # fmt: skip


class CrossNetwork(nn.Module):
    """Crosses of all features beside a deep path, one table for all fields."""

    def __init__(self, fields: int, rows: int, width: int, dense: int) -> None:
        super().__init__()
        self.table, wide = nn.Embedding(fields * rows, width), fields * width + dense
        self.crosses = nn.ModuleList(nn.Linear(wide, wide) for _ in range(3))
        self.deep, self.score = nn.Sequential(perceptron(wide, 400, 400), nn.ReLU()), nn.Linear(wide + 400, 1)
        self.register_buffer("starts", torch.arange(fields) * rows)

    def forward(self, dense: Tensor, x: Tensor) -> Tensor:
        starts: Tensor = self.get_buffer("starts")
        first = torch.cat([self.table(x + starts).flatten(1), dense], 1)
        crossed = first
        for cross in self.crosses:
            crossed = first * cross(crossed) + crossed
        return self.score(torch.cat([crossed, self.deep(first)], 1)).squeeze(1)  # type: ignore[no-any-return]


@network("interaction", (128, 16_384))
def cross_network(batch: int = 4096, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Thirty-nine fields of ten thousand values, 16 wide."""
    return step("cross_network", lambda: CrossNetwork(39, 10_000, 16, 13), lambda: clicks(batch, 39, 10_000, 13),
                clicked, precision=precision, optimizer=optimizer, forward=lambda m, b: m(b["dense"], b["x"]))  # fmt: skip


class FactorizationMachine(nn.Module):
    """Squares of sums less sums of squares, beside an MLP."""

    def __init__(self, rows: int, fields: int, width: int, dense: int) -> None:
        super().__init__()
        self.table, self.weights = nn.Embedding(rows, width), nn.EmbeddingBag(rows, 1, mode="sum")
        self.deep = perceptron(fields * width + dense, 256, 128, 1)

    def forward(self, dense: Tensor, x: Tensor) -> Tensor:
        rows = self.table(x)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        deep = self.deep(torch.cat([rows.flatten(1), dense], 1))
        return (self.weights(x) + pairs + deep).squeeze(1)  # type: ignore[no-any-return]


@network("interaction", (128, 32_768))
def factorization(batch: int = 4096, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """A million rows of ten numbers for 24 fields."""
    return step("factorization", lambda: FactorizationMachine(1_000_000, 24, 10, 8),
                lambda: clicks(batch, 24, 1_000_000, 8), clicked, precision=precision, optimizer=optimizer,
                forward=lambda m, b: m(b["dense"], b["x"]))  # fmt: skip


class ItemModel(nn.Module):
    """A session's items by their sum, scored against all items there are."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.items, self.mix = nn.Embedding(items, width), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.items(x).mean(1)) @ self.items.weight.T  # type: ignore[no-any-return]


@network("lookup", (32, 2048))
def session_items(batch: int = 256, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    """Fifty thousand items, twenty in a session, tied weights."""

    def batches() -> Batch:
        return {"x": torch.randint(50_000, (batch, 20)), "y": torch.randint(50_000, (batch,))}

    return step("session_items", lambda: ItemModel(50_000, 100), batches, classify, precision=precision,
                optimizer=optimizer)  # fmt: skip
