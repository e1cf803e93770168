"""Ops as other devices run them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from foretell.cost import generations, tiles
from foretell.cost.features import describe
from foretell.cost.flops import flops
from foretell.cost.model import DEFAULT, load_model
from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import Generations, transferred
from foretell.graph import Input, Layout, Signature
from foretell.hardware import Device, device

OWN = device("h200")
ATTAINED = Generations().attained
bandwidth, bound, clock = (
    partial(each, attained=ATTAINED) for each in (generations.bandwidth, generations.bound, generations.clock)
)
in_waves = partial(tiles.in_waves, times=ATTAINED.tiles)


def product(size: int, dtype: str) -> Signature:
    x = Layout.contiguous((size, size), dtype)
    return Signature("aten.mm.default", (x, x), (x,))


def linear(rows: int, columns: int, depth: int, dtype: str = "bfloat16") -> Signature:
    x, weight, y = (Layout.contiguous(shape, dtype) for shape in ((rows, depth), (depth, columns), (rows, columns)))
    return Signature("aten.mm.default", (x, weight), (y,))


def batch_norm(images: int, channels: int) -> Signature:
    x, per_channel = Layout.contiguous((images, channels, 56, 56), "float16"), Layout.contiguous((channels,), "float32")
    return Signature("aten.cudnn_batch_norm.default", (x, *[per_channel] * 4), (x,))


def there(signature: Signature, on: Device, operators: OperatorModels | None = None) -> float:
    seconds, _ = transferred([signature], OWN, operators or ours(), on, Generations(), tf32=False)
    return float(seconds[0])


def ours() -> OperatorModels:
    operators = load_model(DEFAULT).operators
    assert operators is not None
    return operators


def test_an_accelerator_comes_as_near_to_its_peaks_as_our_device() -> None:
    """Its units are no GPU's: two dozen of them are not a sixth of an H200."""
    gaudi, mm = device("gaudi2"), product(4096, "bfloat16")
    [here] = ours().seconds([mm.name], [describe(mm, OWN, tf32=False)])
    least = bound(mm, gaudi, tf32=False)
    assert there(mm, gaudi) / least == pytest.approx(here / bound(mm, OWN, tf32=False), rel=0.01)


def test_an_op_is_transferred_to_its_own_device_as_it_is() -> None:
    for signature in (product(64, "bfloat16"), product(4096, "bfloat16"), product(2048, "float32"), batch_norm(64, 32)):
        [here] = ours().seconds([signature.name], [describe(signature, OWN, tf32=False)])
        assert there(signature, replace(OWN, name="another")) == pytest.approx(here, rel=0.02)


def test_more_arithmetic_per_clock_makes_large_products_faster() -> None:
    """An H200 and a B200 have about as many units and clocks."""
    large, small = product(8192, "bfloat16"), product(128, "bfloat16")
    assert there(large, OWN) > 1.6 * there(large, device("b200"))
    assert there(small, OWN) < 1.3 * there(small, device("b200"))


def convolved(channels: int, kernel: int, stride: int = 1) -> Signature:
    x, w, y = (
        Layout.contiguous(shape, "float32")
        for shape in (
            (64, channels, 28, 28),
            (channels, channels, kernel, kernel),
            (64, channels, 28 // stride, 28 // stride),
        )
    )
    more = (("stride", (stride, stride)), ("padding", (kernel // 2,) * 2), ("groups", 1), ("transposed", False))
    return Signature("aten.convolution.default", (x, w), (y,), (("input", Input(0)), ("weight", Input(1)), *more))


def test_a_norm_that_reads_twice_follows_the_memory_of_a_board() -> None:
    large, board = batch_norm(64, 512), device("rtx-3090")
    [x, *_] = large.inputs
    assert there(large, board) > 3 * x.nbytes / bandwidth(board)
    counted = bound(replace(large, target="aten.relu.default"), board, tf32=False)
    assert bound(large, board, tf32=False) == pytest.approx(1.5 * counted, rel=0.01)


@pytest.mark.parametrize("name", ["v100-32g-sxm", "t4", "a100-40g-pcie"])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 2)])
def test_no_fp32_convolution_is_past_the_peak_but_by_winograd(name: str, kernel: int, stride: int) -> None:
    board, op = device(name), convolved(1024, kernel, stride)
    assert there(op, board) > flops(op) / board.peak("fp32")


def test_no_learned_factor_brings_a_product_past_the_peak() -> None:
    board, large = device("v100-32g-pcie"), product(8192, "float32")
    quick = Generations(factors={"7.0": {"matmul fp32": 0.5}})
    found, _ = transferred([large], OWN, ours(), board, quick, tf32=False)
    assert found[0] == pytest.approx(flops(large) / board.peak("fp32"))
    assert found[0] < there(large, board)


def attention_backward(head: int, value: int, kernel: str) -> Signature:
    q, v = (Layout.contiguous((1, 128, 4096, size), "bfloat16") for size in (head, value))
    names = {"grad_out": v, "query": q, "key": q, "value": v, "out": v}
    arguments = tuple((name, Input(i)) for i, name in enumerate(names))
    target = f"aten._scaled_dot_product_{kernel}_attention_backward.default"
    return Signature(target, tuple(names.values()), (q, q, v), (*arguments, ("is_causal", True)))


def test_attention_that_is_written_anew_for_a_generation_gains_as_its_peak_does() -> None:
    """cuDNN's own tables have GB200 2.4 times as fast as H200 with heads of 128, 2.6 times with 192 and 128."""
    for head, value in ((128, 128), (192, 128)):
        cudnn = attention_backward(head, value, "cudnn")
        assert there(cudnn, OWN) / there(cudnn, device("gb200")) == pytest.approx(2.5, rel=0.12)
    flash = attention_backward(128, 128, "flash")  # FlashAttention 2 runs on units of before
    assert there(flash, OWN) < 1.5 * there(flash, device("gb200"))


def test_one_tile_more_than_units_takes_another_wave() -> None:
    """An A100's 108 units make 96 tiles of 256 by 128 as fast as 80, and 112 take more; Hopper's share what is left."""
    a100, hopper = device("a100-80g-sxm"), device("h100-sxm")
    few, most, more = (linear(1024, columns, 4096) for columns in (2560, 3072, 3584))
    assert bound(few, a100, tf32=False) == pytest.approx(bound(most, a100, tf32=False), rel=0.02)
    assert bound(more, a100, tf32=False) > 1.4 * bound(most, a100, tf32=False)
    assert bound(more, hopper, tf32=False) < 1.2 * bound(most, hopper, tf32=False)


def test_a_long_sum_is_split_among_units() -> None:
    """The gradient of a small weight over millions of rows is one tile, but no unit makes it alone."""
    card, depth = device("rtx-3090"), 10_000_000
    alone = 2 * 64 * 64 * depth * card.compute_units / card.peak("bf16")
    assert bound(linear(6, 6, depth), card, tf32=False) < alone / 30


def test_units_that_wait_leave_their_power_to_others() -> None:
    """An L40S does not hold its clock: a last wave that is nearly empty costs it less than it costs an A100."""
    lost = {}
    for name, columns in (("a100-80g-sxm", 15 * 128), ("l40s", 19 * 128)):  # 120 tiles on 108 units, 152 on 142
        card, product = device(name), linear(2048, columns, 8192)
        lost[name] = bound(product, card, tf32=False) * clock(card, "bf16") * card.peak("bf16") / flops(product)
    assert lost["l40s"] < 1.3 < 1.5 < lost["a100-80g-sxm"]


def test_a_weight_is_read_from_memory_and_an_activation_from_the_cache() -> None:
    card = device("l40s")
    weights, activations = linear(64, 8192, 2048), linear(8192, 64, 2048)
    assert bound(weights, card, tf32=False) > 1.3 * bound(activations, card, tf32=False)
    assert bound(linear(64, 512, 512), card, tf32=False) == pytest.approx(bound(linear(512, 64, 512), card, tf32=False))


def test_what_just_fits_in_the_cache_stays_and_twice_that_does_not() -> None:
    """An L40S has 96 MB: activations of 60 are not read from memory, those of 120 are, all of them."""
    card = device("l40s")
    fits, twice = (bound(linear(rows, 32, 8192), card, tf32=False) for rows in (3840, 7680))
    assert twice > 3 * fits
    assert twice > 7680 * 8192 * 2 / bandwidth(card)


def test_a_weight_stays_where_half_a_dozen_of_its_size_do() -> None:
    card = device("l40s")
    stays, goes = (bound(linear(64, columns, 2048), card, tf32=False) for columns in (3072, 6144))
    assert goes > 2.5 * stays


def test_what_waits_for_memory_gains_nothing_by_faster_units() -> None:
    """Of a short sum reading and ending are a good part, of a long one little."""
    short, long = (
        in_waves(1, 4096, 4096, depth, 108, 3e14) / in_waves(1, 4096, 4096, depth, 108, 6e14) for depth in (1024, 65536)
    )
    assert 1 < short < 1.7 < 1.9 < long < 2


def test_boards_of_little_power_do_not_hold_their_clock() -> None:
    held = {name: clock(device(name), "fp16") for name in ("t4", "l4", "a10", "l40s", "h100-pcie", "a100-80g-sxm")}
    assert held["a100-80g-sxm"] == 1.0
    assert all(clocks < 0.9 for name, clocks in held.items() if name != "a100-80g-sxm")
    assert held["l4"] < 0.6
    assert clock(device("rtx-4090"), "fp16") > 1
    assert clock(device("titan-xp"), "fp32") < clock(device("rtx-3090"), "fp32")
    assert clock(replace(device("l4"), power_watts=150.0), "fp16") > held["l4"]
    assert clock(device("mi300x"), "fp16") == clock(device("gaudi2"), "bf16") == 1.0


def test_check_bits_among_the_data_take_their_part_of_the_bandwidth() -> None:
    parts = {name: bandwidth(device(name)) / device(name).bandwidth for name in ("t4", "l4", "rtx-4090", "h100-sxm")}
    assert parts["t4"] == parts["l4"] < 0.8
    assert parts["rtx-4090"] == parts["h100-sxm"] > 0.9


def test_what_fits_in_a_cache_is_not_read_from_memory() -> None:
    x = Layout.contiguous((2**20,), "float32")
    small = Signature("aten.relu.default", (x,), (x,))
    l4 = device("l4")
    assert bound(small, l4, tf32=False) < bound(small, replace(l4, l2_bytes=2**20), tf32=False)


def test_a_kernel_with_few_blocks_does_not_miss_the_units_it_has_no_use_for() -> None:
    """A norm has a block for each channel: 16 of them run on 16 units, of 82 as of 132."""
    [few, many] = ours().seconds(
        ["aten.cudnn_batch_norm"] * 2,
        [describe(s, OWN, tf32=False) for s in (batch_norm(512, 16), batch_norm(512, 512))],
    )
    narrow = device("rtx-3090")
    assert there(batch_norm(512, 16), narrow) / few < there(batch_norm(512, 512), narrow) / many


def test_a_winograd_convolution_beats_the_roofline() -> None:
    card = device("v100-32g-pcie")
    three, five = (describe(convolution(k), card, tf32=False).roofline for k in (3, 5))
    assert bound(convolution(3), card, tf32=False) < three
    assert bound(convolution(3), card, tf32=False) / three < bound(convolution(5), card, tf32=False) / five


def test_a_small_op_is_no_smaller_to_a_processor() -> None:
    """What a GPU loses on a tiny product, a launch and idle units, no CPU does."""
    cpu, tiny = device("cpu"), product(32, "float32")
    assert there(tiny, OWN) > 10 * bound(tiny, OWN, tf32=False)
    assert there(tiny, cpu) < 4 * bound(tiny, cpu, tf32=False)


def convolution(kernel: int, dtype: str = "float32") -> Signature:
    x = Layout.contiguous((32, 256, 28, 28), dtype)
    weight = Layout.contiguous((256, 256, kernel, kernel), dtype)
    more = (("stride", (1, 1)), ("padding", (kernel // 2,) * 2), ("groups", 1))
    return Signature("aten.convolution.default", (x, weight), (x,), more)


def gradients(kernel: int, dtype: str) -> Signature:
    [x, weight], more = convolution(kernel, dtype).inputs, dict(convolution(kernel, dtype).arguments)
    mask = {"output_mask": (True, True, False)}
    return Signature("aten.convolution_backward.default", (x, x, weight), (x, weight), tuple((more | mask).items()))


def on_units(signature: Signature, on: str, *, tf32: bool) -> float:
    return float(transferred([signature], OWN, ours(), device(on), Generations(), tf32=tf32)[0][0])


@pytest.mark.parametrize("signature", [convolution(1), convolution(3), convolution(5), product(2048, "float32")])
def test_the_same_chip_takes_the_same(signature: Signature) -> None:
    """What our device was measured to attain is not forgotten on the way to a board that differs in its name alone."""
    [here] = ours().seconds([signature.name], [describe(signature, OWN, tf32=False)])
    assert there(signature, replace(OWN, name="twin")) == pytest.approx(here, rel=0.03)


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(
    ("better", "than"),
    [("b200", "h200"), ("rtx-5070", "rtx-4070"), ("rtx-3070", "rtx-2080"), ("h100-pcie", "rtx-a6000")],
)
def test_a_better_board_is_not_slower_in_fp32_convolutions(better: str, than: str, kernel: int) -> None:
    assert there(convolution(kernel), device(better)) <= 1.01 * there(convolution(kernel), device(than))


@pytest.mark.parametrize("name", ["mi100", "mi300x", "mi355x", "gaudi2", "gaudi3", "m3-max", "arc-pro-b60", "cpu"])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_no_maker_s_convolutions_beat_what_was_measured_of_hopper(name: str, kernel: int) -> None:
    chip, one = device(name), convolution(kernel)
    shares = [flops(one) / (there(one, each) * each.peak("fp32")) for each in (chip, OWN)]
    assert shares[0] <= 1.05 * shares[1]


@pytest.mark.parametrize("name", ["h100-sxm", "a100-80g-sxm", "mi300x", "gaudi2", "gaudi3", "rtx-4090", "rtx-5090"])
@pytest.mark.parametrize("signature", [convolution(1), convolution(3), product(512, "float32")])
def test_units_that_may_be_used_make_nothing_slower(name: str, signature: Signature) -> None:
    assert on_units(signature, name, tf32=True) <= on_units(signature, name, tf32=False)


@pytest.mark.parametrize(
    ("name", "dtype"), [("t4", "bfloat16"), ("v100-16g-sxm", "bfloat16"), ("cpu", "bfloat16"), ("p100-sxm", "float16")]
)
@pytest.mark.parametrize("kernel", [1, 3])
def test_without_units_of_16_bits_a_product_takes_about_what_fp32_does(name: str, dtype: str, kernel: int) -> None:
    """Its numbers are read and written in half the bytes, and no kernel saves arithmetic."""
    in_fp32, half = (there(gradients(kernel, kept), device(name)) for kept in ("float32", dtype))
    assert 0.9 * in_fp32 < half < 1.7 * in_fp32


def test_fp16_on_a_chip_of_bf16_alone_takes_what_bf16_does() -> None:
    assert there(product(1024, "float16"), device("gaudi")) == there(product(1024, "bfloat16"), device("gaudi"))


@pytest.mark.parametrize("name", ["gaudi", "gaudi2", "gaudi3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_units_of_16_bits_make_no_small_convolution_slower(name: str, dtype: str) -> None:
    """They attain less of a higher peak on an H200, by which an accelerator whose peak is not as high was too slow."""
    small = [Layout.contiguous((8, 64, 40, 40), kept) for kept in ("float32", dtype)]
    weights = [Layout.contiguous((64, 64, 3, 3), kept) for kept in ("float32", dtype)]
    more = (("stride", (1, 1)), ("padding", (1, 1)), ("groups", 1))
    in_fp32, half = (
        there(Signature("aten.convolution.default", (x, w), (x,), more), device(name))
        for x, w in zip(small, weights, strict=True)
    )
    assert half <= in_fp32


@pytest.mark.parametrize("name", ["mi300x", "gaudi2", "cpu"])
def test_libraries_of_other_makers_run_depthwise_convolutions_of_both_halves(name: str) -> None:
    """On NVIDIA boards torch has cuDNN run those of fp16, and its own kernels those of bf16."""
    chip, weights = device(name), dict(convolution(3).arguments) | {"groups": 256}
    found = []
    for dtype in ("float16", "bfloat16"):
        x, weight = Layout.contiguous((32, 256, 28, 28), dtype), Layout.contiguous((256, 1, 3, 3), dtype)
        found.append(there(Signature("aten.convolution.default", (x, weight), (x,), tuple(weights.items())), chip))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["gaudi", "gaudi2", "cpu"])
@pytest.mark.parametrize("backward", [False, True])
def test_batch_norms_of_bf16_run_as_those_of_fp16_where_torch_has_no_kernels_for_boards(
    name: str, backward: bool
) -> None:
    """They were priced as torch's CUDA kernels, twice as slow as cuDNN's, on processors and accelerators too."""
    assert norm_of_16_bits(device(name), "bfloat16", backward) == pytest.approx(
        norm_of_16_bits(device(name), "float16", backward), rel=0.02
    )
    assert norm_of_16_bits(device("a100-40g-sxm"), "bfloat16", backward) > 1.3 * norm_of_16_bits(
        device("a100-40g-sxm"), "float16", backward
    )


def norm_of_16_bits(chip: Device, dtype: str, backward: bool) -> float:
    """Seconds of what torch runs on a board: its own kernel for bf16, cuDNN's for fp16."""
    x, numbers = Layout.contiguous((16, 64, 40, 40), dtype), Layout.contiguous((64,), "float32")
    inputs, outputs = ((x, x) if backward else (x,)), (x, numbers, numbers)
    numbers_in, more = (numbers,) * (5 if backward else 4), (Layout.contiguous((0,), "uint8"),)
    if dtype == "bfloat16":
        target = f"aten.native_batch_norm{'_backward' * backward}.default"
        return there(Signature(target, (*inputs, *numbers_in), outputs), chip)
    target = f"aten.cudnn_batch_norm{'_backward' * backward}.default"
    ins, outs = ((*more,), ()) if backward else ((), (*more,))
    return there(Signature(target, (*inputs, *numbers_in, *ins), (*outputs, *outs)), chip)


@pytest.mark.parametrize("name", ["gaudi2", "gaudi3"])
def test_a_product_of_fewer_rows_takes_no_longer(name: str) -> None:
    """Rows up to the next tile may be left empty: fewer of them were 4 % slower than all."""
    few, all_of_them = (there(linear(rows, 4096, 3072, "float32"), device(name)) for rows in (48, 64))
    assert few <= all_of_them
