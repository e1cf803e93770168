"""The operators of bitsandbytes, under its own names, where the library is not installed: shapes alone, no arithmetic.

4-bit weights lie in blocks of 64 with a scale each; with double quantization scales are 8 bits too, in blocks of 256.
8-bit optimizers keep their state in blocks of 256 with an fp32 scale each.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor


def _dequantize_4bit(
    a: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: list[int], dtype: Any
) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=a.device)


def _dequantize_blockwise(a: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: Any) -> Tensor:
    return torch.empty(a.shape, dtype=dtype, device=a.device)


def _int8_vectorwise_quant(a: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape, dtype=torch.int8), a.new_empty((math.prod(a.shape[:-1]),), dtype=torch.float32)


def _int8_mm_dequant(a: Tensor, row_stats: Tensor, col_stats: Tensor, dtype: Any) -> Tensor:
    return a.new_empty(a.shape, dtype=dtype)


def _update(*args: Any, **named: Any) -> None:
    """Writes in place."""


_OPERATORS = {
    "dequantize_4bit": (
        "(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) -> Tensor", _dequantize_4bit,
    ),
    "dequantize_blockwise": (
        "(Tensor A, Tensor absmax, Tensor code, int blocksize, ScalarType dtype) -> Tensor", _dequantize_blockwise,
    ),
    "int8_vectorwise_quant": ("(Tensor A, float threshold=0.0) -> (Tensor, Tensor)", _int8_vectorwise_quant),
    "int8_mm_dequant": ("(Tensor A, Tensor row_stats, Tensor col_stats, ScalarType dtype) -> Tensor", _int8_mm_dequant),
    "optimizer_update_8bit_blockwise": (
        "(str optimizer_name, Tensor g, Tensor(a!) p, Tensor(b!) state1, Tensor(c!)? state2, Tensor qmap1, Tensor? qmap2, "
        "Tensor(d!) absmax1, Tensor(e!)? absmax2) -> ()", _update,
    ),
    "optimizer_update_32bit": (
        "(str optimizer_name, Tensor g, Tensor(a!) p, Tensor(b!) state1, Tensor(c!)? state2) -> ()", _update,
    ),
}  # fmt: skip


@cache
def operators() -> Any:
    """`torch.ops.bitsandbytes`, with what is used here defined, once."""
    library = torch.library.Library("bitsandbytes", "FRAGMENT")
    kept.append(library)
    for name, (schema, shapes) in _OPERATORS.items():
        if not hasattr(torch.ops.bitsandbytes, name):  # the library itself has them
            library.define(name + schema)
            library.impl(name, shapes, "CompositeExplicitAutograd")
    return torch.ops.bitsandbytes


kept: list[Any] = []  # a library that is collected takes its operators with it
