"""Floating-point operations of an op, from its shapes. A multiply-add counts as two.

Each formula is a pure function of the signature, registered for its operator. Attention is counted in full, as if
nothing were masked, which is the convention of FLOP counters; `skipped` is the part that a kernel leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from foretell.graph import Graph, Signature
from foretell.graph.operators import ATTENTION, OPAQUE, Registry, names_of, operator_of
from foretell.units import Flops

formula: Final = Registry[Callable[[Signature], Flops]]("a FLOP formula")


def flops(signature: Signature) -> Flops:
    """Operations on the matrix units: products, convolutions, attention, RNNs. Elementwise work counts as none."""
    count = formula.get(signature.name)
    return count(signature) if count else 0.0


def total_flops(graph: Graph) -> Flops:
    calls = graph.calls
    return sum(flops(call.signature) * times for call, times in zip(calls.distinct, calls.times, strict=True))


def executed(signature: Signature) -> Flops:
    """What of them a kernel does."""
    return flops(signature) * (1 - skipped(signature))


def skipped(signature: Signature) -> float:
    """The share of the counted operations that the kernel does not do: the masked half of causal attention."""
    if operator_of(signature.name).is_attention and signature.argument("is_causal"):
        [key] = signature.required_tensors("key")
        return 0.5 * (1 - 1 / max(key.shape[-2], 1))
    return 0.0


@formula(*names_of("matmul"))
def _product(s: Signature) -> Flops:
    """(…, m, k) × (…, k, n): 2·m·k·n for each of the batch.

    A grouped product shares out the rows of `a`, or the inner dimension, so each still meets one matrix.
    """
    first = operator_of(s.name).kind == "added"  # what is added to comes first
    a, b = s.inputs[first : first + 2]
    return 2.0 * a.numel * (b.shape[-1] if len(b.shape) > 1 else 1)


@formula(*names_of("convolution"))
def _convolution(s: Signature) -> Flops:
    """Every output element is a dot product over the kernel and the channels of its group.

    A transposed convolution is the same walk seen from its input: every input element meets each weight of its group.
    """
    weight = s.inputs[1]
    per_element = 2.0 * math.prod(weight.shape[1:])
    return per_element * (s.inputs[0].numel if s.argument("transposed") else s.outputs[0].numel)


@formula("aten.convolution_backward")
def _convolution_backward(s: Signature) -> Flops:
    """Each gradient asked for, of the input and of the weight, is as much work as the forward."""
    gradient, x, weight = s.inputs[0], s.inputs[1], s.inputs[2]
    forward = 2.0 * math.prod(weight.shape[1:]) * (x.numel if s.argument("transposed") else gradient.numel)
    mask = s.argument("output_mask")
    wanted = sum(bool(m) for m in mask[:2]) if isinstance(mask, tuple) else 2
    return forward * wanted


@formula(*names_of("attention", *ATTENTION))
def _attention(s: Signature) -> Flops:
    """Scores are q·kᵀ and the output is scores·v, for every query head; grouped heads share keys, not work."""
    q, k, v = s.required_tensors("query", "key", "value")
    pairs = math.prod(q.shape[:-1]) * k.shape[-2]
    return 2.0 * pairs * (q.shape[-1] + v.shape[-1])


@formula(*names_of("attention_backward"))
def _attention_backward(s: Signature) -> Flops:
    """Five products: the scores again, then the gradients of value, scores, query and key."""
    q, k, v = s.required_tensors("query", "key", "value")
    pairs = math.prod(q.shape[:-1]) * k.shape[-2]
    return 2.0 * pairs * (3 * q.shape[-1] + 2 * v.shape[-1])


@formula(*names_of("attention", "projected"))
def _fused_attention(s: Signature) -> Flops:
    """Projections to queries, keys and values, attention among all positions, and what weights come after it."""
    x = s.inputs[0]
    positions, length, width = math.prod(x.shape[:-1]), x.shape[-2], x.shape[-1]
    weights = sum(w.numel for w in s.inputs if len(w.shape) == 2)
    return 2.0 * positions * weights + 4.0 * positions * length * width


@formula(OPAQUE)
def _opaque(s: Signature) -> Flops:
    return declared(s, "flops")


def declared(s: Signature, what: str) -> float:
    """What a user has said of an operation that nobody looks into."""
    value = s.argument(what)
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{s.target} is declared without its {what}")
    return float(value)


@formula("aten._cudnn_rnn")
def _rnn(s: Signature) -> Flops:
    """Every weight matrix meets every time step of every sequence once; biases are vectors and do not count."""
    x = s.inputs[0]
    positions = math.prod(x.shape[:-1])
    return 2.0 * positions * sum(w.numel for w in s.tensors("weight") if len(w.shape) == 2)


@formula("aten._cudnn_rnn_backward")
def _rnn_backward(s: Signature) -> Flops:
    """The gradients of the inputs and of the weights: twice the forward."""
    return 2.0 * _rnn(s)
