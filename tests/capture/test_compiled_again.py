"""Compiled steps that checkpoint activations by themselves, and what the host knows between compiled pieces."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import foretell
from foretell.graph.operators import FUSED

ATTENTION = "aten._scaled_dot_product_cudnn_attention"


class Attention(nn.Module):
    """Draws at random inside a library's operator, and by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixed, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.mixed(self.norm(x)).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        query, key, value = mixed.unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=0.1)
        made: torch.Tensor = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        return made


class Blocks(nn.Module):
    def __init__(self, checkpointed: bool, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(64, 64), nn.ModuleList([Attention(), Attention()])
        self.checkpointed, self.reentrant = checkpointed, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.checkpointed else block(x)
        return x


def captured(checkpointed: bool = True, **how: Any) -> foretell.Graph:
    return foretell.capture_graph(
        foretell.Workload(
            name="blocks",
            model=lambda: Blocks(checkpointed, how.get("reentrant", False)),
            batch=lambda: torch.randn(4, 32, 64),
            loss=lambda model, x: model(x).square().mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            precision="amp-bf16",
            compile=how.get("compile", True),
        )
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_model_that_checkpoints_is_compiled_and_draws_again(reentrant: bool) -> None:
    """On a GPU generators say what is drawn again: no state of random numbers is saved, and nothing falls back."""
    graph, whole = captured(reentrant=reentrant), captured(checkpointed=False)
    assert {caveat.code for caveat in graph.caveats} == {"compiled"}
    calls = Counter(op.phase for op in graph.ops if op.signature.name == ATTENTION)
    assert calls == {"forward": 2, "backward": 2}
    forward = [Counter(op.signature.target for op in g.ops if op.phase == "forward") for g in (graph, whole)]
    assert forward[0] == forward[1]
    assert not any(tensor.dtype == "uint8" for op in graph.ops for tensor in op.signature.outputs)
    again, once = (sum(op.phase == "backward" and op.signature.name == FUSED for op in g.ops) for g in (graph, whole))
    assert again > once


def test_checkpoints_of_a_compiled_step_spare_memory() -> None:
    peaks = [foretell.forecast(captured(checkpointed), on="h200").memory.allocated for checkpointed in (True, False)]
    assert peaks[0] < peaks[1]


class Spelled(nn.Module):
    """Counts letters in compiled code, and picks as many outside it."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.out = nn.Conv1d(16, 16, 3, padding=1), nn.Linear(16, 12)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, labels = batch
        there = labels >= 0
        scores = F.log_softmax(self.out(self.mixed(x.transpose(1, 2)).transpose(1, 2)), -1).transpose(0, 1)
        lengths = there.sum(-1)
        places = torch.full_like(lengths, x.shape[1])
        return F.ctc_loss(scores, labels.masked_select(there), places, lengths)


def test_lengths_that_compiled_code_counts_are_known_between_its_pieces() -> None:
    """And a convolution over one axis reads what lies otherwise, with no driver to ask."""

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(1, 12, (4, 6))
        labels[:, 4:] = -100
        return torch.randn(4, 20, 16), labels

    graph = foretell.capture_graph(
        foretell.Workload(
            name="spelled",
            model=Spelled,
            batch=batch,
            loss=lambda model, given: model(given),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            compile=True,
        )
    )
    assert {caveat.code for caveat in graph.caveats} == {"compiled"}
    (loss,) = [op.signature for op in graph.ops if op.signature.name == "aten._ctc_loss"]
    assert [out.shape for out in loss.outputs] == [(4,), (4, 20, 2 * 4 + 1)]
