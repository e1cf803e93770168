"""Fine-tuning of frozen models: quantized weights as bitsandbytes keeps them, and LoRA's adapters as peft puts them in."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell.errors import SourceError
from foretell.sources.named.bitsandbytes_ops import operators
from foretell.sources.named.rotations import RotatedLinear

Quantize = Literal["none", "nf4", "int8"]
_BLOCK, _BLOCK_OF_SCALES = 64, 256
_CODE = 256  # entries of a table that 8-bit numbers stand for


class _Product4bit(torch.autograd.Function):
    """x · Wᵀ, where W is made of 4 bits for this product alone, and once more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Linear4bit) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.dequantized(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.weight.dequantized(gradient.dtype), None


class Linear4bit(nn.Module):
    """bitsandbytes' layer with NF4 and double quantization: half a byte per weight and 0.127 bits of scales."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)  # also where a class has a library's layer as another base
        self.in_features, self.out_features = linear.in_features, linear.out_features
        numbers = linear.weight.numel()
        scales = math.ceil(numbers / _BLOCK)
        self.register_buffer("weight", torch.empty((math.ceil(numbers / 2), 1), dtype=torch.uint8))
        self.register_buffer("absmax", torch.empty(scales, dtype=torch.uint8))
        self.register_buffer("nested_absmax", torch.empty(math.ceil(scales / _BLOCK_OF_SCALES)))
        self.register_buffer("nested_code", torch.empty(_CODE))
        self.register_buffer("offset", torch.empty(()))
        self.bias = linear.bias

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        ops = operators()
        scales = ops.dequantize_blockwise(
            self.absmax, self.nested_absmax, self.nested_code, _BLOCK_OF_SCALES, torch.float32
        )
        scales = scales + self.offset
        shape = [self.out_features, self.in_features]
        weight: Tensor = ops.dequantize_4bit(self.weight, scales, _BLOCK, "nf4", shape, dtype)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Product4bit.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


class _Product8bit(torch.autograd.Function):
    """LLM.int8() without outliers: rows of x are quantized, multiplied as integers, and scaled back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
        ops = operators()
        ctx.weight = weight
        rows, stats, *_ = ops.int8_vectorwise_quant(x.reshape(-1, x.shape[-1]))
        product: Tensor = ops.int8_mm_dequant(torch._int_mm(rows, weight.weight.t()), stats, weight.scales, x.dtype)
        return product.view(*x.shape[:-1], weight.out_features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        weight = ctx.weight
        return gradient @ (weight.weight.to(gradient.dtype) * weight.scales.to(gradient.dtype)[:, None]), None


class Linear8bit(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)  # also where a class has a library's layer as another base
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", torch.empty(linear.weight.shape, dtype=torch.int8))
        self.register_buffer("scales", torch.empty(linear.out_features))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Product8bit.apply(x, self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


def quantized_weights(model: nn.Module) -> int:
    """Weights that are no parameters, since they are kept in fewer bits."""
    layers = (m for m in model.modules() if isinstance(m, Linear4bit | Linear8bit))
    return sum(layer.in_features * layer.out_features for layer in layers)


class LoraLinear(nn.Module):
    """A frozen layer and beside it two narrow ones that are trained."""

    def __init__(self, base: nn.Module, rank: int, *, decomposed: bool = False) -> None:
        super().__init__()
        features: Any = base
        self.base_layer = base
        self.lora_A = nn.Linear(features.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, features.out_features, bias=False)
        self.scaling = 2.0
        self.switched_off = False
        self.magnitude = nn.Parameter(torch.ones(features.out_features)) if decomposed else None

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        if self.switched_off:
            return result
        added = self.lora_B(self.lora_A(F.dropout(x.to(self.lora_A.weight.dtype), 0.05)))
        adapted_result: Tensor = result + added.to(result.dtype) * self.scaling
        return adapted_result if self.magnitude is None else adapted_result * self._scale().to(result.dtype)

    def _scale(self) -> Tensor:
        """DoRA's: learned lengths of rows over those that the adapted weight has, which are made anew in each pass."""
        base: Any = self.base_layer
        weight = base.weight if isinstance(base, nn.Linear) else base.dequantized(self.lora_A.weight.dtype)
        with torch.no_grad():
            length = (weight + self.scaling * (self.lora_B.weight @ self.lora_A.weight).to(weight.dtype)).norm(dim=1)
        assert self.magnitude is not None
        scale: Tensor = self.magnitude / length
        return scale


@contextlib.contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Run a model as it was before it was adapted."""
    layers = [module for module in model.modules() if isinstance(module, LoraLinear | RotatedLinear)]
    for layer in layers:
        layer.switched_off = True
    try:
        yield
    finally:
        for layer in layers:
            layer.switched_off = False


def adapted(
    model: Any,
    *,
    lora_rank: int,
    lora_targets: str,
    quantize: Quantize,
    also_trained: str = "",
    lora_decomposed: bool = False,
    oft_block: int = 0,
) -> Any:
    """The model with its linear layers quantized and, where a rank or a block is given, frozen with adapters beside them.

    `lora_targets` are the last parts of layers' names, as `q_proj+v_proj`; `all` is every linear layer but the head,
    and `head` among them is the head too.
    `also_trained` are modules that are trained whole beside them, as `embed_tokens+lm_head`.
    """
    if quantize != "none" and not (lora_rank or oft_block):
        raise SourceError(
            f"quantize={quantize} freezes the weights, so something else has to be trained. Set lora_rank=16."
        )
    if not (lora_rank or oft_block):
        return model

    def adapter(base: nn.Module) -> nn.Module:
        if oft_block:
            return RotatedLinear(base, oft_block)
        return LoraLinear(base, lora_rank, decomposed=lora_decomposed)

    layers = _linear_layers(model)
    wanted = set(lora_targets.split("+"))
    head = _head(model) if "head" in wanted else {}
    chosen = {name for name in layers if lora_targets == "all" or name.rpartition(".")[2] in wanted}
    if not chosen:
        known = sorted({name.rpartition(".")[2] for name in layers})
        raise SourceError(
            f"lora_targets={lora_targets!r} names no layer of the model. Write all, or of: {', '.join(known)}."
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    kinds = {"none": lambda layer: layer, "nf4": Linear4bit, "int8": Linear8bit}
    for name, layer in layers.items():
        base = kinds[quantize](layer)
        _put(model, name, adapter(base) if name in chosen else base)
    for name, layer in head.items():
        _put(model, name, adapter(layer))
    _train_whole(model, also_trained)
    return model


def only_last_layers(model: nn.Module, number: int) -> nn.Module:
    """The model with all frozen but the last of its repeated blocks."""
    stacks = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    if number and stacks:
        model.requires_grad_(False)
        for block in max(stacks, key=len)[-number:]:
            block.requires_grad_(True)
    return model


def _train_whole(model: Any, names: str) -> None:
    wanted = {name for name in names.split("+") if name}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in wanted and not isinstance(module, Linear4bit | Linear8bit):
            module.requires_grad_(True)


def _linear_layers(model: Any) -> dict[str, nn.Linear]:
    """All but the head, which keeps its precision and is not adapted."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head}
    if not found:
        raise SourceError(f"{type(model).__name__} has no linear layers to adapt or to quantize. Leave out lora_rank.")
    return found


def _head(model: Any) -> dict[str, nn.Linear]:
    head = model.get_output_embeddings()
    return {name: layer for name, layer in model.named_modules() if layer is head}


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
