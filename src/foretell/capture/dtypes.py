"""Precisions as torch's dtypes, and back."""

from __future__ import annotations

from typing import Final

import torch

from foretell.precision import DTYPES, HALVES, Float

_TORCH: Final[dict[Float, torch.dtype]] = {name: getattr(torch, dtype) for name, dtype in DTYPES.items()}
FLOATS: Final[dict[torch.dtype, Float]] = {dtype: name for name, dtype in _TORCH.items()}


def torch_dtype(name: Float) -> torch.dtype:
    return _TORCH[name]


def half_dtype(name: Float | None) -> torch.dtype | None:
    """The dtype of a half precision; None for fp32, which tensors have by themselves."""
    return _TORCH[name] if name in HALVES else None
