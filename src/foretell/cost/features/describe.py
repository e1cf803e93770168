"""An op as a cost model sees it: its time at the device's peaks, and the values that a model predicts its distance from it by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from foretell.cost.features import fused, products, streams
from foretell.cost.features.numbers import Values, alignment, density, fill, inner_run, log
from foretell.cost.roofline import peak_name, work_of
from foretell.graph import ITEM_BYTES, Layout, Signature
from foretell.graph.operators import Family, Operator, operator_of
from foretell.hardware import Device
from foretell.units import Bytes, Seconds

LAUNCH_FLOOR: Final[Seconds] = 1.0e-6  # the shortest kernel there is; what keeps a ratio to the roofline finite
_WALK: Final[Seconds] = 1.0e-7  # from one plane to the next, about what memory takes to answer
_STREAMED: Final = "bfloat16"
_NOTHING: Final = Layout((), (), "uint8")  # stands for the tensors of an op that has none
_DESCRIBES: Final[Mapping[Family, Callable[[Signature, Device, bool], Values]]] = {
    "attention": products.attention,
    "attention_backward": products.attention_backward,
    "convolution": products.convolution,
    "convolution_backward": products.convolution_backward,
    "copy": streams.copy,
    "elementwise": streams.elementwise,
    "foreach": streams.foreach,
    "fused": fused.values,
    "index": streams.index,
    "matmul": products.matmul,
    "norm": streams.norm,
    "norm_backward": streams.norm,
    "pooling": streams.pooling,
    "reduction": streams.reduction,
    "rnn": products.rnn,
}


@dataclass(frozen=True, slots=True)
class Description:
    """An op of a family, and the time it would take at the device's peaks."""

    family: Family
    roofline: Seconds
    values: Values


def describe(signature: Signature, device: Device, *, tf32: bool) -> Description:
    operator, work = operator_of(signature.name), work_of(signature)
    signature = _as_stream(work.traffic) if operator.kind == "stream" else signature
    tf32 = tf32 and not operator.is_attention  # whose kernels take fp32 as it is: the two were measured to be as fast
    arithmetic = products.padding(signature) * work.flops / device.peak(peak_name(signature, tf32=tf32))
    if operator.family == "fused":
        arithmetic = fused.instructions(signature) / fused.lanes(device)
    memory = work.traffic / device.bandwidth
    values = {} if operator.family == "fused" else _general(signature, device)
    values["arithmetic"] = log(arithmetic * 1e6)
    values["memory"] = log(memory * 1e6)
    values["balance"] = log(arithmetic / memory) if arithmetic and memory else -20.0
    values |= _DESCRIBES[operator.family](signature, device, tf32)
    least = max(
        arithmetic, memory * _crowding(signature, operator), _WALK * streams.walked(signature, device), LAUNCH_FLOOR
    )
    if operator.family == "convolution_backward":
        least = max(least, products.summed_alone(signature, device, tf32))
    return Description(operator.family, least, values)


def _as_stream(traffic: Bytes) -> Signature:
    """One tensor copied, of as many bytes."""
    x = Layout((traffic // 2 // ITEM_BYTES[_STREAMED],), (1,), _STREAMED)
    return Signature("aten.clone.default", (x,), (x,))


def _crowding(signature: Signature, operator: Operator) -> float:
    """How many numbers are added to the same place, one waiting for another: an interpolation's gradient."""
    if operator.kind != "adds up" or not signature.outputs:
        return 1.0
    return max(1.0, signature.inputs[0].numel / max(signature.outputs[0].numel, 1))


def _general(s: Signature, device: Device) -> Values:
    """What holds of any op."""
    read, written = sum(x.distinct_bytes for x in s.inputs), sum(x.distinct_bytes for x in s.outputs)
    first = (*s.inputs, *s.outputs, _NOTHING)[0]
    out = s.outputs[0] if s.outputs else first
    largest = max(s.inputs, key=lambda x: x.numel, default=first)
    blocks = out.numel / (512 * device.compute_units)  # threads of a usual elementwise kernel
    return {
        "read": log(read), "written": log(written), "inputs": float(len(s.inputs)), "outputs": float(len(s.outputs)),
        "in_cache": log((read + written) / device.l2_bytes), "in_place": float(bool(s.mutates)),
        "first_numel": log(first.numel), "first_item": float(ITEM_BYTES[first.dtype]),
        "first_floats": float(first.dtype.startswith(("float", "bfloat"))), "first_dense": density(first),
        "first_inner": log(inner_run(first)), "rank": float(len(first.shape)), "out_numel": log(out.numel),
        "out_item": float(ITEM_BYTES[out.dtype]), "out_dense": density(out), "out_inner": log(inner_run(out)),
        "waves": log(blocks), "wave_fill": fill(blocks), "spread": log(out.numel / max(largest.numel, 1)),
        "align": min(alignment(x.shape[-1]) if x.shape else 5.0 for x in (out, largest)),
    }  # fmt: skip
