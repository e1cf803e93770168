"""What describes ops that multiply: matrix products, convolutions, attention, recurrent layers."""

from __future__ import annotations

import math
from typing import Final

from foretell.cost.convolution import copied_to, is_channels_last
from foretell.cost.features.numbers import Values, alignment, density, fill, ints, log, number, product_of, tiles
from foretell.cost.flops import skipped
from foretell.cost.host import inner_launches
from foretell.graph import Layout, Signature
from foretell.graph.operators import ATTENTION, operator_of
from foretell.hardware import Device
from foretell.precision import UNIT_OF_DTYPE, Unit
from foretell.units import Seconds

_HEAD: Final = 64
_FP32: Final = 1.0
_SMALL_TILE: Final = 32  # of the kernel for shapes that no other takes
_RESIDENT: Final = 4  # such tiles that a compute unit has at a time, about
_PLACE: Final[Seconds] = 1.6e-8  # what a tile takes for one place of the images, measured
_CODES: Final[dict[Unit | None, float]] = {"fp64": 0.0, "fp32": 1.0, "tf32": 2.0, "bf16": 3.0, "fp16": 4.0}
_NARROWER: Final = 5.0


def _compute_type(s: Signature, device: Device, tf32: bool) -> float:
    """0 fp64, 1 fp32, 2 tf32, 3 bf16, 4 fp16, 5 narrower: the unit that multiplies, which is fp32's for want of another."""
    dtype = next((x.dtype for x in s.inputs if x.dtype.startswith(("float", "bfloat"))), "float32")
    unit = "tf32" if tf32 and dtype == "float32" else UNIT_OF_DTYPE.get(dtype)
    return _CODES.get(unit, _NARROWER) if unit not in _CODES or unit in device.peaks else _FP32


def matmul(s: Signature, device: Device, tf32: bool) -> Values:
    kind = operator_of(s.name).kind
    if kind == "grouped":
        return _grouped(s, device, tf32)
    shift = int(kind == "added")
    a, b = s.inputs[shift], s.inputs[shift + 1]
    k = a.shape[-1]
    m = a.shape[-2] if len(a.shape) > 1 else 1
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = a.shape[0] if len(a.shape) == 3 else 1
    return {
        "type": _compute_type(s, device, tf32), "a_rows": float(bool(a.strides) and a.strides[-1] == 1),
        "b_rows": float(bool(b.strides) and b.strides[-1] == 1), "b_shared": float(len(b.shape) == 3 and not b.strides[0]),
        "bias": float(shift),
        "bias_full": float(bool(shift) and len(s.inputs[0].shape) > 1), **product_of(m, n, k, batch, device),
    }  # fmt: skip


def _grouped(s: Signature, device: Device, tf32: bool) -> Values:
    a, b = s.inputs[0], s.inputs[1]
    groups = b.shape[0] if len(b.shape) == 3 else a.shape[0] if len(a.shape) == 3 else s.inputs[2].numel
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(a.shape) == 2 and len(b.shape) == 3:
        m = max(1, m // max(groups, 1))
    elif len(a.shape) == 2:
        k = max(1, k // max(groups, 1))
    return {
        "type": _compute_type(s, device, tf32), "a_rows": float(a.strides[-1] == 1), "b_rows": float(b.strides[-1] == 1),
        "b_shared": 0.0, "bias": 0.0, "bias_full": 0.0, **product_of(m, n, k, groups, device),
    }  # fmt: skip


def _convolution_values(s: Signature, x: Layout, weight: Layout, out: Layout, device: Device, tf32: bool) -> Values:
    """`out` is the output or its gradient; what does not lie in the layout that is taken is copied to it."""
    groups = int(number(s, "groups", 1))
    transposed = bool(s.argument("transposed"))
    kernel = weight.shape[2:]
    into, onto = (
        (weight.shape[0] // groups, weight.shape[1]) if transposed else (weight.shape[1], weight.shape[0] // groups)
    )
    positions = out.shape[0] * math.prod(out.shape[2:])
    stride, dilation = ints(s.argument("stride")) or (1,), ints(s.argument("dilation")) or (1,)
    depth = into * math.prod(kernel)
    channels_last = is_channels_last(x) or is_channels_last(weight)
    given = (x, weight) if s.outputs and out is s.outputs[0] else (x, weight, out)
    return {
        "type": _compute_type(s, device, tf32), "groups": log(groups), "depthwise": float(groups > 1 and into == 1),
        "multiplier": log(onto), "kernel": log(math.prod(kernel)), "kernel_first": float(kernel[0] if kernel else 1),
        "kernel_last": float(kernel[-1] if kernel else 1), "stride": float(max(stride)),
        "dilation": float(max(dilation)), "transposed": float(transposed), "dimensions": float(len(kernel)),
        "into": log(into), "onto": log(onto), "into_align": alignment(into), "onto_align": alignment(onto),
        "images": log(out.shape[0]), "height": log(out.shape[2] if len(out.shape) > 2 else 1),
        "width": log(out.shape[-1]), "width_align": alignment(out.shape[-1]), "in_size": log(math.prod(x.shape[2:])),
        "channels_last": float(channels_last), "copied": log(copied_to(channels_last, *given) / device.bandwidth * 1e6),
        "area_align": alignment(math.prod(out.shape[2:])), "channels": log(x.shape[1]),
        "positions": log(positions), "depth": log(depth), **tiles(positions, onto, groups, device),
    }  # fmt: skip


def convolution(s: Signature, device: Device, tf32: bool) -> Values:
    values = _convolution_values(s, s.inputs[0], s.inputs[1], s.outputs[0], device, tf32)
    return values | {"has_bias": float(len(s.inputs) > 2)}


def convolution_backward(s: Signature, device: Device, tf32: bool) -> Values:
    gradient, x, weight = s.inputs[:3]
    mask = s.argument("output_mask")
    wants = [bool(m) for m in mask] if isinstance(mask, tuple) else [True, True, True]
    values = _convolution_values(s, x, weight, gradient, device, tf32)
    return values | {
        "wants_input": float(wants[0]), "wants_weight": float(wants[1]), "wants_bias": float(wants[2]),
    }  # fmt: skip


def summed_alone(s: Signature, device: Device, tf32: bool) -> Seconds:
    """A weight's gradient in three dimensions and fp32: each tile of it sums over all places of the images by itself.

    Other shapes have kernels that divide the sum; of 730 such convolutions on an H200 half were within a fifth of this.
    """
    gradient, x, weight = s.inputs[:3]
    mask, groups = s.argument("output_mask"), int(number(s, "groups", 1))
    wanted = not isinstance(mask, tuple) or bool(mask[1])
    if not wanted or len(weight.shape) != 5 or _compute_type(s, device, tf32) != _FP32 or groups == x.shape[1] > 1:
        return 0.0
    depth = math.prod(weight.shape[1:])
    blocks = math.ceil(weight.shape[0] / groups / _SMALL_TILE) * math.ceil(depth / _SMALL_TILE) * groups
    positions = gradient.shape[0] * math.prod(gradient.shape[2:])
    return positions * _PLACE * math.ceil(blocks / (_RESIDENT * device.compute_units))


def padding(s: Signature) -> float:
    """How much more is multiplied than counted: attention's tiles are as wide as heads of 64, however narrow they are."""
    if not operator_of(s.name).is_attention:
        return 1.0
    [query] = s.required_tensors("query")
    return max(1.0, _HEAD / max(query.shape[-1], 1))


def attention_backward(s: Signature, device: Device, tf32: bool) -> Values:
    q, k, v = s.required_tensors("query", "key", "value")
    pairs = math.prod(q.shape[:2])
    mask = s.tensor("attn_bias") or s.tensor("attn_mask")
    learned = s.argument("grad_input_mask")  # for which of query, key, value and mask there are gradients
    return {
        "type": _compute_type(s, device, tf32), "backend": float(ATTENTION.index(operator_of(s.name).kind)), "heads": log(pairs),
        "queries": log(q.shape[-2]), "keys": log(k.shape[-2]), "head": float(q.shape[-1]),
        "head_value": float(v.shape[-1]), "causal": float(bool(s.argument("is_causal"))),
        "mask": float(mask is not None and mask.numel > 0),
        "mask_learned": float(isinstance(learned, tuple) and len(learned) > 3 and bool(learned[3])),
        "mask_size": log(mask.distinct_bytes) if mask is not None else 0.0,
        "grouped": log(q.shape[1] / max(k.shape[1], 1)), "dropout": float(bool(s.argument("dropout_p"))),
        "skipped": skipped(s), "q_dense": density(q), "waves_q64": log(pairs * math.ceil(q.shape[-2] / 64) / device.compute_units),
        "fill_q128": fill(pairs * math.ceil(q.shape[-2] / 128) / device.compute_units),
        "fill_k128": fill(pairs * math.ceil(k.shape[-2] / 128) / device.compute_units),
    }  # fmt: skip


def attention(s: Signature, device: Device, tf32: bool) -> Values:
    if operator_of(s.name).kind == "projected":
        return _projected_attention(s, device, tf32)
    return attention_backward(s, device, tf32) | {"keeps_sums": float(bool(s.argument("compute_log_sumexp")))}


def _projected_attention(s: Signature, device: Device, tf32: bool) -> Values:
    """With its projections, which are most of its work."""
    x = s.inputs[0]
    heads = number(s, "num_head", 0) or number(s, "num_heads", 1)
    pairs, length = x.shape[0] * heads, x.shape[-2]
    return {
        "type": _compute_type(s, device, tf32), "backend": float(len(ATTENTION)), "heads": log(pairs), "queries": log(length),
        "keys": log(length), "head": x.shape[-1] / heads, "head_value": x.shape[-1] / heads, "causal": 0.0,
        "mask": 0.0, "mask_learned": 0.0, "mask_size": 0.0, "grouped": 0.0, "dropout": 0.0, "skipped": 0.0, "q_dense": density(x),
        "keeps_sums": 0.0,
    }  # fmt: skip


def rnn(s: Signature, device: Device, tf32: bool) -> Values:
    x = s.inputs[0]
    first = bool(s.argument("batch_first"))
    length, batch = (x.shape[1], x.shape[0]) if first else (x.shape[0], x.shape[1])
    return {
        "type": _compute_type(s, device, tf32), "cell": number(s, "mode", 2), "length": log(length),
        "sequences": log(batch), "hidden": log(number(s, "hidden_size", 1)), "layers": number(s, "num_layers", 1),
        "both_ways": float(bool(s.argument("bidirectional"))), "width": log(x.shape[-1]),
        "backward": float(operator_of(s.name).kind == "backward"), "trains": float(bool(s.argument("train", True))),
        "launches": log(1 + inner_launches(s)),
    }  # fmt: skip
