"""Attention of flash-attn, as torch's own kernels of the same kind.

Sequences are (batch, length, heads, width) here, and (batch, heads, length, width) in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.capture.as_gpu.attention import flash
from foretell.capture.opaque import run as run_declared
from foretell.capture.script.pretend.kernels.notes import note_unless
from foretell.declared import Opaque

_EVERYWHERE: Final = (-1, -1)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = _EVERYWHERE, softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    note_unless(tuple(window_size) == _EVERYWHERE, "flash_attn: window_size is not modelled; all pairs are computed")
    if k.shape[2] != q.shape[2]:  # keys of a group of heads, which torch's op takes once for each
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    out = flash(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p, causal, softmax_scale)
    out = out.transpose(1, 2)
    return (
        (out, out.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32), None)
        if return_attn_probs
        else out
    )


def _flash_packed(qkv: Tensor, *args: Any, **how: Any) -> Any:
    q, k, v = qkv.unbind(2)
    return _flash(q, k, v, *args, **how)


def _flash_kv_packed(q: Tensor, kv: Tensor, *args: Any, **how: Any) -> Any:
    k, v = kv.unbind(2)
    return _flash(q, k, v, *args, **how)


def _varlen_flops(q: Tensor, k: Tensor, v: Tensor, longest: int, causal: bool) -> float:
    return 4.0 * q.numel() * int(longest) * (0.5 if causal else 1.0)


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any, max_seqlen_k: Any,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Any = _EVERYWHERE,
    softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:  # fmt: skip
    """Sequences of many lengths in one: taken to be as long as the longest."""
    note_unless(tuple(window_size) == _EVERYWHERE, "flash_attn: window_size is not modelled; all pairs are computed")
    known = Opaque(name="flash_attn_varlen_func", outputs=lambda q, *rest: torch.empty_like(q), flops=_varlen_flops,
                   traffic=None, backward_flops=lambda *a, **k: 2.5 * _varlen_flops(*a, **k))  # fmt: skip
    out = run_declared(known, (q, k, v, int(max_seqlen_k), causal), {})
    return (out, None, None) if return_attn_probs else out


def _varlen_packed(qkv: Tensor, cu_seqlens: Any, max_seqlen: Any, *args: Any, **how: Any) -> Any:
    q, k, v = qkv.unbind(1)
    return _varlen(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **how)


def _varlen_kv_packed(q: Tensor, kv: Tensor, *args: Any, **how: Any) -> Any:
    k, v = kv.unbind(1)
    return _varlen(q, k, v, *args, **how)


# Padding


def _unpad(hidden: Tensor, attention_mask: Tensor, unused_mask: Any = None) -> tuple[Any, ...]:
    """(rows that are no padding, where they are, where sequences start, the longest, lengths)."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    where = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    starts = F.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[where], where, starts, int(lengths.max().item()), lengths


def _pad(hidden: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    padded = hidden.new_zeros(batch * seqlen, *hidden.shape[1:])
    return padded.index_put((indices,), hidden).view(batch, seqlen, *hidden.shape[1:])


def _rotary(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False, **where: Any
) -> Tensor:
    width = 2 * cos.shape[-1]
    first, second = x[..., :width].chunk(2, dim=-1)
    cos, sin = (t[: x.shape[1], None] if t.dim() == 2 else t for t in (cos, sin))
    turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


class _SelfAttention(nn.Module):
    """Of packed q, k and v."""

    def __init__(self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0,
                 **how: Any) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.softmax_scale, self.drop = causal, softmax_scale, attention_dropout

    def forward(self, qkv: Tensor, causal: bool | None = None, cu_seqlens: Any = None, max_seqlen: Any = None) -> Any:
        how = (self.drop if self.training else 0.0, self.softmax_scale, self.causal if causal is None else causal)
        if cu_seqlens is None:
            return _flash_packed(qkv, *how)
        return _varlen_packed(qkv, cu_seqlens, max_seqlen, *how)


KNOWN: Final[Mapping[str, Any]] = {
    **{
        f"{module}.{name}": function
        for module in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn_interface")
        for name, function in {
            "flash_attn_func": _flash,
            "flash_attn_qkvpacked_func": _flash_packed,
            "flash_attn_kvpacked_func": _flash_kv_packed,
            "flash_attn_varlen_func": _varlen,
            "flash_attn_varlen_qkvpacked_func": _varlen_packed,
            "flash_attn_varlen_kvpacked_func": _varlen_kv_packed,
            "flash_attn_unpadded_func": _varlen,
            "flash_attn_unpadded_qkvpacked_func": _varlen_packed,
            "flash_attn_unpadded_kvpacked_func": _varlen_kv_packed,
        }.items()
    },
    "flash_attn.bert_padding.unpad_input": _unpad,
    "flash_attn.bert_padding.pad_input": _pad,
    "flash_attn.bert_padding.index_first_axis": lambda x, indices: x[indices],
    "flash_attn.layers.rotary.apply_rotary_emb": _rotary,
    "flash_attn.layers.rotary.apply_rotary_emb_func": _rotary,
    "flash_attn.modules.mha.FlashSelfAttention": _SelfAttention,
}
