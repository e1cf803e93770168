"""Ops that trees saw none or few of, by what was measured of them: 8-bit products, and causal attention over long sequences.

Trees were fitted on whole networks, few of them of sequences longer than 2,048. From there to 8,192 their times go over to those
at the shares of the peak that kernels were measured to attain, and stay there. The kernels of FlashAttention 2 and the memory-
efficient one are Ampere's: on Hopper and later they do without its instructions, so what was measured there is not of earlier boards.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

from foretell.cost.attained import Attained, LongAttention
from foretell.cost.roofline import peak_name, work_of
from foretell.graph import Signature
from foretell.graph.operators import FIRST_VERSION, PIECE_BY_PIECE, operator_of
from foretell.hardware import Device
from foretell.precision import HALF_DTYPES
from foretell.units import Seconds

_TREES_ALONE: Final = 2048  # keys: up to here
_DOUBLINGS: Final = 2  # until trees have no say
_ROWS: Final = 128  # of queries that a block takes
_WAVES: Final = 8  # of blocks, from which on a kernel fills a device
_HOPPER: Final = (9, 0)


def beyond_trees(signature: Signature, learned: Seconds, own: Device, device: Device, attained: Attained) -> Seconds:
    """What an op takes on the device that trees are of, as `device` will run it, by what trees say of it."""
    family = operator_of(signature.name).family
    if family == "matmul" and peak_name(signature, tf32=False) == "fp8":
        return learned * attained.scaled_by(str(signature.argument("scaling", "tensor")))
    if family in ("attention", "attention_backward"):
        slower = attained.first_flash if signature.argument(FIRST_VERSION) else 1.0
        return slower * _of_long_sequences(signature, learned, own, device, attained)
    return learned


def _of_long_sequences(
    signature: Signature, seconds: Seconds, own: Device, device: Device, attained: Attained
) -> Seconds:
    operator = operator_of(signature.name)
    if not (operator.is_attention and signature.argument("is_causal")):
        return seconds
    if operator.kind != "cudnn" and (device.compute_capability or (0, 0)) < _HOPPER:
        return seconds
    query, key, value = signature.required_tensors("query", "key", "value")
    measured = attained.long_attention.get(operator.kind, {}).get(f"{query.shape[-1]}/{value.shape[-1]}", ())
    if not measured or query.dtype not in HALF_DTYPES:
        return seconds
    pieces = signature.argument(PIECE_BY_PIECE)  # of as many keys as queries: each is a kernel of its own
    length, blocks = (query if pieces else key).shape[-2], math.prod(query.shape[:-1]) / _ROWS
    weight = min(max(math.log2(max(length, 1) / _TREES_ALONE) / _DOUBLINGS, 0.0), 1.0)
    weight *= min(blocks / own.compute_units / _WAVES, 1.0)
    rate = own.peak(peak_name(signature, tf32=False)) * _share(
        measured, length, operator.family == "attention_backward"
    )
    return math.pow(seconds, 1 - weight) * math.pow(work_of(signature).flops / rate, weight)


def _share(measured: tuple[LongAttention, ...], length: int, backward: bool) -> float:
    """Between two measured lengths by their logarithms."""
    shares = [(math.log2(m.length), m.backward if backward else m.forward) for m in measured]
    at = min(max(math.log2(max(length, 1)), shares[0][0]), shares[-1][0])
    for (before, low), (after, high) in pairwise(shares):
        if before <= at <= after:
            return low + (high - low) * (at - before) / (after - before)
    return shares[0][1]
