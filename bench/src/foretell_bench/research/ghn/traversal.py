"""The encoder's traversals of one network with their gradient written out, for training: some hundred times fewer calls.

The same numbers as `foretell.methods.predictddl.ghn.encoder.GatedGraph`, by numpy on the host. Nodes are put in the order
of the traversal, so that a wave is a slice and what it hears one product with a matrix of 1 / distance; gradients of
weights are taken once for all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from foretell.methods.predictddl.ghn.architecture import Architecture, Paths, paths
from foretell.methods.predictddl.ghn.encoder import KIND_NUMBER, Encoder, GatedGraph, looked_up

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Order:
    """One traversal: nodes in its order, where its waves end, and how loud each hears what the others send.

    A node sends two messages, in columns 2i along edges and 2i + 1 along virtual ones.
    """

    nodes: Ints
    ends: tuple[int, ...]
    hears: Floats


@dataclass(frozen=True, slots=True)
class PreparedNetwork:
    """A network as training needs it."""

    architecture: Architecture
    kinds: Tensor
    sizes: Tensor
    orders: tuple[Order, Order]


def network_of(architecture: Architecture) -> PreparedNetwork:
    p = paths(architecture)
    return PreparedNetwork(
        architecture,
        torch.tensor([KIND_NUMBER[node.kind] for node in architecture]),
        torch.tensor([looked_up(node.shape) for node in architecture]),
        (_order(p, p.depth, p.source, p.target), _order(p, p.height, p.target, p.source)),
    )


def _order(p: Paths, level: Ints, sender: Ints, hearer: Ints) -> Order:
    nodes = np.argsort(level, kind="stable")
    place = np.empty_like(nodes)
    place[nodes] = np.arange(p.count)
    hears = np.zeros((p.count, 2 * p.count), dtype=np.float32)
    hears[place[hearer], 2 * place[sender] + (p.distance > 1)] = 1 / p.distance
    return Order(nodes, tuple(np.cumsum(np.bincount(level)).tolist()), hears)


def encode(encoder: Encoder, network: PreparedNetwork) -> Tensor:
    """States of its nodes; the encoder is one that looks shapes up, in host memory."""
    states = encoder.kind(network.kinds) + encoder.shape(network.sizes)
    weights = _stacked(encoder.graph)
    for order in network.orders:
        states = _Traversal.apply(order, states, *weights)  # type: ignore[no-untyped-call]
    found: Tensor = encoder.norm(states)
    return found


def _stacked(graph: GatedGraph) -> tuple[Tensor, ...]:
    """Both perceptrons as one: first layers one above the other, second ones along a diagonal."""
    near, far, cell = graph.near, graph.far, graph.cell
    return (
        cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh,
        torch.cat([near[0].weight, far[0].weight]), torch.cat([near[0].bias, far[0].bias]),  # type: ignore[list-item]
        torch.block_diag(near[2].weight, far[2].weight), torch.cat([near[2].bias, far[2].bias]),  # type: ignore[list-item]
    )  # fmt: skip


class _Traversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, order: Order, states: Tensor, *weights: Tensor) -> Tensor:
        w_in, w_own, b_in, b_own, w1, b1, w2, b2 = (w.detach().numpy() for w in weights)
        own = states.detach().numpy()[order.nodes]
        count, width = own.shape
        gates_own = own @ w_own.T + b_own
        gates_own[:, : 2 * width] += b_in[: 2 * width]
        b_new = b_in[2 * width :]
        sent = np.zeros((2 * count, width), dtype=np.float32)
        heard, gates = np.zeros_like(own), np.empty((count, 2 * width), dtype=np.float32)
        fresh, new = np.empty_like(own), np.empty_like(own)
        hidden = np.empty((count, len(w1)), dtype=np.float32)
        by_row, w_in_t, w1_t, w2_t = sent.reshape(count, 2 * width), w_in.T.copy(), w1.T.copy(), w2.T.copy()
        start = 0
        for end in order.ends:
            here = slice(start, end)
            if start:
                np.matmul(order.hears[here, : 2 * start], sent[: 2 * start], out=heard[here])
            into = heard[here] @ w_in_t
            g = _sigmoid(into[:, : 2 * width] + gates_own[here, : 2 * width])
            n = np.tanh(into[:, 2 * width :] + b_new + g[:, :width] * gates_own[here, 2 * width :])
            made = n + g[:, width:] * (own[here] - n)
            h = np.maximum(made @ w1_t + b1, 0)
            np.maximum(h @ w2_t + b2, 0, out=by_row[here])
            gates[here], fresh[here], new[here], hidden[here] = g, n, made, h
            start = end
        ctx.order, ctx.kept = order, (own, gates_own[:, 2 * width :], heard, gates, fresh, new, hidden, by_row)
        ctx.weights = (w_in, w_own, w1, w2)
        states_after = np.empty_like(new)
        states_after[order.nodes] = new
        return torch.from_numpy(states_after)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        order: Order = ctx.order
        own, gate_own, heard, gates, fresh, new, hidden, by_row = ctx.kept
        w_in, w_own, w1, w2 = ctx.weights
        count, width = own.shape
        d_new = gradients[0].numpy()[order.nodes]
        d_sent = np.zeros((2 * count, width), dtype=np.float32)
        d_rows = d_sent.reshape(count, 2 * width)
        heard_by, is_sent, is_hidden = order.hears.T.copy(), by_row > 0, hidden > 0
        reset, kept = gates[:, :width], gates[:, width:]
        d_in, d_hidden = np.empty((count, 3 * width), dtype=np.float32), np.empty_like(hidden)
        # What a gradient of the new state is multiplied with on its way to each gate; reset's goes through the fresh state.
        to_fresh = (1 - kept) * (1 - fresh * fresh)
        by_gate = np.concatenate(
            [to_fresh * gate_own * reset * (1 - reset), (own - fresh) * kept * (1 - kept), to_fresh], axis=1
        ).reshape(count, 3, width)
        d_gates = d_in.reshape(count, 3, width)
        starts = (0, *order.ends[:-1])
        for start, end in zip(reversed(starts), reversed(order.ends), strict=True):
            here = slice(start, end)
            d_rows[here] *= is_sent[here]
            d_hidden[here] = (d_rows[here] @ w2) * is_hidden[here]
            d_new[here] += d_hidden[here] @ w1
            np.multiply(by_gate[here], d_new[here][:, None], out=d_gates[here])
            if start:
                d_sent[: 2 * start] += heard_by[: 2 * start, here] @ (d_in[here] @ w_in)
        d_own_gates = d_in.copy()
        d_own_gates[:, 2 * width :] *= reset
        d_own = d_new * kept + d_own_gates @ w_own
        d_states = np.empty_like(d_own)
        d_states[order.nodes] = d_own
        found = (
            d_states, d_in.T @ heard, d_own_gates.T @ own, d_in.sum(0), d_own_gates.sum(0),
            d_hidden.T @ new, d_hidden.sum(0), d_rows.T @ hidden, d_rows.sum(0),
        )  # fmt: skip
        return (None, *(torch.from_numpy(g) for g in found))


def _sigmoid(x: Floats) -> Floats:
    half: Floats = 0.5 * np.tanh(0.5 * x) + 0.5
    return half
