"""xFormers' attention, of sequences of many lengths too, and its fused layers, as torch's own kernels of the same kind.

Sequences are (batch, length, heads, width) here, and (batch, heads, length, width) in torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.capture.script.pretend.kernels.notes import note_unless


class _LowerTriangularMask:
    """xFormers' name of causal attention."""


class BlockDiagonalMask:
    """Sequences one after the other in one row, each of which attends to itself alone."""

    def __init__(self, seqlens: Iterable[int], kv_seqlens: Any = None) -> None:
        self.lengths = [int(length) for length in seqlens]
        self._batch_sizes: Sequence[int] | None = None
        note_unless(kv_seqlens is None, "xformers: keys of other lengths than queries are taken to be as long")

    from_seqlens = classmethod(lambda cls, *args, **how: cls(*args, **how))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[Any, Tensor]:
        """Tensors (batch, length, …), put one after the other."""
        made = cls([length for tensor in tensors for length in itertools.repeat(tensor.shape[1], tensor.shape[0])])
        made._batch_sizes = [tensor.shape[0] for tensor in tensors]
        return made, torch.cat([tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors], dim=1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        sizes = self._batch_sizes or [1] * len(self.lengths)
        starts = itertools.accumulate(sizes, initial=0)
        runs = [(size, self.lengths[start]) for size, start in zip(sizes, starts, strict=False)]
        parts = tensor.split([size * length for size, length in runs], dim=1)
        return [part.reshape(size, length, *tensor.shape[2:]) for part, (size, length) in zip(parts, runs, strict=True)]

    def runs(self) -> Iterator[tuple[int, int]]:
        """How many sequences follow each other that are of the same length, and that length."""
        for length, alike in itertools.groupby(self.lengths):
            yield len(list(alike)), length


def _memory_efficient(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0, scale: float | None = None, *,
    op: Any = None, output_dtype: Any = None,
) -> Tensor:  # fmt: skip
    if isinstance(attn_bias, BlockDiagonalMask):
        return _by_blocks(query, key, value, attn_bias, p, scale)
    causal = isinstance(attn_bias, _LowerTriangularMask)
    bias = attn_bias if isinstance(attn_bias, Tensor) else None
    note_unless(attn_bias is None or causal or bias is not None, "xformers: a mask of blocks is taken as all pairs")
    flat = query.dim() == 3  # heads are in the batch then
    q, k, v = ((x.unsqueeze(1) if flat else x.transpose(1, 2)) for x in (query, key, value))
    bias = bias.unsqueeze(1) if bias is not None and bias.dim() == 3 else bias
    made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, p, causal, scale=scale)
    out: Tensor = made[0]
    return out.squeeze(1) if flat else out.transpose(1, 2)


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockDiagonalMask, p: float, scale: float | None
) -> Tensor:
    """Sequences of one length are a batch; the one kernel of xFormers does as much."""
    made, start = [], 0
    for count, length in mask.runs():
        q, k, v = (
            x[:, start : start + count * length].reshape(count, length, *x.shape[2:]) for x in (query, key, value)
        )
        made.append(_memory_efficient(q, k, v, None, p, scale).reshape(1, count * length, *query.shape[2:]))
        start += count * length
    return torch.cat(made, dim=1)


class SwiGLU(nn.Module):
    """Two products in one, a gate, and a product."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, **how: Any
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Tensor) -> Any:
        gate, other = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * other)


def _selected(sources: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    return torch.cat([source[index].flatten() for source, index in zip(sources, indices, strict=True)])


def _added(x: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None = None, alpha: float = 1.0) -> Tensor:
    return torch.index_add(x, 0, index, (source * scaling if scaling is not None else source).to(x.dtype), alpha=alpha)


_FMHA: Final = SimpleNamespace(
    BlockDiagonalMask=BlockDiagonalMask, LowerTriangularMask=_LowerTriangularMask, memory_efficient_attention=_memory_efficient,
    attn_bias=SimpleNamespace(BlockDiagonalMask=BlockDiagonalMask, LowerTriangularMask=_LowerTriangularMask),
)  # fmt: skip
KNOWN: Final[Mapping[str, Any]] = {
    "xformers.ops.LowerTriangularMask": _LowerTriangularMask, "xformers.ops.memory_efficient_attention": _memory_efficient,
    "xformers.ops.MemoryEfficientAttentionFlashAttentionOp": None, "xformers.ops.fmha": _FMHA, "xformers.ops.SwiGLU": SwiGLU,
    "xformers.ops.unbind": torch.unbind, "xformers.ops.index_select_cat": _selected, "xformers.ops.scaled_index_add": _added,
    "xformers.ops.fmha.BlockDiagonalMask": BlockDiagonalMask, "xformers.ops.fmha.attn_bias.BlockDiagonalMask": BlockDiagonalMask,
}  # fmt: skip
