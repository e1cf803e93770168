"""Long causal attention attains what was measured of its kernel, on boards whose instructions it was measured with."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foretell.cost.flops import flops, skipped
from foretell.cost.model import load_model
from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import device

from ..parallel.models import graph


def rate(on: str, kernel: str, length: int, heads: int = 32, pieces: int = 1) -> float:
    """TFLOP/s of a forward pass, on one of several ranks that share a sequence."""
    q = Layout((1, heads, length // pieces, 128), (heads * length * 128, 128, heads * 128, 1), "bfloat16")
    x = Layout((1, heads, length, 128), (heads * length * 128, 128, heads * 128, 1), "bfloat16")
    sums = Layout.contiguous((1, heads, length, 1), "float32")
    names = ("query", "key", "value")
    arguments = (*((name, Input(i)) for i, name in enumerate(names)), ("is_causal", True), ("compute_log_sumexp", True))
    arguments += (("piece_by_piece", True),) if pieces > 1 else ()
    s = Signature(f"aten._scaled_dot_product_{kernel}_attention.default", (q, x, x), (q, sums), arguments)
    graph = Graph(
        name="attention", ops=(Op(s, "forward", "", (0, 1, 2), (3, 4)),),
        tensors=(Tensor(q, 0), Tensor(x, 1), Tensor(x, 2), Tensor(q, 3), Tensor(sums, 4)),
        storages=tuple(Storage(x.nbytes, "input", -1, 1) for _ in range(5)), training=False,
    )  # fmt: skip
    return flops(s) * (1 - skipped(s)) / load_model().price(graph, device(on)).prices[0].seconds * 1e-12


def test_flash_attention_2_stays_far_below_hoppers_own_kernels() -> None:
    """Shah et al., FlashAttention-3, 2024: at most 370 TFLOP/s, where cuDNN's has 600 and more."""
    for length in (8192, 32768):
        assert 280 < rate("h200", "flash", length) < 370
        assert 550 < rate("h200", "cudnn", length) < 700


def test_earlier_boards_have_the_instructions_it_was_written_for() -> None:
    """Dao, FlashAttention-2, 2023: about 200 of an A100's 312."""
    assert 170 < rate("a100-80g-sxm", "flash", 16384) < 230


@pytest.mark.parametrize("kernel", ["flash", "cudnn"])
def test_longer_sequences_attain_no_less(kernel: str) -> None:
    rates = [rate("h200", kernel, length) for length in (1024, 2048, 4096, 8192, 16384, 65536)]
    assert all(after > 0.97 * before for before, after in pairwise(rates))


def test_the_first_flash_attention_takes_twice_as_long() -> None:
    first, second = (
        [op.signature for op in graph("llama", precision="bf16", attention=name).ops if op.signature.tensor("query")]
        for name in ("flash1", "flash2")
    )
    assert len(first) == len(second) == 6
    for on in (device("h200"), device("a100-80g-sxm")):
        learned = load_model()._learn([*first, *second], on, False)
        assert all(learned[a].seconds > 1.2 * learned[b].seconds for a, b in zip(first, second, strict=True))
        assert sum(learned[a].seconds for a in first) <= 2.2 * sum(learned[b].seconds for b in second)


def test_pieces_of_a_ring_attain_what_pieces_attain() -> None:
    assert rate("h200", "cudnn", 16384, pieces=4) < 0.95 * rate("h200", "cudnn", 16384)


def test_few_blocks_do_not_fill_a_device() -> None:
    assert rate("h200", "cudnn", 4096, heads=1) < 0.7 * rate("h200", "cudnn", 4096, heads=32)
