"""Optimizers of bitsandbytes: Adam and Lion with 8-bit or 32-bit state, one kernel per parameter, paged to the host or not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from foretell.sources.named.bitsandbytes_ops import operators

_BLOCK: Final = 256
_SMALLEST: Final = 4096  # numbers of a parameter whose state has 8 bits
_STATES: Final = {"adam": 2, "lion": 1}


class BlockwiseOptimizer(torch.optim.Optimizer):
    """`paged` state lies in memory that the driver moves to the host where the device's is short."""

    def __init__(self, params: Iterable[Any], algorithm: str, bits: int, paged: bool, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})
        self.algorithm, self.bits, self.paged = algorithm, bits, paged
        self.label = f"{bits}-bit {algorithm.title()}{', paged' if paged else ''}"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        ops = operators()
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p] or self._start(p)
            first, second = state["states"] if len(state["states"]) == 2 else (*state["states"], None)
            if not state["absmax"]:
                ops.optimizer_update_32bit(self.algorithm, p.grad, p, first, second)
                continue
            scales = state["absmax"] if len(state["absmax"]) == 2 else (*state["absmax"], None)
            code = state["code"]
            ops.optimizer_update_8bit_blockwise(self.algorithm, p.grad, p, first, second, code, code, *scales)

    def _start(self, p: Tensor) -> dict[str, Any]:
        eight = self.bits == 8 and p.numel() >= _SMALLEST
        number = _STATES[self.algorithm]
        made: dict[str, Any] = {
            "states": [torch.zeros_like(p, dtype=torch.uint8 if eight else torch.float32) for _ in range(number)],
            "absmax": [p.new_zeros(math.ceil(p.numel() / _BLOCK), dtype=torch.float32) for _ in range(number * eight)],
            "code": p.new_zeros(256, dtype=torch.float32) if eight else None,
        }
        self.state[p] = made
        return made
