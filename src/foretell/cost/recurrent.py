"""Recurrent layers: which kernels cuDNN runs them with, which time and memory go by, and that more sequences take no less time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from foretell.graph import Layout, Signature
from foretell.graph.operators import operator_of
from foretell.units import Seconds

_GATED: Final = 2  # modes of cuDNN from here on are LSTM and GRU; those before have one product a place
# Hidden numbers up to which torch asks for weights that stay on the device's units from one place of a sequence to the next
# (`use_rnn_persist_small_h` in aten/src/ATen/native/cudnn/RNN.cpp), with gates and without. For bf16 cuDNN has no such kernel.
_MOST_HIDDEN: Final = {"forward": (384, 192), "backward": (256, 128)}
# Numbers of sequences that a layer is asked with besides its own, and how far from its own they may be.
_SEQUENCES: Final = (1, *sorted(n * 2**k for n in (2, 3) for k in range(20)))
_FARTHEST: Final = 16


def keeps_weights_on_chip(signature: Signature) -> bool:
    """Whether one kernel walks the whole sequence, instead of some for each of its places."""
    hidden, mode = (int(str(signature.argument(*named))) for named in (("hidden_size", 1), ("mode", _GATED)))
    most = _MOST_HIDDEN[operator_of(signature.name).kind][mode >= _GATED]
    return hidden <= most and signature.inputs[0].dtype != "bfloat16"


def by_sequences(signature: Signature) -> list[Signature]:
    """The same layer of fewer and of more sequences, in their order, itself among them."""
    x, first = signature.inputs[0], bool(signature.argument("batch_first"))
    count = x.shape[0 if first else 1] if len(x.shape) == 3 else 0  # packed ones have lengths unlike each other
    near = {n for n in _SEQUENCES if count <= n * _FARTHEST and n <= count * _FARTHEST}
    return [signature if n == count else _with_sequences(signature, count, n, first) for n in sorted({*near, count})]


def never_less(seconds: Sequence[Seconds], own: int) -> Seconds:
    """The one at `own`, where none may be less than those before: neighbours that contradict each other share their geometric mean.

    What was learned of few sizes jumps between them. Of layers of networks left out, this is closer to what was measured.
    """
    pools: list[tuple[float, int]] = []  # the mean of how many
    for each in seconds:
        mean, count = math.log(each), 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, count = (before * more + mean * count) / (more + count), count + more
        pools.append((mean, count))
    ends = accumulate(count for _, count in pools)
    return next(math.exp(mean) for (mean, _), end in zip(pools, ends, strict=True) if own < end)


def _with_sequences(signature: Signature, count: int, wanted: int, first: bool) -> Signature:
    sides = signature.inputs[0].shape[:2]

    def of(x: Layout) -> Layout:
        if len(x.shape) == 1 and x.dtype == "uint8":  # what the forward pass keeps for the backward pass
            return replace(x, shape=(x.shape[0] * wanted // count,))
        if len(x.shape) != 3:
            return x
        at = 0 if first and x.shape[:2] == sides else 1  # states have layers first
        if x.shape[at] != count:
            return x
        inner = x.strides[at]
        strides = tuple(each * wanted // count if each > inner else each for each in x.strides)
        return replace(x, shape=(*x.shape[:at], wanted, *x.shape[at + 1 :]), strides=strides)

    layouts = (tuple(map(of, each)) for each in (signature.inputs, signature.outputs))
    inputs, outputs = layouts
    return replace(signature, inputs=inputs, outputs=outputs)
