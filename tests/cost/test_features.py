"""What describes an op: families, relations to the device, and numbers that move the right way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.features import LAUNCH_FLOOR, alignment, density, describe, fill, inner_run
from foretell.graph import Input, Layout, Signature
from foretell.hardware import device

H200, T4 = device("h200"), device("t4")


def rows(*shape: int, dtype: str = "bfloat16") -> Layout:
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Layout(shape, strides, dtype)


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> Signature:
    return Signature("aten.mm.default", (rows(m, k, dtype=dtype), rows(k, n, dtype=dtype)), (rows(m, n, dtype=dtype),))


@given(m=st.integers(1, 8192), n=st.integers(1, 8192), k=st.integers(1, 8192))
def test_a_product_at_the_peak_is_its_roofline(m: int, n: int, k: int) -> None:
    known = describe(product(m, n, k), H200, tf32=False)
    assert known.roofline >= max(2 * m * n * k / H200.peak("bf16"), LAUNCH_FLOOR)
    assert all(math.isfinite(v) for v in known.values.values())
    assert known.values["m"] == pytest.approx(math.log2(m))


def test_what_is_relative_to_the_device_moves_with_it() -> None:
    large, small = (describe(product(512, 512, 512), d, tf32=False).values for d in (H200, T4))
    assert small["waves_64x64"] > large["waves_64x64"]  # fewer units, more waves
    assert small["in_cache"] > large["in_cache"]


def test_tf32_is_another_unit() -> None:
    plain, fast = (describe(product(64, 64, 64, "float32"), H200, tf32=on) for on in (False, True))
    assert plain.values["type"] != fast.values["type"]
    assert describe(product(4096, 4096, 4096, "float32"), H200, tf32=True).roofline < (
        describe(product(4096, 4096, 4096, "float32"), H200, tf32=False).roofline
    )


@pytest.mark.parametrize(
    ("layout", "kind", "run"),
    [
        (rows(2, 3, 4, 5), 1.0, 120),
        (Layout((2, 3, 4, 5), (60, 1, 15, 3), "float32"), 2.0, 1),
        (Layout((4, 6), (1, 4), "float32"), 3.0, 1),
        (Layout((4, 6), (0, 1), "float32"), 0.0, 6),
        (Layout((4, 6), (12, 2), "float32"), 0.0, 1),
        (Layout((), (), "float32"), 1.0, 1),
    ],
)
def test_layouts(layout: Layout, kind: float, run: int) -> None:
    assert density(layout) == kind
    assert inner_run(layout) == run


@given(st.integers(1, 10**6))
def test_alignment_divides(size: int) -> None:
    assert size % 2 ** int(alignment(size)) == 0


@given(st.floats(0.001, 63.9))
def test_the_last_wave_is_filled_in_part(waves: float) -> None:
    assert 0 < fill(waves) <= 1


def test_a_depthwise_convolution_is_known_as_one() -> None:
    x, weight, out = rows(8, 64, 56, 56), rows(64, 1, 3, 3), rows(8, 64, 56, 56)
    arguments = (("stride", (1, 1)), ("dilation", (1, 1)), ("transposed", False), ("groups", 64))
    values = describe(Signature("aten.convolution.default", (x, weight), (out,), arguments), H200, tf32=False).values
    assert values["depthwise"] == 1.0
    assert values["depth"] == pytest.approx(math.log2(9))


def scan(dim: int, *shape: int) -> Signature:
    x = rows(*shape, dtype="float32")
    return Signature("aten.cumsum.default", (x,), (x,), (("self", Input(0)), ("dim", dim)))


def test_a_scan_along_an_outer_side_waits_for_every_row() -> None:
    outer, inner = (describe(scan(dim, 900_000, 20), H200, tf32=False) for dim in (0, 1))
    assert outer.roofline > 100 * inner.roofline
    assert (outer.values["walked"], inner.values["walked"]) == (1.0, 0.0)
    cached = describe(scan(0, 90_000, 20), H200, tf32=False)
    assert outer.roofline == pytest.approx(20 * cached.roofline)  # ten times the rows, and memory for a cache


def attention(head: int, dtype: str = "float32") -> Signature:
    x = rows(8, 4, 1024, head, dtype=dtype)
    named = tuple((name, Input(i)) for i, name in enumerate(("query", "key", "value")))
    return Signature("aten._scaled_dot_product_efficient_attention.default", (x, x, x), (x,), named)


def test_narrow_heads_are_as_much_work_as_wide_ones() -> None:
    narrow, wide, wider = (describe(attention(head), H200, tf32=False).roofline for head in (8, 64, 128))
    assert narrow == pytest.approx(wide)
    assert wider == pytest.approx(2 * wide)


def test_attention_multiplies_fp32_as_it_is() -> None:
    assert describe(attention(64), H200, tf32=True) == describe(attention(64), H200, tf32=False)


def test_a_weight_gradient_of_volumes_is_summed_by_each_tile_alone() -> None:
    def described(dtype: str, *, tf32: bool = False) -> float:
        x, weight = rows(46, 8, 12, 64, 64, dtype=dtype), rows(8, 8, 1, 1, 1, dtype=dtype)
        mask = (("groups", 1), ("transposed", False), ("output_mask", (True, True, False)))
        s = Signature("aten.convolution_backward.default", (x, x, weight), (x, weight), mask)
        return describe(s, H200, tf32=tf32).roofline

    assert described("float32") == pytest.approx(36.5e-3, rel=0.03)  # measured
    assert described("bfloat16") < described("float32", tf32=True) < 1e-3
