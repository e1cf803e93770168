"""Recurrent layers, which cuDNN runs in one call, and the sequences packed for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

aten = torch.ops.aten
_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # as cuDNN numbers them
_LSTM, _GRU = _MODES["lstm"], _MODES["gru"]


def _rnn(mode: int, x: Tensor, hx: Any, params: list[Tensor], has_biases: bool, *how: Any) -> tuple[Tensor, ...]:
    return _cudnn(mode, x, hx, params, [], *how)


def _packed_rnn(
    mode: int, data: Tensor, batch_sizes: Tensor, hx: Any, params: list[Tensor], has_biases: bool, *how: Any
) -> tuple[Tensor, ...]:
    return _cudnn(mode, data, hx, params, [int(size) for size in batch_sizes.tolist()], *how)


def _cudnn(
    mode: int,
    x: Tensor,
    hx: Any,
    params: list[Tensor],
    sizes: list[int],
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    h, c = (hx[0], hx[1]) if mode == _LSTM else (hx, None)
    hidden = params[0].shape[0] // {_LSTM: 4, _GRU: 3}.get(mode, 1)
    projection = h.shape[-1] if h.shape[-1] != hidden else 0
    per_layer = len(params) // (num_layers * (2 if bidirectional else 1))
    # torch packs the weights into one buffer beforehand, save in bf16, where each call packs anew.
    packed = None if x.dtype == torch.bfloat16 else params[0].detach()
    settings = (mode, hidden, projection, num_layers, batch_first, dropout, train, bidirectional, sizes, None)
    out, h_n, c_n, _, _ = aten._cudnn_rnn(x, params, per_layer, packed, h, c, *settings)
    return (out, h_n, c_n) if mode == _LSTM else (out, h_n)


def _rnn_shapes(
    x: Tensor, weight: list[Tensor], stride0: int, weight_buf: Tensor | None, hx: Tensor, cx: Tensor | None, *how: Any
) -> tuple[Any, ...]:
    mode, hidden, projection, layers, batch_first, dropout, train, bidirectional, sizes, _ = how
    directions = 2 if bidirectional else 1
    width = (projection or hidden) * directions
    out = x.new_empty(*x.shape[:-1], width)
    if batch_first and not sizes:  # cuDNN writes time first
        out = x.new_empty(x.shape[1], x.shape[0], width).transpose(0, 1)
    positions, batch = x.numel() // max(x.shape[-1], 1), hx.shape[1]
    reserve = 0
    if train:
        # Measured on an H200: gates and cell states of every step, what passes between layers, first states, dropout masks.
        kept = {_LSTM: 5, _GRU: 6}.get(mode, 1)
        between = positions * hidden * directions * (layers - 1)
        reserve = x.element_size() * (
            kept * positions * hidden * directions * layers + between + 2 * batch * hidden * directions * layers
        )
        reserve += between // 8 if dropout else 0
    if weight_buf is None:
        weight_buf = x.new_empty(sum(w.numel() for w in weight))
    c_n = x.new_empty(0) if cx is None else torch.empty_like(cx)
    return out, torch.empty_like(hx), c_n, x.new_empty(reserve, dtype=torch.uint8), weight_buf


def _rnn_backward_shapes(
    x: Tensor, weight: list[Tensor], stride0: int, weight_buf: Tensor, hx: Tensor, cx: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    made = (None if tensor is None else torch.empty_like(tensor) for tensor in (x, hx, cx))
    return (*made, [torch.empty_like(w) for w in weight])


def _lstm_cell(
    x: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    hidden, cell, _ = aten._thnn_fused_lstm_cell(x @ w_ih.t(), hx[0] @ w_hh.t(), hx[1], b_ih, b_hh)
    return hidden, cell


def _gru_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    hidden: Tensor = aten._thnn_fused_gru_cell(x @ w_ih.t(), hx @ w_hh.t(), hx, b_ih, b_hh)[0]
    return hidden


def _lstm_cell_shapes(gates: Tensor, hidden_gates: Tensor, cell: Tensor, *biases: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(gates)


def _lstm_cell_backward_shapes(
    of_hidden: Tensor | None, of_cell: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Any, ...]:
    of_bias = workspace.new_empty(workspace.shape[1]) if has_bias else None
    return torch.empty_like(workspace), torch.empty_like(cx), of_bias


def _gru_cell_shapes(gates: Tensor, hidden_gates: Tensor, hx: Tensor, *biases: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])  # gates, the new state's, and the old state


def _gru_cell_backward_shapes(gradient: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    rows, hidden = gradient.shape
    gates = [gradient.new_empty(rows, 3 * hidden) for _ in range(2)]
    biases = [gradient.new_empty(3 * hidden) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(gradient), *biases)


def _pad_packed_sequence(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """As torch does it, one copy for each run of equal sizes, but asking for the sizes where torch reads memory."""
    sizes = [int(size) for size in batch_sizes.tolist()]
    rest = data.shape[1:]
    out = data.new_full((max(len(sizes), total_length), sizes[0], *rest), padding_value)
    time, row = 0, 0
    for size, run in itertools.groupby(sizes):
        steps = len(list(run))
        block = data.narrow(0, row, steps * size).view(steps, size, *rest)
        out.narrow(0, time, steps).narrow(1, 0, size).copy_(block)
        time, row = time + steps, row + steps * size
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(sizes[0])])
    return (out.transpose(0, 1) if batch_first else out), lengths


def _pack_padded_sequence_backward(gradient: Tensor, shape: Any, batch_sizes: Tensor, batch_first: bool) -> Tensor:
    """As torch does it, one copy for each place of a sequence."""
    sizes = [int(size) for size in batch_sizes.tolist()]
    longest, sequences = (shape[1], shape[0]) if batch_first else (shape[0], shape[1])
    out = gradient.new_zeros(longest, sequences, *shape[2:])
    for place, part in enumerate(gradient.split(sizes)):
        out[place].narrow(0, 0, sizes[place]).copy_(part)
    return out.transpose(0, 1) if batch_first else out


COMPOSITES: Final[dict[str, Callable[..., Any]]] = {
    **{f"{name}.input": partial(_rnn, mode) for name, mode in _MODES.items()},
    **{f"{name}.data": partial(_packed_rnn, mode) for name, mode in _MODES.items()},
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "_pad_packed_sequence": _pad_packed_sequence,
    "_pack_padded_sequence_backward": _pack_padded_sequence_backward,
}
SHAPES: Final[dict[str, Callable[..., Any]]] = {
    "_cudnn_rnn": _rnn_shapes,
    "_cudnn_rnn_backward": _rnn_backward_shapes,
    "_thnn_fused_lstm_cell": _lstm_cell_shapes,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward_shapes,
    "_thnn_fused_gru_cell": _gru_cell_shapes,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward_shapes,
}
