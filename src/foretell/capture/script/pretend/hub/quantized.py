"""Models whose linear layers a script loads in 8 or 4 bits, as bitsandbytes keeps them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from foretell.sources.named.adapters import Linear4bit, Linear8bit


def quantize(model: Any, kwargs: Mapping[str, Any]) -> None:
    """Put quantized layers in place of the model's, where its arguments say so."""
    how = kwargs.get("quantization_config")
    four, eight = (bool(_of(how, f"load_in_{bits}bit") or kwargs.get(f"load_in_{bits}bit")) for bits in (4, 8))
    if not four and not eight:
        return
    kept = tuple(_of(how, "llm_int8_skip_modules") or ())
    compute = _of(how, "bnb_4bit_compute_dtype") or torch.float32
    compute = getattr(torch, compute) if isinstance(compute, str) else compute
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear and layer is not head and not any(part in name for part in (*kept, "lm_head")):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, _layer(layer, four, compute))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.to("cuda")
    for layer in model.modules():  # which peft asks for, and which does not survive a move
        if isinstance(layer, Linear4bit):
            vars(layer.weight).update(compress_statistics=True, quant_type="nf4", quant_state=None)
        elif isinstance(layer, Linear8bit):
            vars(layer.weight).update(CB=None, SCB=None, has_fp16_weights=False)
    _say(model, how, four)


def _say(model: Any, how: Any, four: bool) -> None:
    """What trainers ask a quantized model."""
    model.is_quantized, model.quantization_method = True, "bitsandbytes"
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = four, not four
    model.config.quantization_config = how
    model.hf_quantizer = types.SimpleNamespace(
        is_trainable=True, is_qat_trainable=False, is_serializable=lambda *a, **kw: True, quantization_config=how,
        is_compileable=True, pre_quantized=False,
    )  # fmt: skip
    model.hf_device_map = {"": 0}


def _of(how: Any, name: str) -> Any:
    return how.get(name) if isinstance(how, Mapping) else getattr(how, name, None)


class _Computing4bit(Linear4bit):
    """Computes in a type of numbers of its own, whatever it is given."""

    compute_dtype: torch.dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.compute_dtype)).to(x.dtype)


def _layer(linear: nn.Linear, four: bool, compute: torch.dtype) -> nn.Module:
    """Ours, which is also one of bitsandbytes' for who looks for those."""
    ours: Any = _Computing4bit if four else Linear8bit
    try:
        import bitsandbytes

        theirs = bitsandbytes.nn.Linear4bit if four else bitsandbytes.nn.Linear8bitLt
        kind = type(theirs.__name__, (ours, theirs), {})
    except Exception:  # it is not there, or finds no GPU: then it is a linear layer for who looks for those
        kind = type(ours.__name__, (ours, nn.Linear), {})
    made: Any = kind(linear)
    made.compute_dtype, made.index, made.state = (
        compute,
        None,
        types.SimpleNamespace(has_fp16_weights=False, threshold=0.0, SCB=None, CB=None, index=None),
    )
    return made  # type: ignore[no-any-return]
