"""Optimizers that treat matrices in their own way: in few dimensions (GaLore, APOLLO), made orthogonal (Muon), by rows (Adam-mini)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

_TALL: Final = 7  # rows a column, from which a matrix is taken for a vocabulary's


def _split(params: Iterable[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices of layers, and all else: vectors, embeddings, the head."""
    given = list(params)
    layers = [p for p in given if p.dim() == 2 and p.shape[0] <= _TALL * p.shape[1]]
    chosen = {id(p) for p in layers}
    return layers, [p for p in given if id(p) not in chosen]


def _with_gradients(parameters: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for p in parameters:
        if p.grad is not None:
            yield p, p.grad


class _WithAdam(torch.optim.Optimizer):
    """AdamW for what is no layer's matrix."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-4) -> None:
        params = list(params)
        self.layers, others = _split(params)
        super().__init__(params, {"lr": lr})
        self.others = torch.optim.AdamW(others, lr=lr) if others else None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._update_layers()
        if self.others is not None:
            self.others.step()
            self.state.update(self.others.state)

    def _update_layers(self) -> None:
        raise NotImplementedError


class LowRankAdam(_WithAdam):
    """AdamW's state of gradients that a matrix of a few columns projects; how that matrix is renewed is not in a step."""

    def __init__(self, params: Iterable[Any], rank: int, name: str = "galore", lr: float = 1e-4) -> None:
        super().__init__(params, lr)
        self.rank, self.label = rank, f"{name.title()} of rank {rank}"

    def _update_layers(self) -> None:
        for p, grad in _with_gradients(self.layers):
            tall = p.shape[0] >= p.shape[1]
            state = self.state[p] or self._start(p, tall)
            projector, mean, square = state["projector"], state["exp_avg"], state["exp_avg_sq"]
            low = grad @ projector.t() if tall else projector.t() @ grad
            mean.mul_(0.9).add_(low, alpha=0.1)
            square.mul_(0.999).addcmul_(low, low, value=0.001)
            low = mean / square.sqrt().add_(1e-8)
            p.add_(low @ projector if tall else projector @ low, alpha=-1e-4)

    def _start(self, p: Tensor, tall: bool) -> dict[str, Tensor]:
        rank = min(self.rank, *p.shape)
        shape = (p.shape[0], rank) if tall else (rank, p.shape[1])
        made = {
            "projector": p.new_zeros((rank, p.shape[1]) if tall else (p.shape[0], rank)),
            "exp_avg": p.new_zeros(shape),
            "exp_avg_sq": p.new_zeros(shape),
        }
        self.state[p] = made
        return made


class MuonAndAdam(_WithAdam):
    """Momentum made orthogonal for the matrices of layers, AdamW for the others."""

    label = "Muon"

    def __init__(self, params: Iterable[Any], lr: float = 1e-4) -> None:
        super().__init__(params, lr)
        self.matrices = torch.optim.Muon(self.layers, lr=lr) if self.layers else None

    def _update_layers(self) -> None:
        if self.matrices is not None:
            self.matrices.step()
            self.state.update(self.matrices.state)


class AdamMini(_WithAdam):
    """A first moment for each number, a second one for each row."""

    label = "Adam-mini"

    def _update_layers(self) -> None:
        for p, grad in _with_gradients(self.layers):
            if not self.state[p]:
                zeros = torch.zeros_like(p, dtype=torch.float32)
                self.state[p] = {"exp_avg": zeros, "exp_avg_sq": zeros.new_zeros((p.shape[0], 1))}
            mean, square = self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
            gradient = grad.float()
            square.mul_(0.999).add_(gradient.square().mean(1, keepdim=True), alpha=0.001)
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            p.add_((mean / square.sqrt().add_(1e-8)).to(p.dtype), alpha=-1e-4)
