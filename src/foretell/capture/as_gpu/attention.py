"""Attention as a capture records it, on a Hopper GPU; what other devices run is in `cost/attention_kernels.py`.

Which kernel a CUDA build picks was asked of a Hopper GPU (torch 2.11, cuDNN 9.19) for 1,350 kinds of call.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from foretell.graph import Graph, Signature
from foretell.graph.operators import FIRST_VERSION, flash_can_run, operator_of

aten = torch.ops.aten
Backend = Literal["cudnn", "flash", "efficient", "math"]
PREFERRED: Final[tuple[Backend, ...]] = ("cudnn", "flash", "efficient", "math")  # on a Hopper GPU
CALLS: Final[Counter[Backend]] = Counter()  # in this process
NUMBERED: Final[dict[int, Backend]] = {
    SDPBackend.CUDNN_ATTENTION.value: "cudnn", SDPBackend.FLASH_ATTENTION.value: "flash",
    SDPBackend.EFFICIENT_ATTENTION.value: "efficient", SDPBackend.MATH.value: "math",
}  # fmt: skip
AROUND_MATH: Final[list[Callable[[Tensor], AbstractContextManager[None]]]] = []  # it makes a mask with the query
_USUAL_ORDER: Final = torch._C._get_sdp_priority_order()


def attention_backend(
    *,
    dtype: torch.dtype,
    head_dim: int,
    value_dim: int,
    has_mask: bool,
    mask_needs_grad: bool,
    queries: int,
    keys: int,
    is_causal: bool,
    grouped: bool,
    dense_last_dim: bool,
    order: Sequence[Backend] = PREFERRED,
) -> Backend | None:
    """The first kernel in order that can run; None where none of them can."""
    can_run: set[Backend] = {"math"}
    half = dtype in (torch.float16, torch.bfloat16)
    if dense_last_dim and (half or dtype == torch.float32):
        aligned = all(size % (8 if half else 4) == 0 for size in (head_dim, value_dim))
        if half and aligned and max(head_dim, value_dim) <= 256 and not mask_needs_grad:
            can_run.add("cudnn")
        if half and flash_can_run(
            head_dim=head_dim, value_dim=value_dim, queries=queries, keys=keys, is_causal=is_causal, has_mask=has_mask
        ):
            can_run.add("flash")
        if aligned and not grouped:
            can_run.add("efficient")
    return next((backend for backend in order if backend in can_run), None)


def enabled_order() -> list[Backend]:
    """What torch may run, the first first: as it is asked to (`torch.nn.attention.sdpa_kernel`), or as on a Hopper GPU."""
    wanted = torch._C._get_sdp_priority_order()
    order = PREFERRED if wanted == _USUAL_ORDER else [NUMBERED[n] for n in wanted if n in NUMBERED]
    enabled = {
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
    }
    return [backend for backend in order if enabled[backend]]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    backend: Backend | None = "math"
    repeated = query.shape[:-2] != key.shape[:-2] and not enable_gqa  # fused kernels do not repeat heads by themselves
    if query.dim() == 4 and not repeated:
        backend = attention_backend(
            order=enabled_order(),
            dtype=query.dtype,
            head_dim=query.shape[-1],
            value_dim=value.shape[-1],
            has_mask=attn_mask is not None,
            mask_needs_grad=attn_mask is not None and attn_mask.requires_grad,
            queries=query.shape[-2],
            keys=key.shape[-2],
            is_causal=is_causal,
            grouped=query.shape[-3] != key.shape[-3],
            dense_last_dim=all(t.stride(-1) == 1 for t in (query, key, value, attn_mask) if t is not None),
        )
    if backend is None:
        raise RuntimeError("No available kernel. Aborting execution.")  # in torch's words
    CALLS[backend] += 1
    if backend == "flash":
        return flash(query, key, value, dropout_p, is_causal, scale)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    bias = None if attn_mask is None or backend == "math" else _as_bias(attn_mask, query)
    made: tuple[Tensor, ...]
    if backend == "cudnn":
        made = aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, False, scale=scale
        )
    elif backend == "efficient":
        if bias is not None:
            bias = _padded_bias(bias, query, key)
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )
    else:
        with contextlib.ExitStack() as around:
            for enter in AROUND_MATH:
                around.enter_context(enter(query))
            made = aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )
    return made[0]


def flash(q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    head_dim = q.shape[-1]
    if scale is None:
        scale = head_dim**-0.5
    if padding := -head_dim % 8:  # the kernel wants heads of a multiple of eight
        q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
    out: Tensor = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
    return out[..., :head_dim] if padding else out


def of_the_first_version(graph: Graph) -> Graph:
    """A step whose FlashAttention is the first, which torch no longer has; what it is slower by is in the model."""
    marked: dict[int, Signature] = {}

    def version(s: Signature) -> Signature:
        operator = operator_of(s.name)
        if not (operator.is_attention and operator.kind == "flash"):
            return s
        return marked.setdefault(id(s), replace(s, arguments=(*s.arguments, (FIRST_VERSION, True))))

    return replace(graph, ops=tuple(replace(op, signature=version(op.signature)) for op in graph.ops))


def _as_bias(mask: Tensor, query: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    seen, hidden = (torch.scalar_tensor(value, dtype=query.dtype) for value in (0.0, float("-inf")))
    return torch.where(mask, seen, hidden)


def _padded_bias(bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    keys = key.shape[-2]
    if padding := -keys % 8:  # rows of the bias must start at a multiple of eight elements
        bias = torch.nn.functional.pad(bias, (0, padding))[..., :keys]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], keys)


COMPOSITES: Final[dict[str, Callable[..., Any]]] = {"scaled_dot_product_attention": _attention}
