"""LoRA, quantized weights and 8-bit optimizers: what is kept, what is trained, what runs."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch

from foretell import Graph, capture_graph
from foretell.errors import SourceError
from foretell.sources.resolve import load_workload

SMALL = {"layers": "2", "seq": "32", "batch": "1", "precision": "bf16"}


@cache
def small(**settings: str) -> Graph:
    return capture_graph("hf/tinyllama-1.1b", {**SMALL, **settings})


def linear_numbers() -> int:
    """Of the linear layers of two of its blocks: attention with grouped queries, and a gated MLP."""
    return 2 * (2 * 2048 * 2048 + 2 * 2048 * 256 + 3 * 2048 * 5632)


def names(graph: Graph, phase: str) -> Counter[str]:
    return Counter(op.signature.name for op in graph.ops if op.phase == phase)


def test_adapters_alone_are_trained() -> None:
    plain, lora = small(), small(lora_rank="16")
    added = 2 * sum(
        16 * (a + b) for a, b in [(2048, 2048), (2048, 256), (2048, 256), (2048, 2048), *[(2048, 5632)] * 3]
    )
    assert lora.bytes_of("gradient") == 2 * added
    assert lora.bytes_of("parameter") - plain.bytes_of("parameter") == 2 * added


def test_four_bits_take_half_a_byte_and_their_scales() -> None:
    lora, four = small(lora_rank="16"), small(lora_rank="16", quantize="nf4")
    saved = lora.bytes_of("parameter") - four.bytes_of("parameter")
    kept = (
        0.5 + 1 / 64 + 2 / 64 / 256
    )  # half a byte, a byte of scale per block, and the scales of scales (cast to bf16)
    assert saved == pytest.approx(linear_numbers() * (2 - kept), rel=1e-3)
    assert four.facts.parameters == lora.facts.parameters  # as many, in fewer bits


def test_weights_are_dequantized_in_both_passes() -> None:
    graph = small(lora_rank="16", quantize="nf4")
    assert names(graph, "forward")["bitsandbytes.dequantize_4bit"] == 14
    assert (
        names(graph, "backward")["bitsandbytes.dequantize_4bit"] == 14 - 3
    )  # no gradient is wanted of what q, k and v read first
    whole = {op.outputs[0] for op in graph.ops if op.signature.name == "bitsandbytes.dequantize_4bit"}
    assert all(graph.storages[graph.tensors[t].storage].role == "temporary" for t in whole)


def test_eight_bits_multiply_integers() -> None:
    graph = small(lora_rank="16", quantize="int8")
    assert names(graph, "forward")["aten._int_mm"] == 14
    saved = small(lora_rank="16").bytes_of("parameter") - graph.bytes_of("parameter")
    assert saved == pytest.approx(linear_numbers(), rel=0.01)


def test_quantized_weights_need_something_to_train() -> None:
    with torch.device("meta"), pytest.raises(SourceError, match="Set lora_rank=16"):
        load_workload("hf/tinyllama-1.1b", {**SMALL, "quantize": "nf4"}).model()
    with torch.device("meta"), pytest.raises(SourceError, match="names no layer"):
        load_workload("hf/tinyllama-1.1b", {**SMALL, "lora_rank": "8", "lora_targets": "c_attn"}).model()


def test_8_bit_state_is_a_quarter_of_adams() -> None:
    eight = small(optimizer="adamw-8bit")
    assert eight.bytes_of("optimizer") == pytest.approx(
        small().bytes_of("parameter"), rel=0.02
    )  # of bf16: two bytes each
    assert names(eight, "optimizer")["bitsandbytes.optimizer_update_8bit_blockwise"] > 10


def test_paged_state_is_the_hosts() -> None:
    paged = small(optimizer="adamw-8bit-paged", lora_rank="16")
    assert paged.bytes_of("optimizer") == 0
    assert paged.bytes_of("host") > 0
    assert "paged-optimizer" in {caveat.code for caveat in paged.caveats}
