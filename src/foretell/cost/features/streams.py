"""What describes ops that move bytes: norms, reductions, look-ups, pooling, lists of tensors, copies, elementwise ops."""

from __future__ import annotations

import math
from typing import Final

from foretell.cost.convolution import is_channels_last
from foretell.cost.features.numbers import Values, alignment, density, fill, inner_run, ints, log, number
from foretell.graph import ITEM_BYTES, Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device

_NORMS: Final = {"layer": 1.0, "group": 2.0, "rms": 3.0, "batch": 4.0}
_CHUNK: Final = 65536  # elements that a block of a kernel over lists takes


def walked(signature: Signature, device: Device) -> int:
    """What one thread waits for, one after the other: an interpolation's planes, the rows of a scan."""
    kind = operator_of(signature.name).kind
    if kind == "plane by plane" and not is_channels_last(signature.inputs[0]):
        return math.prod(signature.inputs[0].shape[:-2])
    if kind == "scan":
        x, dim = signature.inputs[0], signature.argument("dim")
        axis = dim % len(x.shape) if isinstance(dim, int) and x.shape else 0
        if axis < len(x.shape) - 1 and x.numel > x.shape[axis]:
            return x.shape[axis] * (
                2 if 2 * x.nbytes > device.l2_bytes else 1
            )  # memory answers half as fast as a cache
    return 0


def norm(s: Signature, device: Device, tf32: bool) -> Values:
    operator = operator_of(s.name)
    x = s.inputs[1] if operator.family == "norm_backward" and len(s.inputs) > 1 else s.inputs[0]
    if operator.kind == "batch":
        kept = x.shape[1] if len(x.shape) > 1 else 1
    elif operator.kind == "group":
        kept = x.shape[0] * int(number(s, "group", 1))
    else:
        width = math.prod(ints(s.argument("normalized_shape"))) or x.shape[-1]
        kept = x.numel // max(width, 1)
    reduced = x.numel / max(kept, 1)
    return {
        "kind": _NORMS[operator.kind],
        "cudnn": float(operator.by_cudnn), "kept": log(kept), "reduced": log(reduced),
        "kept_waves": log(kept / device.compute_units), "images": log(x.shape[0] if x.shape else 1),
        "positions": log(math.prod(x.shape[2:]) if len(x.shape) > 2 else 1), "layout": density(x),
        "trains": float(bool(s.argument("training", True))), "item": float(ITEM_BYTES[x.dtype]),
        "width_align": alignment(int(reduced)),
    }  # fmt: skip


def reduction(s: Signature, device: Device, tf32: bool) -> Values:
    """How much is reduced, how much is kept, and whether the reduced lie side by side."""
    x = s.inputs[0]
    dims = s.argument("dim")
    chosen = ints(dims) if isinstance(dims, tuple) else (dims,) if isinstance(dims, int) else ()
    axes = {d % len(x.shape) for d in chosen} if x.shape and chosen else set(range(len(x.shape)))
    reduced = math.prod(x.shape[a] for a in axes)
    kept = x.numel / max(reduced, 1)
    nearest = min((x.strides[a] for a in axes if x.shape[a] > 1), default=1)
    inner = math.prod(x.shape[a] for a in range(len(x.shape)) if a not in axes and x.strides[a] < nearest)
    return {
        "reduced": log(reduced), "kept": log(kept), "stride": log(nearest), "inner": log(inner),
        "axes": float(len(axes)), "kept_waves": log(kept / (4 * device.compute_units)),
        "reduced_align": alignment(reduced), "walked": float(bool(walked(s, device))),
    }  # fmt: skip


def index(s: Signature, device: Device, tf32: bool) -> Values:
    """Rows looked up or written, their width, and the table they are in."""
    integers = [x for x in s.inputs if not x.dtype.startswith(("float", "bfloat", "complex"))]
    floats = [x for x in s.inputs if x.dtype.startswith(("float", "bfloat"))]
    rows = max((x.numel for x in integers), default=1)
    table = max(floats, key=lambda x: x.numel, default=s.inputs[0])
    moved = s.outputs[0].numel if s.outputs else table.numel
    return {
        "rows": log(rows), "width": log(table.shape[-1] if table.shape else 1), "table": log(table.numel),
        "table_rows": log(table.shape[0] if table.shape else 1), "row_width": log(moved / max(rows, 1)),
        "duplicates": log(rows / max(table.shape[0] if table.shape else 1, 1)), "indices": float(len(integers)),
        "accumulates": float(bool(s.argument("accumulate"))),
        "bool_mask": float(any(x.dtype == "bool" for x in integers)),
    }  # fmt: skip


def pooling(s: Signature, device: Device, tf32: bool) -> Values:
    x, out = s.inputs[0], s.outputs[0]
    window = ints(s.argument("kernel_size")) or (1,)
    stride = ints(s.argument("stride")) or window
    planes = math.prod(x.shape[:2]) if len(x.shape) > 2 else 1
    return {
        "window": log(math.prod(window) if len(window) > 1 else window[0] ** 2), "stride": float(max(stride)),
        "planes": log(planes), "channels": log(x.shape[1] if len(x.shape) > 1 else 1),
        "in_width": log(x.shape[-1]), "out_width": log(out.shape[-1]), "scale": log(out.numel / max(x.numel, 1)),
        "layout": density(x),
    }  # fmt: skip


def foreach(s: Signature, device: Device, tf32: bool) -> Values:
    """A list of tensors is walked in chunks: how many tensors, how large, how uneven."""
    sizes = [x.numel for x in s.inputs]
    lists = max(1, sum(isinstance(value, tuple) and len(value) > 1 for _, value in s.arguments))
    chunks = sum([-(-n // _CHUNK) for n in sizes]) / lists / device.compute_units
    return {
        "tensors": log(len(sizes) / lists), "lists": float(lists), "elements": log(sum(sizes) / lists),
        "largest": log(max(sizes, default=1)), "small": sum([n < _CHUNK for n in sizes]) / max(len(sizes), 1),
        "chunks": log(chunks), "chunk_fill": fill(chunks),
        "half": sum([ITEM_BYTES[x.dtype] == 2 for x in s.inputs]) / max(len(sizes), 1),
    }  # fmt: skip


def copy(s: Signature, device: Device, tf32: bool) -> Values:
    """What is read and written, and in which order: a transpose is slower than a stream."""
    x = s.inputs[0] if s.inputs else None
    out = s.outputs[0] if s.outputs else s.inputs[0]
    same = x is not None and x.shape == out.shape and x.strides == out.strides
    item = ITEM_BYTES[x.dtype] if x is not None else 0
    return {
        "same_order": float(same), "parts": float(len(s.inputs)), "casts": float(item) - ITEM_BYTES[out.dtype],
        "x_inner": log(inner_run(x)) if x is not None else 0.0, "last": log(out.shape[-1] if out.shape else 1),
        "x_near": log(x.strides[-1]) if x is not None and x.strides else 0.0,
        "x_second": log(x.shape[-2]) if x is not None and len(x.shape) > 1 else 0.0,
    }  # fmt: skip


def elementwise(s: Signature, device: Device, tf32: bool) -> Values:
    out = s.outputs[0] if s.outputs else s.inputs[0] if s.inputs else None
    if out is None:
        return {}
    full = [x for x in s.inputs if x.numel == out.numel]
    odd = [x for x in full if x.strides != out.strides]
    return {
        "full": float(len(full)), "broadcast": float(len(s.inputs) - len(full)), "other_order": float(len(odd)),
        "mixed": float(len({x.dtype for x in s.inputs}) > 1),
        "broadcast_inner": log(min((inner_run(x) for x in s.inputs if 1 < x.numel < out.numel), default=1)),
        "odd_near": log(max((x.strides[-1] for x in odd if x.strides), default=1)),
    }  # fmt: skip
