"""What describes kernels that torch's compiler writes: what they move, compute and reduce, as its schedule says."""

from __future__ import annotations

from typing import Final

from foretell.cost.features.numbers import Values, alignment, log, number
from foretell.graph import ITEM_BYTES, Layout, Signature
from foretell.hardware import Device

_KINDS: Final = ("pointwise", "reduction", "persistent_reduction", "two_reductions", "scan", "foreach")
_ADDS_UP: Final = ("index_put", "embedding_dense_backward", "scatter")  # operators whose kernels write where others may
_LOOKS_UP: Final = ("aten.embedding.", "index.Tensor", "gather", "index_select")
_SOFTMAX: Final = ("softmax",)
_NOTHING: Final = Layout((), (), "float32")


def instructions(s: Signature) -> float:
    return number(s, "operations", 0)


def lanes(device: Device) -> float:
    """Instructions that a device's fp32 lanes take a second: what is published counts one as two operations."""
    return device.peak("fp32") / 2


def values(s: Signature, device: Device, tf32: bool) -> Values:
    traffic, elements, reduced = (max(number(s, name, 1), 1.0) for name in ("traffic", "elements", "reduced"))
    kind, of = s.target.rpartition(".")[2], str(s.argument("of", ""))
    layouts = (*s.inputs, *s.outputs)
    largest = max(layouts, key=lambda x: x.numel, default=_NOTHING)
    last = largest.shape[-1] if largest.shape else 1
    return {
        "kind": float(_KINDS.index(kind)) if kind in _KINDS else -1.0,
        "elements": log(elements), "reduced": log(reduced), "kept": log(elements / reduced),
        "kept_waves": log(elements / reduced / (8 * device.compute_units)),
        "instructions": instructions(s) / elements, "accesses": number(s, "accesses", 0) / elements,
        "moved": traffic / elements, "apart": number(s, "apart", 0) / traffic, "cached": log(traffic / device.l2_bytes),
        "item": float(max((ITEM_BYTES[x.dtype] for x in s.outputs), default=0)),
        "read_item": float(max((ITEM_BYTES[x.dtype] for x in s.inputs), default=0)),
        "largest_item": float(ITEM_BYTES[largest.dtype]), "last": log(last), "last_align": alignment(last),
        "reduced_align": alignment(int(reduced)), "adds_up": _any(_ADDS_UP, of), "looks_up": _any(_LOOKS_UP, of),
        "softmax": _any(_SOFTMAX, of),
    }  # fmt: skip


def _any(names: tuple[str, ...], of: str) -> float:
    return float(any(name in of for name in names))
