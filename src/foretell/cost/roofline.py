"""The roofline: an op takes as long as its arithmetic or its memory traffic needs at the device's published peaks.

No kernel is faster, most are slower. It is the baseline that learned models must beat, and the price of what they
do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from foretell.cost.flops import flops, skipped
from foretell.graph import Graph, Layout, Op, Signature
from foretell.hardware import Device
from foretell.units import Bytes, Flops, Seconds

_PEAK_OF: Final = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int8": "int8",
                   "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}  # fmt: skip
_MAKES_NO_KERNEL: Final = frozenset(
    f"aten.{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "set_",
                                "resize_", "_local_scalar_dense", "is_same_size", "sym_size", "_reshape_alias", "as_strided_")
)  # fmt: skip
_READS_WHAT_IT_RETURNS: Final = frozenset(
    f"aten.{name}" for name in ("embedding", "index", "index_select", "gather", "_unsafe_index", "_embedding_bag")
)
_READS_NO_TENSOR: Final = frozenset(  # they take one for its shape alone
    f"aten.{name}"
    for name in ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
)
_READS_ONE_OF_A_ROW: Final = frozenset(
    f"aten.nll_loss{kind}_{way}" for kind in ("", "2d") for way in ("forward", "backward")
)
_WAITS_FOR_DEVICE: Final = frozenset(
    f"aten.{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")
)


@dataclass(frozen=True, slots=True)
class Work:
    """What an op asks of a device."""

    flops: Flops
    traffic: Bytes
    kernel: bool  # False: nothing is launched (views, empty tensors, numbers kept by the host)
    waits: bool  # the host needs the result before it goes on


@dataclass(frozen=True, slots=True)
class Price:
    work: Work
    seconds: Seconds


def price_ops(graph: Graph, device: Device) -> list[Price]:
    """The price of every op of a graph; equal signatures are priced once."""
    known: dict[tuple[int, bool, bool], Price] = {}
    prices = []
    storage_of = [tensor.storage for tensor in graph.tensors]
    on_host = [storage.role == "host" for storage in graph.storages]
    for op in graph.ops:
        read = [storage_of[i] for i in op.inputs]
        # What reads nothing but numbers in host memory, such as an optimizer's step counters, runs there.
        key = (id(op.signature), _is_view(op, read, storage_of), bool(read) and all(on_host[s] for s in read))
        if key not in known:
            work = work_of(op.signature, view=key[1], host=key[2])
            known[key] = Price(work, roofline_seconds(work, op.signature, device, tf32=graph.precision == "tf32"))
        prices.append(known[key])
    return prices


@lru_cache(maxsize=1 << 14)  # asked again by those who describe an op
def work_of(signature: Signature, *, view: bool = False, host: bool = False) -> Work:
    name = signature.name
    waits = name in _WAITS_FOR_DEVICE and not host
    if view or host or name in _MAKES_NO_KERNEL:
        return Work(0.0, 0, kernel=False, waits=waits)
    return Work(flops(signature) * (1 - skipped(signature)), _traffic(signature), kernel=True, waits=waits)


def roofline_seconds(work: Work, signature: Signature, device: Device, *, tf32: bool) -> Seconds:
    if not work.kernel:
        return 0.0
    arithmetic = work.flops / device.peak(peak_name(signature, tf32=tf32)) if work.flops else 0.0
    return max(arithmetic, work.traffic / device.bandwidth)


def peak_name(signature: Signature, *, tf32: bool) -> str:
    """Which published rate the op's matrix arithmetic runs at."""
    floats = [x.dtype for x in signature.inputs if x.dtype in _PEAK_OF]
    name = _PEAK_OF[floats[0]] if floats else "fp32"
    return "tf32" if name == "fp32" and tf32 else name


def _traffic(s: Signature) -> Bytes:
    """Each input read once, each output written once; a broadcast is stored once, a look-up reads what it returns."""
    written = _bytes(s.outputs)
    if s.name in _READS_WHAT_IT_RETURNS:
        return 2 * written + _bytes([x for x in s.inputs if x.dtype.startswith(("int", "uint", "bool"))])
    if s.name in _READS_NO_TENSOR:
        return written
    if s.name in _READS_ONE_OF_A_ROW:
        return written + 2 * _bytes([x for x in s.inputs if x.dtype.startswith("int")])
    return _bytes(s.inputs) + (written or _bytes([s.inputs[i] for i in s.mutates]))


def _bytes(layouts: Sequence[Layout]) -> Bytes:
    return sum(x.distinct_bytes for x in layouts)


def _is_view(op: Op, read: Sequence[int], storage_of: Sequence[int]) -> bool:
    """Its outputs lie in the storages it reads and nothing is written."""
    if op.signature.mutates or not op.outputs:
        return False
    return storage_of[op.outputs[0]] in read and all(storage_of[o] in read for o in op.outputs)
