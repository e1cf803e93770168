"""What an op looks like to a cost model: numbers drawn from its signature and from the device's published ones.

Every operator belongs to a family, and a family has one function that describes its signatures. Sizes are logarithms.
Whatever can be said relative to the device is (tiles over its compute units, bytes over its cache, time at its peaks),
so that a model fitted on one device has something to say about the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foretell.cost.convolution import copied_to, is_channels_last
from foretell.cost.flops import skipped
from foretell.cost.roofline import peak_name, work_of
from foretell.graph import ITEM_BYTES, Layout, Signature
from foretell.hardware import Device
from foretell.units import Seconds

LAUNCH_FLOOR: Final[Seconds] = 1.0e-6  # the shortest kernel there is; what keeps a ratio to the roofline finite
Values = dict[str, float]
Describe = Callable[[Signature, Device, "_Context"], Values]
_TILES: Final = ((128, 128), (64, 64), (256, 128))
_DESCRIBE: Final[dict[str, tuple[str, Describe]]] = {}


@dataclass(frozen=True, slots=True)
class Description:
    """An op of a family, and the time it would take at the device's peaks."""

    family: str
    roofline: Seconds
    values: Values


_ADDS_UP: Final = frozenset(
    f"aten.upsample_{kind}_backward" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
)
_WALKS_PLANES: Final = frozenset(("aten.upsample_bilinear2d", "aten.upsample_bicubic2d"))
_WALK: Final[Seconds] = 1.0e-7  # from one plane to the next, about what memory takes to answer


@dataclass(frozen=True, slots=True)
class _Context:
    tf32: bool
    rate: float  # of matrix arithmetic, FLOP/s
    units: frozenset[str]  # types the device has a unit for


def describe(signature: Signature, device: Device, *, tf32: bool) -> Description:
    family, function = family_of(signature.name), _function_of(signature.name)
    rate = device.peak(peak_name(signature, tf32=tf32))
    context = _Context(tf32, rate, frozenset(device.peaks))
    work = work_of(signature)
    arithmetic, memory = work.flops / rate, work.traffic / device.bandwidth
    values = _general(signature, device)
    values["arithmetic"] = log(arithmetic * 1e6)
    values["memory"] = log(memory * 1e6)
    values["balance"] = log(arithmetic / memory) if arithmetic and memory else -20.0
    values |= function(signature, device, context)
    least = max(arithmetic, memory * _crowding(signature), _WALK * _walked(signature), LAUNCH_FLOOR)
    return Description(family, least, values)


def _crowding(signature: Signature) -> float:
    """How many numbers are added to the same place, one waiting for another: an interpolation's gradient."""
    if signature.name not in _ADDS_UP or not signature.outputs:
        return 1.0
    return max(1.0, signature.inputs[0].numel / max(signature.outputs[0].numel, 1))


def _walked(signature: Signature) -> int:
    """Planes that one thread goes through, one after the other: an interpolation has a thread for a place in a plane."""
    if signature.name not in _WALKS_PLANES or is_channels_last(signature.inputs[0]):
        return 0
    return math.prod(signature.inputs[0].shape[:-2])


def family_of(name: str) -> str:
    """The family of an operator: `matmul` of `aten.addmm`."""
    if name in _DESCRIBE:
        return _DESCRIBE[name][0]
    return "foreach" if "_foreach_" in name or "_fused_ad" in name or "_fused_sgd" in name else "elementwise"


def _function_of(name: str) -> Describe:
    if name in _DESCRIBE:
        return _DESCRIBE[name][1]
    return _foreach if family_of(name) == "foreach" else _elementwise


def describes(family: str, *names: str) -> Callable[[Describe], Describe]:
    """Register what describes the operators of a family; registering one twice is an error."""

    def register(function: Describe) -> Describe:
        for name in names:
            if f"aten.{name}" in _DESCRIBE:
                raise ValueError(f"aten.{name} is described already")
            _DESCRIBE[f"aten.{name}"] = (family, function)
        return function

    return register


def log(value: float) -> float:
    return math.log2(value) if value > 0 else -20.0


# What holds of any op.


def _general(s: Signature, device: Device) -> Values:
    read, written = sum(x.distinct_bytes for x in s.inputs), sum(x.distinct_bytes for x in s.outputs)
    first = s.inputs[0] if s.inputs else s.outputs[0] if s.outputs else None
    out = s.outputs[0] if s.outputs else first
    largest = max(s.inputs, key=lambda x: x.numel, default=first)
    values = {
        "read": log(read), "written": log(written), "inputs": float(len(s.inputs)), "outputs": float(len(s.outputs)),
        "in_cache": log((read + written) / device.l2_bytes), "in_place": float(bool(s.mutates)),
        "first_numel": 0.0, "first_item": 0.0, "first_floats": 0.0, "first_dense": 1.0, "first_inner": 0.0,
        "out_numel": 0.0, "out_item": 0.0, "out_dense": 1.0, "out_inner": 0.0, "spread": 0.0, "rank": 0.0,
        "waves": 0.0, "wave_fill": 1.0, "align": 5.0,
    }  # fmt: skip
    if first is not None:
        values |= {
            "first_numel": log(first.numel), "first_item": float(ITEM_BYTES[first.dtype]),
            "first_floats": float(first.dtype.startswith(("float", "bfloat"))), "first_dense": density(first),
            "first_inner": log(inner_run(first)), "rank": float(len(first.shape)),
        }  # fmt: skip
    if out is not None:
        blocks = out.numel / (512 * device.compute_units)  # threads of a usual elementwise kernel
        values |= {
            "out_numel": log(out.numel), "out_item": float(ITEM_BYTES[out.dtype]), "out_dense": density(out),
            "out_inner": log(inner_run(out)), "waves": log(blocks), "wave_fill": fill(blocks),
            "align": min(alignment(x.shape[-1]) if x.shape else 5.0 for x in (out, largest or out)),
        }  # fmt: skip
        if largest is not None:
            values["spread"] = log(out.numel / max(largest.numel, 1))
    return values


def density(x: Layout) -> float:
    """1 for row-major, 2 for channels-last, 3 for another dense order, 0 for gaps or broadcasts."""
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.strides, strict=True)):
        return 0.0
    expected = 1
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size > 1 and stride != expected:
            break
        expected *= size
    else:
        return 1.0
    order = sorted((stride, size) for size, stride in zip(x.shape, x.strides, strict=True) if size > 1)
    run = 1
    for stride, size in order:
        if stride != run:
            return 0.0
        run *= size
    return 2.0 if len(x.shape) >= 4 and x.strides[1] == 1 else 3.0


def inner_run(x: Layout) -> int:
    """Elements that lie side by side in memory and in index order."""
    run = 1
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if size > 1 and stride != run:
            break
        run *= size
    return run


def alignment(size: int) -> float:
    """How often a size can be halved, up to 32 at a time: what wide loads and tensor cores need."""
    return float(min((size & -size).bit_length() - 1, 5)) if size > 0 else 5.0


def fill(waves: float) -> float:
    """The share of the last wave of blocks that has work; it matters while there are few waves."""
    return waves / math.ceil(waves) if 0 < waves < 64 else 1.0


def _tiles(m: float, n: float, batch: float, device: Device) -> Values:
    """Blocks of a product over the device's units, for tiles that libraries choose from."""
    values: Values = {}
    for rows, columns in _TILES:
        waves = batch * math.ceil(m / rows) * math.ceil(n / columns) / device.compute_units
        values[f"waves_{rows}x{columns}"] = log(waves)
        values[f"fill_{rows}x{columns}"] = fill(waves)
        values[f"edge_{rows}x{columns}"] = m * n / (math.ceil(m / rows) * rows * math.ceil(n / columns) * columns)
    return values


def _product(m: float, n: float, k: float, batch: float, device: Device) -> Values:
    return {
        "m": log(m), "n": log(n), "k": log(k), "batch": log(batch), "least": log(min(m, n, k)),
        "split_k": log(k) - log(max(m * n * batch, 1)), "m_align": alignment(int(m)), "n_align": alignment(int(n)),
        "k_align": alignment(int(k)), **_tiles(m, n, batch, device),
    }  # fmt: skip


def _compute_type(s: Signature, context: _Context) -> float:
    """0 fp64, 1 fp32, 2 tf32, 3 bf16, 4 fp16, 5 narrower: the unit that multiplies, which is fp32's for want of another."""
    dtype = next((x.dtype for x in s.inputs if x.dtype.startswith(("float", "bfloat"))), "float32")
    name, code = {"float64": ("fp64", 0.0), "bfloat16": ("bf16", 3.0), "float16": ("fp16", 4.0)}.get(dtype, ("", 5.0))
    if dtype == "float32":
        name, code = ("tf32", 2.0) if context.tf32 else ("fp32", 1.0)
    return code if not name or name in context.units else 1.0


@describes(
    "matmul", "mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "_int_mm", "_scaled_mm", "mv", "addmv", "dot"
)
def _matmul(s: Signature, device: Device, context: _Context) -> Values:
    shift = 1 if s.name in ("aten.addmm", "aten.baddbmm", "aten._addmm_activation", "aten.addmv") else 0
    a, b = s.inputs[shift], s.inputs[shift + 1]
    k = a.shape[-1]
    m = a.shape[-2] if len(a.shape) > 1 else 1
    n = b.shape[-1] if len(b.shape) > 1 else 1
    batch = a.shape[0] if len(a.shape) == 3 else 1
    return {
        "type": _compute_type(s, context), "a_rows": float(bool(a.strides) and a.strides[-1] == 1),
        "b_rows": float(bool(b.strides) and b.strides[-1] == 1), "b_shared": float(len(b.shape) == 3 and not b.strides[0]),
        "bias": float(shift),
        "bias_full": float(bool(shift) and len(s.inputs[0].shape) > 1), **_product(m, n, k, batch, device),
    }  # fmt: skip


@describes("matmul", "_grouped_mm", "_scaled_grouped_mm")
def _grouped(s: Signature, device: Device, context: _Context) -> Values:
    a, b = s.inputs[0], s.inputs[1]
    groups = b.shape[0] if len(b.shape) == 3 else a.shape[0] if len(a.shape) == 3 else s.inputs[2].numel
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(a.shape) == 2 and len(b.shape) == 3:
        m = max(1, m // groups)
    elif len(a.shape) == 2:
        k = max(1, k // groups)
    return {
        "type": _compute_type(s, context), "a_rows": float(a.strides[-1] == 1), "b_rows": float(b.strides[-1] == 1),
        "b_shared": 0.0, "bias": 0.0, "bias_full": 0.0, **_product(m, n, k, groups, device),
    }  # fmt: skip


def _ints(value: object) -> tuple[int, ...]:
    return tuple(int(v) for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _convolution_values(s: Signature, x: Layout, weight: Layout, out: Layout, device: Device, c: _Context) -> Values:
    """`out` is the output or its gradient; what does not lie in the layout that is taken is copied to it."""
    groups = s.argument("groups", 1)
    groups = groups if isinstance(groups, int) else 1
    transposed = bool(s.argument("transposed"))
    kernel = weight.shape[2:]
    into, onto = (
        (weight.shape[0] // groups, weight.shape[1]) if transposed else (weight.shape[1], weight.shape[0] // groups)
    )
    positions = out.shape[0] * math.prod(out.shape[2:])
    stride, dilation = _ints(s.argument("stride")) or (1,), _ints(s.argument("dilation")) or (1,)
    depth = into * math.prod(kernel)
    channels_last = is_channels_last(x) or is_channels_last(weight)
    given = (x, weight) if out is s.outputs[0] else (x, weight, out)
    return {
        "type": _compute_type(s, c), "groups": log(groups), "depthwise": float(groups > 1 and into == 1),
        "multiplier": log(onto), "kernel": log(math.prod(kernel)), "kernel_first": float(kernel[0] if kernel else 1),
        "kernel_last": float(kernel[-1] if kernel else 1), "stride": float(max(stride)),
        "dilation": float(max(dilation)), "transposed": float(transposed), "dimensions": float(len(kernel)),
        "into": log(into), "onto": log(onto), "into_align": alignment(into), "onto_align": alignment(onto),
        "images": log(out.shape[0]), "height": log(out.shape[2] if len(out.shape) > 2 else 1),
        "width": log(out.shape[-1]), "width_align": alignment(out.shape[-1]), "in_size": log(math.prod(x.shape[2:])),
        "channels_last": float(channels_last), "copied": log(copied_to(channels_last, *given) / device.bandwidth * 1e6),
        "area_align": alignment(math.prod(out.shape[2:])), "channels": log(x.shape[1]),
        "positions": log(positions), "depth": log(depth), **_tiles(positions, onto, groups, device),
    }  # fmt: skip


@describes("convolution", "convolution", "_convolution", "cudnn_convolution")
def _convolution(s: Signature, device: Device, context: _Context) -> Values:
    values = _convolution_values(s, s.inputs[0], s.inputs[1], s.outputs[0], device, context)
    return values | {"has_bias": float(len(s.inputs) > 2)}


@describes("convolution_backward", "convolution_backward")
def _convolution_backward(s: Signature, device: Device, context: _Context) -> Values:
    gradient, x, weight = s.inputs[:3]
    mask = s.argument("output_mask")
    wants = [bool(m) for m in mask] if isinstance(mask, tuple) else [True, True, True]
    values = _convolution_values(s, x, weight, gradient, device, context)
    return values | {
        "wants_input": float(wants[0]), "wants_weight": float(wants[1]), "wants_bias": float(wants[2]),
    }  # fmt: skip


_KINDS: Final = ("flash", "efficient", "cudnn")
_ATTENTION: Final = [f"_scaled_dot_product_{kind}_attention" for kind in _KINDS]


def _attention_values(s: Signature, device: Device, context: _Context) -> Values:
    q, k, v = s.tensor("query"), s.tensor("key"), s.tensor("value")
    assert q is not None
    assert k is not None
    assert v is not None
    kind = next(i for i, name in enumerate(_KINDS) if name in s.name)
    pairs = math.prod(q.shape[:2])
    mask = s.tensor("attn_bias") or s.tensor("attn_mask")
    return {
        "type": _compute_type(s, context), "backend": float(kind), "heads": log(pairs),
        "queries": log(q.shape[-2]), "keys": log(k.shape[-2]), "head": float(q.shape[-1]),
        "head_value": float(v.shape[-1]), "causal": float(bool(s.argument("is_causal"))),
        "mask": float(mask is not None and mask.numel > 0),
        "grouped": log(q.shape[1] / max(k.shape[1], 1)), "dropout": float(bool(s.argument("dropout_p"))),
        "skipped": skipped(s), "q_dense": density(q), "waves_q64": log(pairs * math.ceil(q.shape[-2] / 64) / device.compute_units),
        "fill_q128": fill(pairs * math.ceil(q.shape[-2] / 128) / device.compute_units),
        "fill_k128": fill(pairs * math.ceil(k.shape[-2] / 128) / device.compute_units),
    }  # fmt: skip


@describes("attention", *_ATTENTION)
def _attention(s: Signature, device: Device, context: _Context) -> Values:
    return _attention_values(s, device, context) | {"keeps_sums": float(bool(s.argument("compute_log_sumexp")))}


@describes("attention", "_native_multi_head_attention", "_transformer_encoder_layer_fwd")
def _fused_attention(s: Signature, device: Device, context: _Context) -> Values:
    """With its projections, which are most of its work."""
    x = s.inputs[0]
    heads = _number(s, "num_head", 0) or _number(s, "num_heads", 1)
    pairs, length = x.shape[0] * heads, x.shape[-2]
    return {
        "type": _compute_type(s, context), "backend": float(len(_KINDS)), "heads": log(pairs), "queries": log(length),
        "keys": log(length), "head": x.shape[-1] / heads, "head_value": x.shape[-1] / heads, "causal": 0.0,
        "mask": 0.0, "grouped": 0.0, "dropout": 0.0, "skipped": 0.0, "q_dense": density(x), "keeps_sums": 0.0,
    }  # fmt: skip


@describes("attention_backward", *(f"{name}_backward" for name in _ATTENTION))
def _attention_backward(s: Signature, device: Device, context: _Context) -> Values:
    return _attention_values(s, device, context)


@describes("rnn", "_cudnn_rnn", "_cudnn_rnn_backward")
def _rnn(s: Signature, device: Device, context: _Context) -> Values:
    x = s.inputs[0]
    first = bool(s.argument("batch_first"))
    length, batch = (x.shape[1], x.shape[0]) if first else (x.shape[0], x.shape[1])
    return {
        "type": _compute_type(s, context), "cell": _number(s, "mode", 2), "length": log(length),
        "sequences": log(batch), "hidden": log(_number(s, "hidden_size", 1)), "layers": _number(s, "num_layers", 1),
        "both_ways": float(bool(s.argument("bidirectional"))), "width": log(x.shape[-1]),
        "backward": float(s.name.endswith("backward")), "trains": float(bool(s.argument("train", True))),
    }  # fmt: skip


def _number(s: Signature, name: str, default: float) -> float:
    value = s.argument(name)
    return float(value) if isinstance(value, int | float) else default


_NORMS: Final = ("native_layer_norm", "native_batch_norm", "cudnn_batch_norm", "native_group_norm", "_fused_rms_norm",
                 "_native_batch_norm_legit", "batch_norm_with_update", "_batch_norm_with_update", "batch_norm_stats",
                 "batch_norm_elemt", "batch_norm_backward_reduce", "batch_norm_backward_elemt")  # fmt: skip
_NORMS_BACKWARD: Final = ("native_layer_norm_backward", "native_batch_norm_backward", "cudnn_batch_norm_backward",
                          "native_group_norm_backward", "_fused_rms_norm_backward", "batch_norm_backward")  # fmt: skip


def _norm_values(s: Signature, device: Device) -> Values:
    x = s.inputs[1] if s.name.endswith("_backward") and len(s.inputs) > 1 else s.inputs[0]
    by_channel = "batch_norm" in s.name
    shape = s.argument("normalized_shape")
    if by_channel:
        kept = x.shape[1] if len(x.shape) > 1 else 1
    elif "group_norm" in s.name:
        group = s.argument("group", 1)
        kept = x.shape[0] * (group if isinstance(group, int) else 1)
    else:
        width = math.prod(_ints(shape)) or x.shape[-1]
        kept = x.numel // max(width, 1)
    reduced = x.numel / max(kept, 1)
    return {
        "kind": float("layer" in s.name) + 2.0 * ("group" in s.name) + 3.0 * ("rms" in s.name) + 4.0 * by_channel,
        "cudnn": float("cudnn" in s.name), "kept": log(kept), "reduced": log(reduced),
        "kept_waves": log(kept / device.compute_units), "images": log(x.shape[0] if x.shape else 1),
        "positions": log(math.prod(x.shape[2:]) if len(x.shape) > 2 else 1), "layout": density(x),
        "trains": float(bool(s.argument("training", True))), "item": float(ITEM_BYTES[x.dtype]),
        "width_align": alignment(int(reduced)),
    }  # fmt: skip


@describes("norm", *_NORMS)
def _norm(s: Signature, device: Device, context: _Context) -> Values:
    return _norm_values(s, device)


@describes("norm_backward", *_NORMS_BACKWARD)
def _norm_backward(s: Signature, device: Device, context: _Context) -> Values:
    return _norm_values(s, device)


_REDUCTIONS: Final = (
    "sum mean amax amin max min var var_mean std norm linalg_vector_norm prod argmax argmin any all logsumexp "
    "cumsum cumprod _softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data "
    "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward sort topk median logcumsumexp"
).split()


@describes("reduction", *_REDUCTIONS)
def _reduction(s: Signature, device: Device, context: _Context) -> Values:
    """How much is reduced, how much is kept, and whether the reduced lie side by side."""
    x = s.inputs[0]
    dims = s.argument("dim")
    chosen = _ints(dims) if isinstance(dims, tuple) else (dims,) if isinstance(dims, int) else ()
    axes = {d % len(x.shape) for d in chosen} if x.shape and chosen else set(range(len(x.shape)))
    reduced = math.prod(x.shape[a] for a in axes)
    kept = x.numel / max(reduced, 1)
    nearest = min((x.strides[a] for a in axes if x.shape[a] > 1), default=1)
    inner = math.prod(x.shape[a] for a in range(len(x.shape)) if a not in axes and x.strides[a] < nearest)
    return {
        "reduced": log(reduced), "kept": log(kept), "stride": log(nearest), "inner": log(inner),
        "axes": float(len(axes)), "kept_waves": log(kept / (4 * device.compute_units)),
        "reduced_align": alignment(reduced),
    }  # fmt: skip


_INDEXED: Final = (
    "embedding embedding_dense_backward index index_put index_put_ _index_put_impl_ index_select index_add index_add_ gather "
    "scatter scatter_ scatter_add scatter_add_ _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward "
    "_unsafe_index masked_select nonzero masked_scatter index_copy index_copy_ take _unsafe_index_put index_fill index_fill_ "
    "roll flip repeat_interleave bincount searchsorted unique _unique2"
).split()


@describes("index", *_INDEXED)
def _index(s: Signature, device: Device, context: _Context) -> Values:
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


_POOLS: Final = (
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward max_pool3d_with_indices "
    "max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_bicubic2d "
    "upsample_bicubic2d_backward upsample_trilinear3d upsample_trilinear3d_backward upsample_nearest1d upsample_nearest3d "
    "upsample_nearest1d_backward upsample_nearest3d_backward upsample_linear1d upsample_linear1d_backward im2col col2im "
    "grid_sampler_2d grid_sampler_2d_backward _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
    "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward pixel_shuffle pixel_unshuffle reflection_pad2d "
    "reflection_pad2d_backward replication_pad2d replication_pad2d_backward"
).split()


@describes("pooling", *_POOLS)
def _pooling(s: Signature, device: Device, context: _Context) -> Values:
    x, out = s.inputs[0], s.outputs[0]
    window = _ints(s.argument("kernel_size")) or (1,)
    stride = _ints(s.argument("stride")) or window
    planes = math.prod(x.shape[:2]) if len(x.shape) > 2 else 1
    return {
        "window": log(math.prod(window) if len(window) > 1 else window[0] ** 2), "stride": float(max(stride)),
        "planes": log(planes), "channels": log(x.shape[1] if len(x.shape) > 1 else 1),
        "in_width": log(x.shape[-1]), "out_width": log(out.shape[-1]), "scale": log(out.numel / max(x.numel, 1)),
        "layout": density(x),
    }  # fmt: skip


def _foreach(s: Signature, device: Device, context: _Context) -> Values:
    """A list of tensors is walked in chunks: how many tensors, how large, how uneven."""
    mine = s.inputs
    lists = max(1, sum(isinstance(value, tuple) and len(value) > 1 for _, value in s.arguments))
    count = len(mine) / lists
    numel = sum(x.numel for x in mine) / lists
    largest = max((x.numel for x in mine), default=1)
    small = sum(x.numel < 65536 for x in mine) / max(len(mine), 1)
    chunks = sum(math.ceil(x.numel / 65536) for x in mine) / lists
    return {
        "tensors": log(count), "lists": float(lists), "elements": log(numel), "largest": log(largest),
        "small": small, "chunks": log(chunks / device.compute_units), "chunk_fill": fill(chunks / device.compute_units),
        "half": sum(ITEM_BYTES[x.dtype] == 2 for x in mine) / max(len(mine), 1),
    }  # fmt: skip


_COPIES: Final = (
    "clone _to_copy copy_ copy cat stack constant_pad_nd slice_backward select_backward contiguous split_with_sizes_copy "
    "narrow_copy repeat tile expand_copy permute_copy unfold_backward diagonal_backward tril triu tril_ triu_ zeros ones full zeros_like "
    "ones_like full_like fill_ zero_ new_zeros new_ones new_full arange"
).split()


@describes("copy", *_COPIES)
def _copy(s: Signature, device: Device, context: _Context) -> Values:
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


def _elementwise(s: Signature, device: Device, context: _Context) -> Values:
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
