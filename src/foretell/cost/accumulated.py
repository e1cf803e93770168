"""Grouped products that add their sums to fp32 gradients: the product as it was measured, and the traffic of the sums.

Products were measured with results of 16 bits. One that adds to gradients in fp32 reads and writes those
besides, while it multiplies: an expert sees few rows, so its gradient is most of what is moved.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from foretell.graph import ITEM_BYTES, Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.units import Bytes, Seconds

_MEASURED: Final = "bfloat16"  # results of products of at most 16 bits


@lru_cache(maxsize=1 << 12)
def as_measured(signature: Signature) -> Signature:
    """The product with a result of 16 bits."""
    if not further_bytes(signature):
        return signature
    return replace(signature, outputs=tuple(replace(x, dtype=_MEASURED) for x in signature.outputs))


@lru_cache(maxsize=1 << 12)
def further_bytes(signature: Signature) -> Bytes:
    """What is read and written of sums in fp32, beyond a result of 16 bits."""
    if operator_of(signature.name).kind != "grouped" or not signature.outputs:
        return 0
    made, most = signature.outputs[0], ITEM_BYTES[_MEASURED]
    if made.dtype != "float32" or ITEM_BYTES[signature.inputs[0].dtype] > most:
        return 0
    return made.numel * (2 * ITEM_BYTES[made.dtype] - most)


def further_seconds(signature: Signature, device: Device) -> Seconds:
    return further_bytes(signature) / device.bandwidth
