"""Memory that an op takes inside itself and gives back: library workspaces, copies, partial sums.

Each formula is a pure function of the op's signature, registered for its operator. They were derived from
the rise of allocated memory inside every op of real training steps on an H200 (see `foretell bench memory`), and hold
for the kernels PyTorch chooses on NVIDIA GPUs; convolution workspaces are in `convolution.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from foretell.cost import convolution
from foretell.cost.attention_kernels import as_run_on
from foretell.cost.recurrent import keeps_weights_on_chip
from foretell.cost.roofline import on_tf32
from foretell.graph import ITEM_BYTES, Graph, Layout, Signature
from foretell.graph.operators import Registry, operator_of
from foretell.hardware import Device
from foretell.units import MIB, Bytes

_LEAST_GIVEN: Final = 128  # numbers a place that kernels which walk a sequence read: fewer are filled up
_GATES: Final = {2: 4, 3: 3}  # of LSTM and GRU, by the mode of cuDNN

formula: Final = Registry[Callable[[Signature, Device], Bytes]]("a workspace formula")


def temporary_bytes(graph: Graph, device: Device) -> list[Bytes]:
    """What each op of the graph takes while it runs, beyond its outputs."""
    if device.vendor != "NVIDIA":
        return [0] * len(graph.ops)
    return graph.calls.each(
        lambda call: _workspace(
            as_run_on(call.signature, device), device, on_tf32(call.signature.name, graph.precision, device)
        )
    )


@lru_cache(maxsize=1 << 14)  # plans and batches repeat most ops of each other
def _workspace(signature: Signature, device: Device, tf32: bool) -> Bytes:
    family = operator_of(signature.name).family
    if family == "convolution":
        return convolution.forward_workspace(signature, device, tf32=tf32)
    if family == "convolution_backward":
        return convolution.backward_workspace(signature, device, tf32=tf32)
    needed = formula.get(signature.name)
    return needed(signature, device) if needed else 0


def kept_workspaces(graph: Graph, device: Device) -> list[tuple[int, Bytes]]:
    """(op, bytes) of workspaces that cuBLAS takes at its first call on a thread and never gives back.

    Forward and backward run on two host threads, so a training step holds two of them. Transformer Engine has one more
    of its own, of the size that cuBLAS recommends.
    """
    if device.vendor != "NVIDIA":
        return []
    hopper = (device.compute_capability or (0, 0)) >= (9, 0)
    size, engines = (32 * MIB, 32 * MIB) if hopper else ((2 * 4096 + 8 * 16) * 1024, 4 * MIB)
    first: dict[bool, int] = {}
    for call, position in zip(graph.calls.distinct, graph.calls.first, strict=True):
        if operator_of(call.signature.name).family == "matmul":
            first.setdefault(call.phase == "backward", position)
    kept = [(position, size) for position in first.values()]
    return [*kept, (kept[0][0], engines)] if graph.calls.has_engine and kept else kept


def _copies(layouts: Sequence[Layout | None]) -> Bytes:
    """Kernels that read only dense rows first copy what is not."""
    return sum(x.nbytes for x in layouts if x is not None and not x.is_contiguous)


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@formula("aten.sum", "aten.mean")
def _reduction(s: Signature, device: Device) -> Bytes:
    """Long sums over outer dimensions are split over blocks, whose partial sums take 8 B an element, up to 1 MiB a multiprocessor."""
    x = s.inputs[0]
    dims = s.argument("dim")
    if not x.shape or not isinstance(dims, tuple) or not dims:
        return 0
    reduced = {int(d) % len(x.shape) for d in dims if isinstance(d, int)}
    inner = min((a for a, size in enumerate(x.shape) if size > 1), key=lambda a: x.strides[a], default=0)
    outputs = x.numel
    for axis in reduced:
        outputs //= max(x.shape[axis], 1)
    if inner in reduced or not outputs or outputs % 2 or x.numel // outputs < 1024:
        return 0
    return min(8 * x.numel, device.compute_units * MIB)


@formula("aten._softmax_backward_data")
def _softmax_backward(s: Signature, device: Device) -> Bytes:
    """The product of gradient and output is made whole before it is summed."""
    return s.inputs[0].nbytes


@formula("foretell.compiled_cross_entropy_backward")
def _compiled_loss(s: Signature, device: Device) -> Bytes:
    """Inductor does not scatter into a tensor it scales: the softmax is written anew, then copied back.

    Megatron's `fused_cross_entropy.py` says so, and how many gigabytes it costs.
    """
    return s.inputs[0].nbytes


@formula("aten._softmax", "aten._log_softmax", "aten.native_layer_norm", "aten.layer_norm", "aten.upsample_nearest2d_backward",
         "aten.upsample_bilinear2d_backward", "aten.max_pool3d_with_indices_backward", "aten.native_group_norm")  # fmt: skip
def _dense_first_input(s: Signature, device: Device) -> Bytes:
    return _copies(s.inputs[:1])


@formula("aten.max_pool2d")
def _max_pool(s: Signature, device: Device) -> Bytes:
    """Kept whole in inference: the indices, 8 B each, are made and dropped."""
    return 8 * s.outputs[0].numel


@formula("aten.native_layer_norm_backward", "aten.native_group_norm_backward")
def _norm_backward(s: Signature, device: Device) -> Bytes:
    return _copies(s.inputs[:2])


@formula("aten._safe_softmax")
def _safe_softmax(s: Signature, device: Device) -> Bytes:
    """A flag an element: is this score masked."""
    return s.inputs[0].numel


@formula("aten.roll")
def _roll(s: Signature, device: Device) -> Bytes:
    """One dimension is rolled after another, through a copy."""
    shifts = s.argument("shifts")
    return s.inputs[0].nbytes if isinstance(shifts, tuple) and len(shifts) > 1 else 0


@formula("aten.embedding_dense_backward")
def _embedding_backward(s: Signature, device: Device) -> Bytes:
    """Many indices are sorted and summed in fp32 segments; few take a kernel that needs nothing."""
    gradient, indices = s.inputs[0], s.inputs[1]
    if indices.numel <= 3072:
        return 0
    width = gradient.numel // indices.numel
    # A row of the table gets a segment for every ten of its indices, so a small table needs few.
    segments = min(indices.numel, s.outputs[0].shape[0] + indices.numel // 10)
    return segments * width * 4 + indices.numel * 48 + MIB


@formula("aten.index_put", "aten.index_put_", "aten._index_put_impl_")
def _index_put(s: Signature, device: Device) -> Bytes:
    """Accumulating sorts the indices first; values that are not dense are copied."""
    if not s.argument("accumulate"):
        return 0
    values = s.tensor("values")
    indices = s.tensors("indices")
    sorting = 96 * max((i.numel for i in indices), default=0)
    return sorting + _copies([values])


@formula("aten._scaled_dot_product_cudnn_attention_backward")
def _cudnn_attention_backward(s: Signature, device: Device) -> Bytes:
    """Query gradients and row sums in fp32; grouped heads also hold key and value gradients for every query head."""
    q, k = s.required_tensors("query", "key")
    if not q.numel:
        return 0
    rows = q.numel // q.shape[-1]
    grouped = 2 * q.numel // q.shape[-2] * k.shape[-2] * ITEM_BYTES[q.dtype] if k.shape[1] != q.shape[1] else 0
    return 4 * (q.numel + rows) + grouped


@formula("aten._scaled_dot_product_flash_attention_backward")
def _flash_attention_backward(s: Signature, device: Device) -> Bytes:
    """Query gradients in fp32 with rows padded to 128 and heads to 32, their row sums, and two dense copies."""
    [q] = s.required_tensors("query")
    batch, heads, rows, width = q.shape
    padded_rows = batch * heads * _rounded(rows, 128)
    return 4 * padded_rows * (_rounded(width, 32) + 1) + 2 * q.nbytes


@formula("aten._scaled_dot_product_efficient_attention_backward")
def _efficient_attention_backward(s: Signature, device: Device) -> Bytes:
    """Key-side accumulators in fp32 over whole tiles, 64 wide and 64 rows high (128 for wider heads), and row sums."""
    q, k = s.required_tensors("query", "key")
    batch, heads, rows, width = q.shape
    return 4 * batch * heads * (_rounded(k.shape[-2], 64 if width <= 64 else 128) * _rounded(width, 64) + rows)


@formula("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
def _rnn(s: Signature, device: Device) -> Bytes:
    """Fitted on 474 layers of random shapes, 4.3 % off in the mean: 8 MiB a layer and direction, weights, gates, copies of all places.

    Forward and backward take the same. In inference nothing is kept for a backward pass: instead of the gates, what passes
    between layers lies here.
    """
    x, hidden, weights = s.inputs[0], s.tensor("hx"), s.tensors("weight")
    if hidden is None or not x.shape or len(hidden.shape) < 3:
        return 0
    cells, batch, width = hidden.shape
    layers = s.argument("num_layers", 1)
    layers = max(layers, 1) if isinstance(layers, int) else 1
    directions = max(cells // layers, 1)
    places = x.numel // max(x.shape[-1], 1)
    given, out = x.numel, places * width * directions
    gates = _GATES.get(int(str(s.argument("mode", 1))), 1) * out if s.argument("train", True) else 0
    if keeps_weights_on_chip(s):
        given = places * max(x.shape[-1], _LEAST_GIVEN) if gates else given
        numbers = 3.4 * given + (8.1 + 1.4 * (layers > 1)) * out + 1.25 * gates + 15 * batch * width * cells
    else:
        numbers = (1.5 if gates else 1.2) * (given + out + max(given, out)) + 0.45 * gates + 8 * batch * width * cells
        numbers += 2.3 * out * (directions > 1) + (0 if gates else (layers - 1) * out)
    if s.argument("batch_first"):  # rows of a sequence lie together: they are copied place by place
        numbers += 1.15 * given
    return 8 * MIB * cells + int(numbers) * ITEM_BYTES[x.dtype] + sum(w.nbytes for w in weights)


@formula(
    "aten.cudnn_batch_norm",
    "aten.cudnn_batch_norm_backward",
    "aten.native_batch_norm",
    "aten.native_batch_norm_backward",
)
def _batch_norm(s: Signature, device: Device) -> Bytes:
    """Channels-last statistics are summed in stages."""
    x = s.inputs[0]
    return x.numel // 24 if x.is_channels_last else 0
