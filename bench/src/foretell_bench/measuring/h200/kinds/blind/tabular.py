"""Blind: bags and tables of embeddings, recommenders, policies and volumes of other designs."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell_bench.measuring.h200.kinds.network import FULL, Batch, network, step


class Topics(nn.Module):
    """Weighted bags of pairs of words, hashed to a million rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(1_000_000, 32, mode="sum", sparse=True)
        self.hidden, self.classes = nn.Linear(32, 256), nn.Linear(256, 20)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        out: Tensor = self.classes(torch.relu(self.hidden(self.bag(x, per_sample_weights=weights))))
        return out


@network("lookup", (64, 16_384), precisions=FULL, optimizers=("sgd", "adagrad"))
def hashed_topics(batch: int = 1024, precision: PrecisionName = "fp32", optimizer: str = "adagrad") -> Workload:
    def batches() -> Batch:
        return {
            "x": torch.randint(1_000_000, (batch, 25)),
            "w": torch.rand(batch, 25),
            "y": torch.randint(20, (batch,)),
        }

    return step("hashed_topics", Topics, batches, lambda m, b: F.cross_entropy(m(b["x"], b["w"]), b["y"]),
                precision=precision, optimizer=optimizer)  # fmt: skip


class Triples(nn.Module):
    """Entities and relations as vectors; facts are near, changed ones far."""

    def __init__(self) -> None:
        super().__init__()
        self.things, self.relations = nn.Embedding(150_000, 200), nn.Embedding(400, 200)

    def forward(self, x: Tensor) -> Tensor:
        head, relation, tail = self.things(x[..., 0]), self.relations(x[..., 1] % 400), self.things(x[..., 2])
        distance: Tensor = torch.linalg.vector_norm(head + relation - tail, ord=1, dim=-1)
        return distance


@network("lookup", (64, 8192))
def knowledge_triples(batch: int = 512, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {name: torch.randint(150_000, (batch, n, 3)) for name, n in (("x", 1), ("z", 8))}

    return step("knowledge_triples", Triples, batches, lambda m, b: F.relu(6 + m(b["x"]) - m(b["z"])).mean(),
                precision=precision, optimizer=optimizer)  # fmt: skip


class Advertisements(nn.Module):
    """Tables of uneven sizes and bags of several values, interaction by a batched product, one tower."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (1_000_000, 250_000, 60_000, 15_000, 4_000, 1_000, 200, 50)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 48, mode="mean") for rows in self.sizes)
        self.numbers = nn.Sequential(nn.Linear(24, 192), nn.GELU(), nn.Linear(192, 48))
        self.tower = nn.Sequential(
            nn.Linear(48 + 81, 768), nn.ReLU(), nn.Linear(768, 384), nn.ReLU(), nn.Linear(384, 1)
        )

    def forward(self, dense: Tensor, x: Tensor) -> Tensor:
        low = self.numbers(dense)
        found = [
            table(x[:, i] % rows).to(low.dtype)
            for i, (table, rows) in enumerate(zip(self.tables, self.sizes, strict=True))
        ]
        every = torch.stack([low, *found], 2)
        out: Tensor = self.tower(torch.cat([low, torch.bmm(every.transpose(1, 2), every).flatten(1)], 1))
        return out


@network("interaction", (64, 16_384))
def advertisements(batch: int = 2048, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    def batches() -> Batch:
        return {
            "dense": torch.randn(batch, 24),
            "x": torch.randint(1_000_000, (batch, 8, 6)),
            "y": torch.rand(batch, 1),
        }

    return step("advertisements", Advertisements, batches,
                lambda m, b: F.binary_cross_entropy_with_logits(m(b["dense"], b["x"]).float(), b["y"].float()),
                precision=precision, optimizer=optimizer, forward=lambda m, b: m(b["dense"], b["x"]))  # fmt: skip


class Fields(nn.Module):
    """Fields attend to one another, twice, and cross compressed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300_000, 32)
        self.attend = nn.ModuleList(nn.MultiheadAttention(32, 2, batch_first=True) for _ in range(2))
        self.compress, self.score = nn.Conv1d(18 * 18, 64, 1), nn.Linear(18 * 32 + 64, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x)
        seen = rows
        for attend in self.attend:
            seen = F.relu(seen + attend(seen, seen, seen, need_weights=False)[0])
        crossed = torch.einsum("nfd,ngd->nfgd", rows, rows).flatten(1, 2)
        return self.score(torch.cat([seen.flatten(1), self.compress(crossed).sum(2)], 1)).squeeze(1)  # type: ignore[no-any-return]


@network("interaction", (64, 4096))
def fields_attending(batch: int = 1024, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randint(300_000, (batch, 18)), "y": torch.rand(batch)}

    return step("fields_attending", Fields, batches,
                lambda m, b: F.binary_cross_entropy_with_logits(m(b["x"]).float(), b["y"].float()), precision=precision,
                optimizer=optimizer)  # fmt: skip


class GridPolicy(nn.Module):
    """A small board seen by small convolutions, a memory cell, a policy and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 16, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 2), nn.ReLU(),
                                 nn.Conv2d(32, 64, 2), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64))  # fmt: skip
        self.remember, self.act, self.value = nn.LSTMCell(64, 64), nn.Linear(64, 7), nn.Linear(64, 1)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.remember(self.see(x), (hidden, cell))
        return self.act(hidden), self.value(hidden).squeeze(1)


@network("policy", (16, 4096))
def grid_actor(batch: int = 256, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        states = {name: torch.zeros(batch, 64) for name in ("hidden", "cell")}
        return {
            "x": torch.rand(batch, 3, 11, 11),
            **states,
            "y": torch.randint(7, (batch,)),
            "gain": torch.randn(batch),
        }

    def loss(m: nn.Module, b: Batch) -> Tensor:
        logits, value = m(b["x"], b["hidden"], b["cell"])
        return (F.cross_entropy(logits.float(), b["y"], reduction="none") * b["gain"]).mean() + F.huber_loss(
            value.float(), b["gain"].float()
        )

    return step("grid_actor", GridPolicy, batches, loss, precision=precision, optimizer=optimizer,
                forward=lambda m, b: m(b["x"], b["hidden"], b["cell"]))  # fmt: skip


class Critics(nn.Module):
    """Two critics of what an actor does, and the actor."""

    def __init__(self, seen: int, actions: int, width: int) -> None:
        super().__init__()

        def tower(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(a, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, b)
            )

        self.actor, self.one, self.two = tower(seen, 2 * actions), tower(seen + actions, 1), tower(seen + actions, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.actor(x).chunk(2, 1)
        action = torch.tanh(mean + spread.clamp(-5, 2).exp() * torch.randn_like(mean))
        both = torch.cat([x, action], 1)
        return torch.minimum(self.one(both), self.two(both)), spread


@network("policy", (64, 8192))
def soft_actor(batch: int = 256, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    return step("soft_actor", lambda: Critics(27, 8, 256), lambda: {"x": torch.randn(batch, 27)},
                lambda m, b: torch.stack([part.float().mean() for part in m(b["x"])]).sum(), precision=precision,
                optimizer=optimizer)  # fmt: skip


class Scans(nn.Module):
    """Two levels with group norms, nearest enlarging instead of transposed convolutions."""

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()

        def pair(a: int, b: int) -> nn.Sequential:
            parts = (nn.GroupNorm(1, a), nn.Conv3d(a, b, 3, padding=1, bias=False), nn.ReLU())
            return nn.Sequential(*parts, nn.GroupNorm(8, b), nn.Conv3d(b, b, 3, padding=1, bias=False), nn.ReLU())

        self.down = nn.ModuleList(pair(a, b) for a, b in zip((1, *widths), widths, strict=False))
        self.up = nn.ModuleList(pair(a + b, a) for a, b in itertools.pairwise(widths))
        self.classes = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for i, level in enumerate(self.down):
            x = level(F.max_pool3d(x, 2) if i else x)
            kept.append(x)
        for level, skip in zip(reversed(self.up), kept[-2::-1], strict=True):
            x = level(torch.cat([skip, F.interpolate(x, scale_factor=2.0, mode="nearest")], 1))
        out: Tensor = self.classes(x)
        return out


@network("volume", (1, 6))
def membranes(batch: int = 1, precision: PrecisionName = "fp32", optimizer: str = "adam") -> Workload:
    def batches() -> Batch:
        return {"x": torch.randn(batch, 1, 64, 96, 96), "y": torch.rand(batch, 2, 64, 96, 96)}

    return step("membranes", lambda: Scans((24, 48, 96, 192), 2), batches,
                lambda m, b: F.binary_cross_entropy_with_logits(m(b["x"]).float(), b["y"].float()), precision=precision,
                optimizer=optimizer)  # fmt: skip


@network("volume", (2, 32))
def nodules(batch: int = 8, precision: PrecisionName = "fp32", optimizer: str = "sgd-momentum") -> Workload:
    """Flat and deep kernels in turn on cubes of 48, whether there is a nodule."""

    def model() -> nn.Module:
        layers: list[nn.Module] = []
        for a, b in ((1, 24), (24, 48), (48, 96), (96, 160)):
            layers += [nn.Conv3d(a, b, (1, 3, 3), padding=(0, 1, 1)), nn.Conv3d(b, b, (3, 1, 1), padding=(1, 0, 0)),
                       nn.BatchNorm3d(b), nn.ELU(), nn.MaxPool3d(2)]  # fmt: skip
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(160 * 27, 64), nn.ELU(), nn.Linear(64, 2))

    def batches() -> Batch:
        return {"x": torch.randn(batch, 1, 48, 48, 48), "y": torch.randint(2, (batch,))}

    return step("nodules", model, batches, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), precision=precision,
                optimizer=optimizer)  # fmt: skip
