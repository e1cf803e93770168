"""Workspace formulas against an H200: literal cases, and what must hold for any shape."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foretell.cost import convolution
from foretell.cost.workspace import formula, kept_workspaces, temporary_bytes
from foretell.graph import Graph, Input, Layout, Op, Signature
from foretell.hardware import device
from foretell.precision import Precision
from foretell.units import MIB

H200 = device("h200")


def dense(*shape: int, dtype: str = "float32") -> Layout:
    return Layout(shape, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), dtype)


def channels_last(*shape: int, dtype: str = "float32") -> Layout:
    _, c, h, w = shape
    return Layout(shape, (c * h * w, 1, c * w, c), dtype)


def conv(
    x: Layout, w: Layout, *, stride: int = 1, padding: int = 0, groups: int = 1, transposed: bool = False
) -> Signature:
    out = [(size + 2 * padding - k) // stride + 1 for size, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    last = x.strides[1] == 1 and x.shape[1] > 1
    y = (channels_last if last else dense)(x.shape[0], w.shape[0], *out, dtype=x.dtype)
    arguments = (
        ("stride", (stride,)),
        ("padding", (padding,)),
        ("dilation", (1,)),
        ("transposed", transposed),
        ("groups", groups),
    )
    return Signature("aten.convolution.default", (x, w), (y,), arguments)


def backward(s: Signature, mask: tuple[bool, bool, bool] = (True, True, False)) -> Signature:
    x, w = s.inputs
    return Signature(
        "aten.convolution_backward.default", (s.outputs[0], x, w), (x, w), (*s.arguments, ("output_mask", mask))
    )


def taken(s: Signature, precision: str = "fp32") -> int:
    graph = Graph(
        name="one", ops=(Op(s, "forward", "", (), ()),), tensors=(), storages=(), precision=Precision.parse(precision)
    )
    return temporary_bytes(graph, H200)[0]


# (signature, precision, bytes measured)
MEASURED: list[tuple[Signature, str, int]] = [
    (conv(dense(32, 40, 112, 112, dtype="bfloat16"), dense(128, 40, 3, 3, dtype="bfloat16"), padding=1), "bf16", 134_965_760),
    (conv(dense(256, 640, 28, 28), dense(256, 640, 3, 3), padding=1), "fp32", 2_858_418_176),  # fft
    (conv(dense(64, 256, 4, 4), dense(768, 256, 3, 3), padding=1), "fp32", 497_811_456),  # fft of 16 × 16
    (conv(dense(256, 3, 224, 224), dense(40, 3, 3, 3), padding=1), "fp32", 0),
    (backward(conv(dense(512, 128, 56, 56), dense(24, 128, 3, 3), padding=1), (True, False, False)), "fp32", 690_749_440),  # tiled fft
    (backward(conv(dense(8, 128, 28, 28), dense(128, 128, 3, 3), padding=1), (False, True, False)), "fp32", 16_809_984),  # winograd
    (backward(conv(dense(16, 112, 7, 7), dense(2048, 112, 5, 5), padding=2), (False, True, False)), "fp32", 178_420_736),  # winograd, 5 × 5
    (conv(dense(1, 640, 64, 64, dtype="float16"), dense(640, 1, 7, 7, dtype="float16"), padding=3, groups=640), "fp16", 0),
]  # fmt: skip


@pytest.mark.parametrize(("signature", "precision", "measured"), MEASURED)
def test_convolutions_as_measured(signature: Signature, precision: str, measured: int) -> None:
    assert taken(signature, precision) == pytest.approx(measured, rel=0.02, abs=2 * MIB)


def test_tf32_transposes_to_tensor_cores_where_fp32_need_not() -> None:
    s = conv(dense(64, 128, 56, 56), dense(256, 128, 3, 3), stride=2, padding=1)
    assert taken(s, "tf32") > taken(s, "fp32") == 0


def test_a_gradient_in_another_layout_is_copied_first() -> None:
    s = backward(conv(channels_last(8, 64, 32, 32), channels_last(64, 64, 3, 3), padding=1))
    mixed = Signature(s.target, (dense(*s.inputs[0].shape), *s.inputs[1:]), s.outputs, s.arguments)
    assert taken(mixed) - taken(s) == s.inputs[0].nbytes


def test_an_fft_larger_than_the_device_is_not_taken() -> None:
    s = conv(dense(1, 2048, 224, 224), dense(2048, 2048, 5, 5), padding=2)
    assert taken(s) < H200.memory_bytes


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("shape", [(0, 8, 7, 7), (1, 8, 7, 7), (2, 3, 65, 9), (4, 8, 1, 1)])
@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 8), (1, 4)])
def test_workspaces_are_whole_and_never_negative(
    precision: str, shape: tuple[int, ...], kernel: int, groups: int
) -> None:
    groups = math.gcd(groups, shape[1])
    dtype = "bfloat16" if precision == "bf16" else "float32"
    for layout in (dense, channels_last):
        x, w = layout(*shape, dtype=dtype), layout(24, shape[1] // groups, kernel, kernel, dtype=dtype)
        s = conv(x, w, padding=kernel // 2, groups=groups)
        for signature in (s, backward(s), backward(s, (False, True, False)), backward(s, (True, False, False))):
            amount = taken(signature, precision)
            assert isinstance(amount, int)
            assert amount >= 0
            assert amount == 0 or shape[0] > 0


def test_every_algorithm_takes_more_for_a_larger_batch() -> None:
    def at(batch: int) -> convolution.Problem:
        return convolution.Problem(
            precision="fp32", channels_last=False, batch=batch, channels=64, filters=128, groups=2, input=(28, 28), output=(28, 28),
            kernel=(3, 3), stride=1, padding=1, dilation=1,
        )  # fmt: skip

    for name, algorithm in convolution.ALGORITHMS.items():
        for op in ("forward", "input", "weight"):
            assert algorithm(at(32), op) >= algorithm(at(8), op) >= 0, (name, op)


def attention(batch: int, heads: int, rows: int, width: int, dtype: str) -> Signature:
    q = dense(batch, heads, rows, width, dtype=dtype)
    name = "aten._scaled_dot_product_efficient_attention_backward.default"
    return Signature(
        name, (q,) * 4, (q,) * 3, tuple((n, Input(i)) for i, n in enumerate(("grad_out_", "query", "key", "value")))
    )


@pytest.mark.parametrize(
    ("shape", "measured"),
    [((32, 1, 512, 128), 8_458_240), ((16, 16, 512, 72), 67_665_920), ((2048, 2, 49, 32), 69_025_792)],
)
def test_efficient_attention_backward_as_measured(shape: tuple[int, int, int, int], measured: int) -> None:
    assert taken(attention(*shape, "float32")) == pytest.approx(measured, rel=0.02)


def reduction(x: Layout, *dims: int) -> Signature:
    return Signature("aten.sum.dim_IntList", (x,), (dense(1),), (("self", Input(0)), ("dim", dims), ("keepdim", True)))


@pytest.mark.parametrize(
    ("rows", "columns", "measured"),
    [(8192, 768, 48 * MIB), (50176, 768, 132 * MIB), (1024, 4096, 32 * MIB), (1000, 4096, 0), (4096, 50265, 0)],
)
def test_sums_over_rows_as_measured(rows: int, columns: int, measured: int) -> None:
    assert taken(reduction(dense(rows, columns, dtype="bfloat16"), 0)) == measured


def test_sums_over_columns_need_nothing() -> None:
    assert taken(reduction(dense(8192, 768), 1)) == 0


def test_a_small_embedding_table_needs_few_segments() -> None:
    def gradient(rows: int) -> Signature:
        inputs = (dense(32, 512, 768), dense(32, 512, dtype="int64"))
        return Signature("aten.embedding_dense_backward.default", inputs, (dense(rows, 768),))

    assert taken(gradient(30522)) == pytest.approx(56_164_352, rel=0.1)
    assert taken(gradient(2)) < 8 * MIB


def test_other_vendors_take_nothing_of_this() -> None:
    amd = device("mi300x")
    s = MEASURED[1][0]
    graph = Graph(name="one", ops=(Op(s, "forward", "", (), ()),), tensors=(), storages=())
    assert temporary_bytes(graph, amd) == [0]
    assert kept_workspaces(graph, amd) == []


def test_cublas_holds_one_workspace_a_thread() -> None:
    s = Signature("aten.mm.default", (dense(8, 8), dense(8, 8)), (dense(8, 8),))
    ops = tuple(Op(s, phase, "", (), ()) for phase in ("forward", "forward", "backward", "backward"))
    assert kept_workspaces(Graph(name="two", ops=ops, tensors=(), storages=()), H200) == [(0, 32 * MIB), (2, 32 * MIB)]


def test_registering_twice_is_an_error() -> None:
    def nothing(s: Signature, target: Any) -> int:
        return 0

    with pytest.raises(ValueError, match="registered already"):
        formula("aten.roll")(nothing)


def signal(batch: int, channels: int, filters: int, length: int, kernel: int) -> Signature:
    return conv(dense(batch, channels, length), dense(filters, channels, kernel), padding=kernel // 2)


def test_whole_transforms_end_where_cudnn_has_none() -> None:
    short, long = (
        convolution.problem(s, s.inputs[0], s.inputs[1], s.outputs[0], tf32=False)
        for s in (signal(64, 64, 64, 128, 3), signal(64, 64, 64, 4096, 3))
    )
    assert convolution.may_run("fft", short)
    assert not convolution.may_run("fft", long)
    # A signal is transformed as an image that is as high as it is wide.
    assert convolution.ALGORITHMS["fft"](short, "weight") == pytest.approx(2 * 8 * 256 * 129 * 8192, rel=0.01)


@pytest.mark.parametrize("length", [300, 1000, 4096, 16384])
@pytest.mark.parametrize("width", [8, 64, 250])
def test_long_signals_take_little_beside_their_tensors(length: int, width: int) -> None:
    s = signal(16, width, width, length, 5)
    tensors = 2 * s.inputs[0].nbytes + s.inputs[1].nbytes
    assert taken(s) <= 2 * tensors
    assert taken(backward(s)) <= 2 * tensors


def recurrent(
    mode: int, dtype: str, grid: tuple[int, int, int], hidden: int, layers: int, *, both: bool, first: bool
) -> Signature:
    """A layer in training; `grid` is batch, length and numbers a place."""
    batch, length, given = grid
    x = dense(*((batch, length) if first else (length, batch)), given, dtype=dtype)
    directions, gates = 2 if both else 1, {2: 4, 3: 3}.get(mode, 1)
    hx = dense(layers * directions, batch, hidden, dtype=dtype)
    weights = []
    for layer in range(layers):
        width = given if layer == 0 else hidden * directions
        weights += [dense(gates * hidden, width + hidden + 2, dtype=dtype)] * directions
    places = tuple(Input(2 + i) for i in range(len(weights)))
    arguments = (
        ("input", Input(0)), ("weight", places), ("hx", Input(1)), ("mode", mode), ("hidden_size", hidden), ("num_layers", layers),
        ("batch_first", first), ("train", True), ("bidirectional", both),
    )  # fmt: skip
    return Signature("aten._cudnn_rnn.default", (x, hx, *weights), (hx,), arguments)


@pytest.mark.parametrize(
    ("layer", "measured"),
    [
        (recurrent(3, "float32", (128, 256, 64), 128, 1, both=True, first=True), 426.0),
        (recurrent(2, "float32", (128, 256, 128), 128, 2, both=False, first=False), 370.0),
        (recurrent(2, "float16", (64, 128, 128), 128, 2, both=True, first=True), 98.0),
        (recurrent(1, "float32", (64, 256, 650), 256, 1, both=False, first=True), 364.6),
        (recurrent(2, "bfloat16", (64, 256, 256), 256, 1, both=False, first=False), 58.0),
        (recurrent(3, "float16", (128, 128, 512), 1024, 1, both=False, first=True), 194.3),
    ],
)
def test_recurrent_layers_take_more_where_their_weights_stay_on_chip(layer: Signature, measured: float) -> None:
    assert taken(layer) == pytest.approx(measured * MIB, rel=0.2)
