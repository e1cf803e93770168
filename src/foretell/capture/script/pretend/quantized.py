"""bitsandbytes where its kernels cannot load: its own layers and optimizers run, on operators whose shapes it says itself.

Its fused products are recorded as what they are made of at the sizes of training: weights made of few bits for one
product alone, and products of integers. Outliers of LLM.int8(), which only a run would know, are none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    logging.getLogger("bitsandbytes.cextension").disabled = True  # it says at length that there is no CUDA
    once_imported("bitsandbytes.cextension", lambda module: setattr(module, "lib", _Library()))
    once_imported("bitsandbytes._ops", lambda module: _compose())
    once_imported("bitsandbytes.functional", _adapt)


class _Library:
    """The native library: whatever is called in it would compute on a GPU."""

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name.startswith("has_"):  # what the host's processor can do: nothing is computed on it
                return False
            raise StandInError(
                "bitsandbytes' native library",
                f"{name}, which computes on a GPU",
                "Leave out what calls it, or declare it with foretell.opaque: see docs/guide/scripts.md.",
            )

        return call

    __getitem__ = __getattr__


class _Composed:
    """An operator as others; whoever lists operators finds the one that it was."""

    def __init__(self, function: Callable[..., Any], was: Any) -> None:
        self.default, self._was = function, was

    def __getattr__(self, name: str) -> Any:
        return getattr(self._was, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.default(*args, **kwargs)

    def op_overloads(self) -> list[Any]:
        """None that torch would decompose; who imports its compiler lists those of every operator."""
        return []

    def overloads(self) -> list[str]:
        return []


def _compose() -> None:
    ops: Any = torch.ops.bitsandbytes
    by_name: dict[str, Callable[..., Any]] = {
        "gemm_4bit": _product_of_4_bits,
        "int8_scaled_mm": _product_of_8_bits,
        "int8_mixed_scaled_mm": _mixed_product_of_8_bits,
    }
    for name, function in by_name.items():
        if hasattr(ops, name):  # some are of newer versions
            setattr(ops, name, _Composed(function, getattr(ops, name)))


def _product_of_4_bits(
    a: Tensor, b: Tensor, shape: Any, absmax: Tensor, blocksize: int, quant_type: str, bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None, absmax_code: Tensor | None = None, absmax_offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    ops: Any = torch.ops.bitsandbytes
    if absmax_8bit is not None:  # the scales are quantized too
        scales = ops.dequantize_blockwise.default(absmax_8bit, absmax, absmax_code, 256, torch.float32)
        absmax = scales if absmax_offset is None else scales + absmax_offset
    return F.linear(a, ops.dequantize_4bit.default(b, absmax, blocksize, quant_type, list(shape), a.dtype), bias)


def _product_of_8_bits(
    a: Tensor, b: Tensor, row_stats: Tensor, col_stats: Tensor, bias: Tensor | None = None, dtype: Any = None
) -> Tensor:
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    scaled: Tensor = torch.ops.bitsandbytes.int8_mm_dequant.default(
        product, row_stats, col_stats, dtype=dtype, bias=bias
    )
    return scaled.view(*a.shape[:-1], b.shape[0])


def _mixed_product_of_8_bits(
    a: Tensor, ca: Tensor, cb: Tensor, sca: Tensor, scb: Tensor, outlier_cols: Any = None, bias: Tensor | None = None
) -> tuple[Tensor, None]:
    return _product_of_8_bits(ca, cb, sca, scb, bias, a.dtype), None


def _adapt(functional: Any) -> None:
    """No outliers; and state that the driver moves between host and device lies on the device, while that has room."""

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Tensor:
        made = torch.zeros(*shape, dtype=dtype, device="cuda")
        made.is_paged, made.page_deviceid = True, 0  # type: ignore[attr-defined]
        return made

    functional.get_paged = get_paged
    functional.prefetch_tensor = functional.fill = lambda *args, **kwargs: None
    if (quantize := getattr(functional, "int8_vectorwise_quant", None)) is not None:
        functional.int8_vectorwise_quant = lambda a, threshold=0.0: quantize(a)
