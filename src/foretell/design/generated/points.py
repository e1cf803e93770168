"""Points and graphs: gather, scatter, sums over segments, neighbours, sorting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.draw import Draw, Network, mlp


class MessagePassing(nn.Module):
    """Messages along edges, gathered at nodes in one of the ways people write it."""

    def __init__(self, draw: Draw, width: int, edge_width: int) -> None:
        super().__init__()
        self.way = draw.choice(("index_add", "scatter_add", "amax", "mean", "attention", "sorted"))
        self.message = mlp(draw, (2 * width + edge_width, width, width))
        self.update = mlp(draw, (2 * width, width))
        self.score = nn.Linear(width, 1)
        self.norm = nn.LayerNorm(width) if draw.chance(0.6) else nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, about: torch.Tensor) -> torch.Tensor:
        source, target = edges
        sent = self.message(torch.cat((x[source], x.index_select(0, target), about.to(x.dtype)), 1))
        received = self._gathered(sent, target, x)
        out: torch.Tensor = self.norm(x + self.update(torch.cat((x, received), 1)))
        return out

    def _gathered(self, sent: torch.Tensor, target: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        empty = torch.zeros(len(x), sent.shape[1], dtype=sent.dtype, device=x.device)
        wide = target[:, None].expand_as(sent)
        if self.way == "index_add":
            return empty.index_add(0, target, sent)
        if self.way == "scatter_add":
            return empty.scatter_add(0, wide, sent)
        if self.way in ("amax", "mean"):
            return empty.scatter_reduce(0, wide, sent, self.way, include_self=False)
        if self.way == "attention":
            score = self.score(sent).float().squeeze(1).exp().clamp(max=1e4)
            total = torch.zeros(len(x), device=x.device).index_add(0, target, score)
            return empty.index_add(0, target, sent * (score / (total[target] + 1e-6)).to(sent.dtype)[:, None])
        order = target.argsort()  # sums over segments, by differences of a running sum
        running = sent[order].float().cumsum(0)
        ends = torch.searchsorted(target[order], torch.arange(len(x), device=x.device), right=True)
        running = torch.cat((torch.zeros(1, running.shape[1], device=x.device), running))
        last = running[ends]
        return torch.cat((last[:1], last[1:] - last[:-1])).to(sent.dtype)


class GraphNetwork(nn.Module):
    def __init__(self, draw: Draw, kinds: int, width: int, edge_width: int, outputs: int, graphs: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(MessagePassing(draw, width, edge_width) for _ in range(draw.count(2, 5)))
        self.head, self.graphs = nn.Linear(width, outputs), graphs

    def forward(self, x: torch.Tensor, edges: torch.Tensor, about: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, edges, about)
        if self.graphs:
            h = h.unflatten(0, (self.graphs, -1)).mean(1)
        out: torch.Tensor = self.head(h)
        return out


class Cloud(nn.Module):
    """Points and their nearest neighbours, pooled to the best of them."""

    def __init__(self, draw: Draw, width: int, neighbours: int, classes: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.first = mlp(draw, (3, width))
        self.edges = nn.ModuleList(mlp(draw, (2 * width, width)) for _ in range(draw.count(1, 3)))
        self.score, self.head = nn.Linear(width, 1), mlp(draw, (width, width, classes))
        self.kept = draw.choice((16, 64, 128))
        self.norm = draw.choice((True, False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(x.float(), x.float()).topk(self.neighbours, largest=False).indices
        h = self.first(x)
        batch, count, width = h.shape
        for layer in self.edges:
            flat = near.reshape(batch, -1, 1).expand(-1, -1, width)
            around = h.gather(1, flat).unflatten(1, (count, self.neighbours))
            centre = h[:, :, None].expand_as(around)
            h = layer(torch.cat((centre, around - centre), -1)).amax(2)
            h = F.layer_norm(h, (width,)) if self.norm else h
        best = self.score(h).squeeze(-1).topk(min(self.kept, count), 1).indices
        chosen = h.gather(1, best[..., None].expand(-1, -1, width))
        out: torch.Tensor = self.head(chosen.sort(1).values.mean(1))
        return out


def network(draw: Draw) -> Network:
    width, outputs = draw.width(16, 256), draw.width(2, 200)
    if draw.chance(0.4):
        count, neighbours = 64 * draw.between(2, 32), draw.choice((4, 8, 16, 20))
        batch = max(1, min(256, draw.between(2**13, 2**18) // count // max(1, width // 64)))
        return Network(
            model=lambda: Cloud(draw.again("model"), width, neighbours, outputs),
            batch_size=batch,
            batch=lambda n: {"x": torch.randn(n, count, 3), "y": torch.randint(outputs, (n,))},
            loss=lambda model, b: F.cross_entropy(model(b["x"]), b["y"]),
        )
    nodes, degree, kinds, edge_width = (
        draw.between(8, 64),
        draw.choice((3, 8, 16)),
        draw.width(10, 5000),
        draw.width(4, 64),
    )
    whole = draw.chance(0.5)
    batch = max(1, min(8192, draw.between(2**12, 2**18) // nodes))

    def graphs(n: int) -> dict[str, Any]:
        total = n * nodes
        edges = torch.randint(total, (2, total * degree))
        return {
            "x": torch.randint(kinds, (total,)),
            "edges": edges,
            "about": torch.randn(total * degree, edge_width),
            "y": torch.randint(outputs, (n if whole else total,)),
        }

    def forward(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        out: torch.Tensor = model(b["x"], b["edges"], b["about"])
        return out

    return Network(
        model=lambda: GraphNetwork(draw.again("model"), kinds, width, edge_width, outputs, batch if whole else 0),
        batch_size=batch,
        batch=graphs,
        forward=forward,
        loss=lambda model, b: F.cross_entropy(forward(model, b), b["y"]),
    )
