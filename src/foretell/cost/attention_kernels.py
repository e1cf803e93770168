"""Which attention kernel a device runs, FlashAttention or another: asked by time and by memory alike.

A step is captured as a Hopper GPU would run it. There, and on datacentre Blackwell, PyTorch takes cuDNN's attention wherever
it can. Other devices run FlashAttention, which needs an Ampere GPU or a later one, where it can run, or else the
memory-efficient kernel. These are the priorities of torch's `sdp_utils.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal

from foretell.graph import Signature
from foretell.graph.operators import PIECE_BY_PIECE, flash_can_run, operator_of
from foretell.hardware import Device

_PREFERS_CUDNN: Final = (9, 10)  # first numbers of compute capabilities: Blackwell's of consumers is 12
_FIRST_WITH_FLASH: Final = (8, 0)


def as_run_on(signature: Signature, device: Device) -> Signature:
    """An op with the operator that PyTorch dispatches to on this device."""
    operator = operator_of(signature.name)
    if not operator.is_attention or operator.kind == "efficient":
        return signature
    capability = device.compute_capability
    if operator.kind == "cudnn" and capability is not None and capability[0] in _PREFERS_CUDNN:
        return signature
    return _with_kernel(signature, operator.kind, "flash" if _runs_flash(signature, device) else "efficient")


def _runs_flash(s: Signature, device: Device) -> bool:
    if device.compute_capability is not None and device.compute_capability < _FIRST_WITH_FLASH:
        return False
    query, key, value, mask = (s.tensor(name) for name in ("query", "key", "value", "attn_bias"))
    if query is None or key is None or value is None:
        return False
    return flash_can_run(
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
        queries=query.shape[-2],
        keys=query.shape[-2] if s.argument(PIECE_BY_PIECE) else key.shape[-2],
        is_causal=bool(s.argument("is_causal")),
        has_mask=mask is not None and mask.numel > 0,
    )


@lru_cache(maxsize=1 << 12)
def _with_kernel(signature: Signature, kind: str, other: Literal["flash", "efficient"]) -> Signature:
    if kind == other:
        return signature
    old, new = (f"aten._scaled_dot_product_{k}_attention" for k in (kind, other))
    return replace(signature, target=new + signature.target.removeprefix(old))
