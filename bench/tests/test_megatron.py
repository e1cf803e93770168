"""Memory of Megatron's recipes: rules checked against counts made by hand, and by how they must scale."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.sources import megatron
from foretell_bench.sources.megatron import peak_allocated, recipe
from foretell_bench.sources.trainers import trainer

from foretell.errors import InputError

SMALL = {
    "world_source": "recipe_at_HEAD", "model_family": "gpt", "platform": "a100", "nodes": "1.0", "gpus_per_node": "8.0",
    "num_layers": "12.0", "hidden_size": "512.0", "num_attention_heads": "8.0", "seq_length": "1024.0",
    "max_position_embeddings": "1024.0", "micro_batch_size": "4.0", "global_batch_size": "32.0",
    "tensor_model_parallel_size": "1.0", "pipeline_model_parallel_size": "1.0", "use_distributed_optimizer": "True",
    "transformer_impl": "transformer_engine", "attention_backend": "unfused", "deterministic_mode": "True",
}  # fmt: skip


def row(**changed: str) -> dict[str, str]:
    columns = (*megatron._NUMBERS, *megatron._SWITCHES, *megatron._WORDS)
    return {**dict.fromkeys(columns, ""), **SMALL, **changed}


def test_parameters_of_a_gpt_by_hand() -> None:
    layer = 12 * 512**2 + 13 * 512
    shared, experts = megatron._parameters(recipe(row()))
    assert shared == 12 * layer + 2 * 512 + 50304 * 512 + 1024 * 512
    assert experts == 0


def test_a_vocabulary_is_padded_for_every_split() -> None:
    assert megatron._padded(recipe(row())) == 50304
    assert megatron._padded(recipe(row(tensor_model_parallel_size="8"))) == 51200


def test_activations_of_a_layer_are_those_of_korthikanti() -> None:
    """Bytes of one layer: tokens × width × (34 + 5 heads × tokens / width)."""
    made = recipe(row())
    tokens, width, heads = 1024, 512, 8
    known = 4 * tokens * width * (34 + 5 * heads * tokens / width)
    assert megatron._layer(made, trainer("megatron"), tokens, tokens) == pytest.approx(known)


def test_states_follow_replicas() -> None:
    def states(**changed: str) -> float:
        return megatron._states(recipe(row(**changed)), trainer("megatron"))

    shared, _ = megatron._parameters(recipe(row()))
    assert states() == pytest.approx(shared * (6 + 12 / 8))
    assert states(use_distributed_optimizer="") == pytest.approx(shared * 18)
    assert states(use_megatron_fsdp="True") == pytest.approx(shared * 18 / 8)
    assert states(optimizer="muon") < states()


@pytest.mark.parametrize(
    "less",
    [
        {"tensor_model_parallel_size": "2"},
        {"pipeline_model_parallel_size": "4"},
        {"attention_backend": "flash"},
        {"micro_batch_size": "2"},
        {"disable_bias_linear": "True"},
        {"context_parallel_size": "2"},
        {"vocab_size": "32000"},
    ],
)
def test_what_takes_less(less: dict[str, str]) -> None:
    assert peak_allocated(recipe(row(**less))) < peak_allocated(recipe(row()))


def test_an_interleaved_last_stage_holds_more_than_its_own_layers() -> None:
    plain = row(pipeline_model_parallel_size="4")
    interleaved = row(pipeline_model_parallel_size="4", num_layers_per_virtual_pipeline_stage="1")
    assert recipe(interleaved).chunks == 3
    assert peak_allocated(recipe(interleaved)) > 1.5 * peak_allocated(recipe(plain))


def test_experts_are_shared_out() -> None:
    eight = row(model_family="moe", num_experts="8", moe_router_topk="2", expert_tensor_parallel_size="1")
    spread = {**eight, "expert_model_parallel_size": "8"}
    _, whole = megatron._parameters(recipe(eight))
    _, part = megatron._parameters(recipe(spread))
    assert part == pytest.approx(whole / 8)


def test_rows_that_say_too_little_are_counted(tmp_path: Path) -> None:
    good: dict[str, Any] = row()
    good["mem_max_allocated_bytes"] = peak_allocated(recipe(good)) / 1.02
    rows = [good, {**good, "model_family": "mimo"}, {**good, "context_parallel_size": "3"}, {**good, "hidden_size": ""},
            {**good, "world_source": "default"}, {**good, "mem_max_allocated_bytes": ""}]  # fmt: skip
    with (tmp_path / "megatron_memory.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, good.keys())
        writer.writeheader()
        writer.writerows(rows)
    median, mean = megatron.figures(tmp_path, lambda text: None, 1)
    assert median.value == pytest.approx(0.02, abs=1e-6)
    assert median.rows == mean.rows == 1
    for why in ("mimo", "ranks do not divide", "no hidden_size", "no peak reported"):
        assert f"1 not counted: {why}" in median.note or why in median.note


def test_a_recipe_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="do not divide"):
        recipe(row(tensor_model_parallel_size="3"))


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe(row()).tp = 2  # type: ignore[misc]
