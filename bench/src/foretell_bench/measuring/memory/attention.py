"""Calls of scaled_dot_product_attention, to ask a device which kernel it takes for each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import torch


@dataclass(frozen=True, slots=True)
class Attention:
    """One call: its shapes, its mask, and whether it is causal."""

    dtype: str
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    mask: str  # none, bool, float, grad
    causal: bool

    def tensors(self, device: str) -> tuple[Any, ...]:
        dtype = getattr(torch, self.dtype)

        def make(heads: int, length: int) -> torch.Tensor:
            return torch.randn(2, heads, length, self.head_dim, device=device, dtype=dtype, requires_grad=True)

        mask = None
        if self.mask != "none":
            mask = torch.zeros(
                2, 1, self.queries, self.keys, device=device, dtype=torch.bool if self.mask == "bool" else dtype
            )
            mask = mask.requires_grad_(self.mask == "grad")
        q, k, v = make(self.heads, self.queries), make(self.kv_heads, self.keys), make(self.kv_heads, self.keys)
        return q, k, v, mask, self.causal, self.heads != self.kv_heads

    def facts(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]


ATTENTION: Final = [
    Attention(dtype, 8, kv, queries, keys, head_dim, mask, causal)
    for dtype in ("float32", "bfloat16", "float16")
    for kv in (8, 2)
    for queries, keys in ((128, 128), (128, 77), (197, 197), (1, 512), (1500, 1500))
    for head_dim in (32, 36, 64, 80, 100, 128, 192, 256, 320)
    for mask in ("none", "bool", "float", "grad")
    for causal in (False, True)
    if not (causal and mask != "none")
]
