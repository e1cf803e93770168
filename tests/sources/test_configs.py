"""Configurations of trainers: what they come to, and that no key of theirs is lost in silence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foretell
from foretell.errors import PlanError, SourceError
from foretell.plans import Plan
from foretell.sources.config import function_of_entries
from foretell.sources.configs import Configuration, configuration_of
from foretell.sources.configs.shell import arguments
from tests.capture.tiny import mlp, workload

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"
EIGHT = 8


def of(name: str) -> Configuration:
    found = configuration_of(str(EXAMPLES / name))
    assert found is not None
    return found


def written(folder: Path, name: str, content: Any) -> Configuration:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found = configuration_of(str(path))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "trainer", "plan"),
    [
        ("accelerate_fsdp.yaml", "accelerate", "dp=8,zero=3,checkpointing=full"),
        ("ds_zero2.json", "DeepSpeed", "dp=8,zero=2,grad_accumulation=8,bucket_bytes=400000000,sharding=deepspeed"),
        (
            "ds_zero3_offload.json",
            "DeepSpeed",
            "dp=8,zero=3,bucket_bytes=1000000000,sharding=deepspeed,offload=parameters",
        ),
        ("torchtitan_llama3_8b.toml", "torchtitan", "dp=8,zero=3,checkpointing=0.5"),
        ("axolotl_qlora.yml", "axolotl", "dp=8"),
        ("llamafactory_lora.yaml", "LLaMA-Factory", "dp=8,zero=2,bucket_bytes=400000000,sharding=deepspeed"),
        ("training_args.json", "Hugging Face's Trainer", "dp=8,zero=3"),
        ("lightning.yaml", "Lightning", "dp=8,zero=3"),
        (
            "megatron_gpt.sh",
            "Megatron-LM",
            "dp=2,tp=2,pp=2,zero=1,sequence_parallel=true,stages=12-12,checkpointing=selective,grad_accumulation=32",
        ),
    ],
)
def test_each_example_is_recognised_and_planned(name: str, trainer: str, plan: str) -> None:
    found = of(name)
    assert found.trainer == trainer
    assert found.template().plan_for(EIGHT) == Plan.parse(plan)


def test_the_settings_of_a_step_are_the_files() -> None:
    assert of("axolotl_qlora.yml").settings == {
        "batch": 1, "seq": 2048, "grad_accumulation": 4, "optimizer": "adamw-8bit-paged", "clip_grad_norm": 1.0,
        "precision": "bf16", "lora_rank": 16, "lora_targets": "all", "quantize": "nf4", "checkpointing": True,
    }  # fmt: skip
    assert of("axolotl_qlora.yml").model == "hf/llama-3-8b"
    assert of("llamafactory_lora.yaml").model == "hf/qwen2.5-7b"


def test_a_global_batch_becomes_accumulation(tmp_path: Path) -> None:
    found = written(tmp_path, "ds.json", {"train_batch_size": 512, "train_micro_batch_size_per_gpu": 8})
    assert found.template().plan_for(EIGHT).grad_accumulation == 8
    assert found.template({"batch": "16"}).plan_for(EIGHT).grad_accumulation == 4
    with pytest.raises(PlanError, match="do not divide"):
        found.template({"batch": "7"}).plan_for(EIGHT)


def test_what_is_not_modelled_and_what_is_not_known_are_named(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        "ds.json",
        {
            "train_micro_batch_size_per_gpu": 1, "steps_per_print": 5, "compression_training": {"a": 1}, "warp_drive": True,
            "zero_optimization": {"stage": 3, "zero_quantized_weights": True, "new_in_ds": 1},
        },
    )  # fmt: skip
    texts = {caveat.code: caveat.text for caveat in found.caveats}
    assert "compression_training" in texts["configuration-not-modelled"]
    assert "zero_optimization.zero_quantized_weights" in texts["configuration-not-modelled"]
    assert "warp_drive" in texts["configuration-key-unknown"]
    assert "zero_optimization.new_in_ds" in texts["configuration-key-unknown"]
    assert "steps_per_print" not in "".join(texts.values())


def test_what_is_switched_off_is_not_named(tmp_path: Path) -> None:
    assert not written(tmp_path, "ds.json", {"train_batch_size": 8, "amp": {}, "sparse_gradients": False}).caveats


def deepspeed(folder: Path, **zero: Any) -> Configuration:
    entries = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    return written(folder, "ds.json", entries)


def test_parameters_that_stage_3_keeps_gathered_are_used(tmp_path: Path) -> None:
    found = deepspeed(tmp_path, stage=3, stage3_max_live_parameters=3e7)
    assert found.template().plan_for(EIGHT).live_parameters == 30_000_000
    assert not found.caveats
    below = deepspeed(tmp_path, stage=2, stage3_max_live_parameters=3e7)
    assert below.template().plan_for(EIGHT).live_parameters is None


def test_settings_of_stage_3_are_modelled_at_their_defaults_or_named(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 100000}
    assert not deepspeed(tmp_path, stage=3, **usual, stage3_max_reuse_distance="auto", sub_group_size=1e9).caveats
    other = {
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_reuse_distance": 1e8,
        "stage3_param_persistence_threshold": 1e6,
    }
    [caveat] = deepspeed(tmp_path, stage=3, **other, sub_group_size=1e7).caveats
    assert caveat.code == "configuration-not-modelled"
    for name in (*other, "sub_group_size"):
        assert name in caveat.text


def test_a_bucket_that_is_given_is_given_whatever_its_size(tmp_path: Path) -> None:
    """13,107,200 numbers in bf16 are 25 MiB, which is what DistributedDataParallel takes by itself."""
    given = deepspeed(tmp_path, stage=2, reduce_bucket_size=13_107_200).template().plan_for(EIGHT)
    assert given.bucket_bytes == 25 * 2**20
    assert deepspeed(tmp_path, stage=2).template().plan_for(EIGHT).bucket_bytes is None
    memory = [
        foretell.forecast(mlp(), "8xh200", plan).memory.allocated for plan in (given, replace(given, bucket_bytes=None))
    ]
    assert memory[1] - memory[0] > 500_000_000  # two buffers of 500 million numbers against two of 13


def test_fewer_live_parameters_take_less_memory() -> None:
    plan = Plan(dp=8, zero=3, sharding="deepspeed")
    step = workload(lambda: nn.Linear(512, 512), lambda: torch.randn(2, 512))
    usual, few = (foretell.forecast(step, "8xh200", replace(plan, live_parameters=n)).memory for n in (None, 1000))
    assert few.allocated < usual.allocated
    with pytest.raises(PlanError, match=r"live_parameters=5 are of zero=3,sharding=deepspeed"):
        Plan(dp=8, zero=2, live_parameters=5)


def test_auto_is_left_to_others(tmp_path: Path) -> None:
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
    found = written(tmp_path, "ds.json", auto)
    assert "batch" not in found.settings
    assert found.global_batch is None


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("ds.json", {"train_batch_size": "many"}, "train_batch_size of ds.json must be a whole number"),
        ("ds.json", {"train_batch_size": -4}, "at least 1"),
        ("ds.json", {"train_batch_size": 8, "zero_optimization": [1]}, "zero_optimization of ds.json must be a table"),
        ("ds.json", {"colour": "red"}, "no configuration that is known here"),
        ("a.yaml", "a: &x [1]\nb: *x\n", "refers to another part of itself"),
        ("a.yaml", "a: [1,\n", "no YAML in line"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "no YAML"),
        ("a.yaml", "- 1\n- 2\n", "not keys with values"),
        ("a.json", "{", "cannot be read as a configuration"),
        ("a.yaml", "[" * 5000, "too deep|no YAML"),
        ("a.yml", "base_model: nobody/unheard-of-9b\nsequence_len: 8\n", "nothing is downloaded"),
        ("m.sh", "--num-layers 7 --hidden-size 64 --num-attention-heads 4 --pipeline-model-parallel-size 2", "do not divide"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, name: str, content: Any, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        written(tmp_path, name, content)


def test_other_sources_are_no_configurations(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert configuration_of(str(tmp_path / "config.json")) is None
    assert configuration_of("hf/gpt2") is None


def test_the_environment_goes_before_defaults_and_after_what_a_script_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "WIDTH=8\nDEPTH=${DEPTH:-2}\npretrain.py --tp ${TP_SIZE:-1} --pp ${PP_SIZE:-1} --w ${WIDTH:-1} --d $DEPTH --n $NODES"
    monkeypatch.setenv("PP_SIZE", "")
    assert arguments(script) == {"script": "pretrain.py", "tp": "1", "pp": "1", "w": "8", "d": "2", "n": True}
    for name, value in {"TP_SIZE": "4", "WIDTH": "16", "DEPTH": "6", "NODES": "3"}.items():
        monkeypatch.setenv(name, value)
    assert arguments(script) == {"script": "pretrain.py", "tp": "4", "pp": "1", "w": "8", "d": "6", "n": "3"}


def test_a_launch_script_is_read_again_when_the_environment_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = MEGATRON.replace("--num-layers", "--tensor-model-parallel-size ${TP_SIZE:-1} --num-layers")
    assert written(tmp_path, "m.sh", launch).template().replica.tp == 1
    monkeypatch.setenv("TP_SIZE", "4")
    assert written(tmp_path, "m.sh", launch).template().replica.tp == 4


def test_recomputing_no_layers_is_legal(tmp_path: Path) -> None:
    more = " --recompute-granularity full --recompute-method block --recompute-num-layers "
    plans = [written(tmp_path, f"m{n}.sh", MEGATRON + more + str(n)).template().plan_for(EIGHT) for n in (0, 1)]
    assert plans[0].checkpointing == "none"
    assert plans[1].checkpointing != "none"


@pytest.mark.parametrize(
    ("arguments", "planned"),
    [
        ("--recompute-granularity selective", "selective"),
        ("--recompute-activations", "selective"),
        ("--recompute-granularity selective --recompute-modules layernorm mla_up_proj", "layernorm+mla_up_proj"),
        ("--recompute-granularity selective --recompute-modules moe_act core_attn", "core_attn+moe_act"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4", "full:4"),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 6", 0.2),
        ("--checkpoint-activations", "full"),
        ("--activations-checkpoint-granularity selective --activations-checkpoint-method uniform", "selective"),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 12", 0.4),
        ("--moe-layer-recompute", "moe"),
        (
            "--recompute-granularity full --recompute-method uniform --distribute-saved-activations "
            "--tensor-model-parallel-size 2",
            "full-partitioned",
        ),
    ],
)
def test_what_megatron_recomputes(tmp_path: Path, arguments: str, planned: str | float) -> None:
    made = written(tmp_path, "m.sh", MEGATRON.rstrip() + " " + arguments)
    assert made.template().plan_for(EIGHT).checkpointing == planned
    assert not [c for c in made.caveats if "recompute" in c.text or "checkpoint" in c.text]


def test_arguments_of_a_script_are_read_without_running_it() -> None:
    script = """
    #!/bin/bash
    LAYERS=24  # of the model
    export WIDTH=${WIDTH:-1024}
    ARGS=(
        --num-layers $LAYERS   # many
        --hidden-size ${WIDTH}
        --rampup-batch-size 32 32 1000
        --bf16
    )
    torchrun --nproc_per_node=8 --nnodes $SLURM_NNODES pretrain_gpt.py "${ARGS[@]}" --lr 1e-4 \\
        --sequence-parallel
    """
    assert arguments(script) == {
        "num-layers": "24", "hidden-size": "1024", "rampup-batch-size": "32 32 1000", "bf16": True, "nproc_per_node": "8",
        "nnodes": True, "lr": "1e-4", "sequence-parallel": True, "script": "pretrain_gpt.py",
    }  # fmt: skip


MEGATRON = "--num-layers 30 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 2 "


@pytest.mark.parametrize(
    ("more", "stages"),
    [
        ("--pipeline-model-parallel-size 2", (15, 15)),
        ("--pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", (7, 8, 8, 7)),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6", (6, 8, 8, 8)),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 5", (5,) * 6),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3 --decoder-first-pipeline-num-layers 12", (4, 6) * 3),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", (3, 4, 4, 4, 4, 4, 4, 3)),
        ("--pipeline-model-parallel-size 4 --standalone-embedding-stage", (0, 10, 10, 10)),
        ('--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "Et*6|(tttt|)*6,L"', (6, 4, 4, 4, 4, 4, 4, 0)),
    ],
)  # fmt: skip
def test_megatron_cuts_stages_as_it_says(tmp_path: Path, more: str, stages: tuple[int, ...]) -> None:
    assert written(tmp_path, "m.sh", MEGATRON + more).template().plan_for(EIGHT).stages == stages


@pytest.mark.parametrize(
    ("more", "plan"),
    [
        ("", "dp=8,overlap=false"),
        ("--overlap-grad-reduce --use-distributed-optimizer", "dp=8,zero=1"),
        ("--overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather", "dp=8,zero=1,overlap_gather=true"),
        ("--use-torch-fsdp2", "dp=8,zero=3"),
    ],
)
def test_megatron_says_what_runs_beside_compute(tmp_path: Path, more: str, plan: str) -> None:
    assert str(written(tmp_path, "m.sh", MEGATRON + more).template().plan_for(EIGHT)) == plan


EXPERTS = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 --overlap-grad-reduce --overlap-moe-expert-parallel-comm "


@pytest.mark.parametrize(
    ("more", "plan"),
    [
        ("", "dp=8,ep=4,overlap_ep=true"),
        ("--delay-wgrad-compute", "dp=8,ep=4,overlap_ep=true,delay_wgrad=true"),
        ("--moe-a2a-overlap", "dp=8,ep=4,overlap_ep=true,delay_wgrad=true"),
        ("--pipeline-model-parallel-size 2", "dp=4,pp=2,ep=4,stages=15-15"),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3",
         "dp=4,pp=2,ep=4,overlap_ep=true,schedule=interleaved,virtual_stages=3,stages=5-5-5-5-5-5"),
    ],
)  # fmt: skip
def test_megatron_hides_rows_to_experts_behind_other_micro_batches(tmp_path: Path, more: str, plan: str) -> None:
    found = written(tmp_path, "m.sh", MEGATRON + EXPERTS + more)
    assert str(found.template().plan_for(EIGHT)) == plan
    assert any("not hidden" in c.text for c in found.caveats) == ("overlap_ep" not in plan)


def test_megatron_builds_its_model_from_numbers(tmp_path: Path) -> None:
    plain = written(tmp_path, "a.sh", MEGATRON + "--tensor-model-parallel-size 2").model
    assert isinstance(plain, dict)
    assert plain["model_type"] == "opt"
    assert plain["vocab_size"] == 50432  # GPT-2's, padded to a multiple of 256
    gated = written(tmp_path, "b.sh", MEGATRON + "--swiglu --group-query-attention --num-query-groups 2").model
    assert isinstance(gated, dict)
    assert (gated["model_type"], gated["intermediate_size"], gated["num_key_value_heads"]) == ("llama", 128, 2)
    experts = written(tmp_path, "c.sh", MEGATRON + "--swiglu --num-experts 8 --moe-router-topk 2").model
    assert isinstance(experts, dict)
    assert (experts["model_type"], experts["num_local_experts"]) == ("mixtral", 8)
    latent = written(tmp_path, "d.sh", MEGATRON + "--multi-latent-attention --kv-lora-rank 16 --num-experts 4").model
    assert isinstance(latent, dict)
    assert (latent["model_type"], latent["kv_lora_rank"]) == ("deepseek_v3", 16)


def test_layers_that_predict_further_tokens_lie_on_the_last_stage(tmp_path: Path) -> None:
    found = written(tmp_path, "m.sh", MEGATRON + "--pipeline-model-parallel-size 2 --mtp-num-layers 1")
    assert isinstance(found.model, dict)
    assert (found.model["num_hidden_layers"], found.template().plan_for(EIGHT).stages) == (31, (15, 16))
    assert "mtp_num_layers (1 more layers; their projections and losses are left out)" in found.caveats[0].text


def test_megatrons_attention_is_its_backends(tmp_path: Path) -> None:
    found = written(tmp_path, "a.sh", MEGATRON + "--bf16 --attention-backend flash")
    assert (found.settings["attention"], found.settings["kernels"]) == ("flash2", "megatron")
    for more in ("--attention-backend unfused", "--transformer-impl local"):
        model = written(tmp_path, "b.sh", MEGATRON + more).model
        assert isinstance(model, dict)
        assert model["attn_implementation"] == "eager"


def test_megatrons_fused_loss_is_compiled_or_named(tmp_path: Path) -> None:
    fused = written(tmp_path, "a.sh", MEGATRON + "--bf16 --cross-entropy-loss-fusion")
    assert (fused.settings["kernels"], fused.caveats) == ("megatron-compiled-loss", ())
    engines = written(tmp_path, "b.sh", MEGATRON + "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te")
    assert engines.settings["kernels"] == "megatron"
    assert "cross_entropy_fusion_impl" in engines.caveats[0].text


def test_megatrons_norms_of_queries_are_built_or_named(tmp_path: Path) -> None:
    gated = written(tmp_path, "a.sh", MEGATRON + "--swiglu --qk-layernorm")
    assert isinstance(gated.model, dict)
    assert (gated.model["model_type"], gated.caveats) == ("qwen3", ())
    assert "qk_layernorm" in written(tmp_path, "b.sh", MEGATRON + "--qk-layernorm").caveats[0].text


def test_a_recipe_is_read_as_its_arguments(tmp_path: Path) -> None:
    recipe = "ENV_VARS: {A: 1}\nMODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --bf16: true\n"
    found = written(tmp_path, "model_config.yaml", recipe)
    assert found.trainer == "Megatron-LM"
    assert not found.caveats


def test_hybrid_sharding_keeps_a_copy_per_node(tmp_path: Path) -> None:
    text = (EXAMPLES / "accelerate_fsdp.yaml").read_text()
    text = text.replace("fsdp_reshard_after_forward: true", "fsdp_sharding_strategy: HYBRID_SHARD")
    found = written(tmp_path, "a.yaml", text)
    assert found.template().plan_for(32, nodes=4).hybrid_shard == 8


def test_a_configuration_is_forecast() -> None:
    import foretell

    settings = {"model": "hf/gpt2", "layers": "1", "seq": "16", "batch": "2", "checkpointing": "false"}
    answer = foretell.forecast(str(EXAMPLES / "training_args.json"), "2xh100-sxm", settings=settings)
    assert answer.plan == "dp=2,zero=3"
    assert answer.graph.precision.products == "bf16"
    with pytest.raises(SourceError, match="does not say which model"):
        foretell.forecast(str(EXAMPLES / "ds_zero2.json"), "8xh100-sxm", settings={"batch": "4"})


@pytest.mark.parametrize(
    ("parallelism", "plan"),
    [
        ({"tensor_parallel_degree": 2}, "dp=4,tp=2,zero=3,sequence_parallel=true"),
        ({"tensor_parallel_degree": 2, "disable_sequence_parallel": True}, "dp=4,tp=2,zero=3"),
        ({"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B"}, "dp=4,pp=2,zero=2"),
        (
            {
                "pipeline_parallel_degree": 2,
                "pipeline_parallel_schedule": "1F1B",
                "fsdp_reshard_after_forward": "always",
            },
            "dp=4,pp=2,zero=3",
        ),
        ({"fsdp_reshard_after_forward": "never"}, "dp=8,zero=2"),
    ],
)
def test_torchtitans_parallelism_is_the_plan(tmp_path: Path, parallelism: dict[str, object], plan: str) -> None:
    tables = {
        "model": {"flavor": "8B"}, "training": {"local_batch_size": 6}, "parallelism": parallelism,
        "activation_checkpoint": {"mode": "none"},
    }  # fmt: skip
    found = written(tmp_path, "titan.json", tables)
    assert found.template().plan_for(EIGHT) == Plan.parse(plan)
    pipeline = (
        "pipeline_parallel_degree" in parallelism
    )  # which takes a batch sample by sample, unless it is told otherwise
    assert (found.settings["batch"], found.settings.get("grad_accumulation")) == ((1, 6) if pipeline else (6, None))


def test_a_model_that_is_given_goes_before_the_name_in_the_file(tmp_path: Path) -> None:
    contents = {
        "a.yml": "base_model: nobody/unheard-of-9b\nsequence_len: 8\nmicro_batch_size: 3\n",
        "l.yaml": "model_name_or_path: nobody/unheard-of\nstage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 3\n",
        "t.json": json.dumps({"model_name_or_path": "nobody/unheard-of", "per_device_train_batch_size": 3}),
        "t.toml": '[model]\nname = "new"\nflavor = "9B"\n[training]\nlocal_batch_size = 3\n[parallelism]\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(SourceError, match="--set model=hf/NAME"):
            configuration_of(str(tmp_path / name))
        found = configuration_of(str(tmp_path / name), {"model": "hf/gpt2"})
        assert found is not None
        assert (found.model, found.settings["batch"]) == ("hf/gpt2", 3)


def test_a_recipe_of_torchtune_is_its_components(tmp_path: Path) -> None:
    recipe = """
model:
  _component_: torchtune.models.llama3_2.qlora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  apply_lora_to_output: True
  lora_rank: 64
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: True}
batch_size: 4
gradient_accumulation_steps: 8
optimizer: {_component_: torch.optim.AdamW, fused: True, lr: 3e-4}
loss: {_component_: torchtune.rlhf.loss.DPOLoss, beta: 0.1}
dtype: bf16
enable_activation_checkpointing: True
"""
    found = written(tmp_path, "1B_qlora.yaml", recipe)
    assert (found.trainer, found.model, found.plan) == ("torchtune", "hf/llama-3.2-1b", {"zero": 3})
    assert not found.caveats
    settings = dict(found.settings)
    assert {"q_proj", "v_proj", "o_proj", "down_proj", "head"} <= set(settings.pop("lora_targets").split("+"))
    assert settings == {
        "batch": 4, "seq": 2048, "grad_accumulation": 8, "optimizer": "adamw-fused", "precision": "bf16", "lora_rank": 64,
        "quantize": "nf4", "objective": "dpo", "checkpointing": True,
    }  # fmt: skip
    assert written(tmp_path, "1B_qlora_single_device.yaml", recipe).plan == {}
    with pytest.raises(SourceError, match="--set model"):
        written(tmp_path, "v.yaml", recipe.replace("llama3_2.qlora_llama3_2_1b", "llama3_2_vision.llama3_2_vision_11b"))


def test_litgpt_keeps_its_head_apart(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        "lora.yaml",
        "checkpoint_dir: checkpoints/google/gemma-2b\nprecision: bf16-true\ndevices: 1\nlora_r: 8\nlora_mlp: true\nlora_head: true\n"
        "train: {global_batch_size: 6, micro_batch_size: 2, max_seq_length: 512}\n",
    )
    assert found.model == {"like": "gemma-2b", "tie_word_embeddings": False}
    assert found.template().plan_for(1).grad_accumulation == 3
    assert {"q_proj", "v_proj", "up_proj", "head"} <= set(found.settings["lora_targets"].split("+"))
    assert "k_proj" not in found.settings["lora_targets"].split("+")


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ("stage: dpo", {"objective": "dpo", "upcast_logits": True}),
        ("stage: dpo\npref_loss: orpo", {"objective": "orpo"}),
        ("stage: rm", {"objective": "reward-lm"}),
        ("stage: kto", {"objective": "kto"}),
        ("stage: sft\nfinetuning_type: full\nuse_galore: true\ngalore_rank: 100", {"optimizer": "galore-r128"}),
        ("stage: sft\nfinetuning_type: full\nuse_muon: true", {"optimizer": "muon"}),
        ("stage: sft\nfinetuning_type: freeze\nfreeze_trainable_layers: 4", {"trained_layers": 4}),
        ("stage: sft\nfinetuning_type: oft\noft_block_size: 16", {"oft_block": 16, "lora_targets": "all"}),
        ("stage: sft\nenable_liger_kernel: true", {"fused_loss": True}),
        ("stage: sft\nquantization_bit: 4\nuse_dora: true", {"quantize": "nf4", "lora_decomposed": True}),
    ],
)
def test_stages_and_methods_of_llama_factory_are_what_they_are(
    tmp_path: Path, more: str, settings: dict[str, Any]
) -> None:
    method = "" if "finetuning_type" in more else "finetuning_type: lora\n"
    found = written(tmp_path, "l.yaml", f"model_name_or_path: gpt2\ntemplate: x\nbf16: true\n{method}{more}\n")
    assert settings.items() <= found.settings.items()


def test_weights_are_in_the_precision_that_they_are_loaded_in(tmp_path: Path) -> None:
    base = {"model_name_or_path": "gpt2", "per_device_train_batch_size": 1, "bf16": True}
    kept = {None: "amp-bf16", "bfloat16": "bf16", "auto": "bf16", "float32": "amp-bf16", "float16": "fp16"}
    for name in ("torch_dtype", "dtype"):
        for dtype, precision in kept.items():
            assert written(tmp_path, "t.json", {**base, name: dtype}).settings["precision"] == precision
    with pytest.raises(SourceError, match="must be one of bfloat16"):
        written(tmp_path, "t.json", {**base, "dtype": "int3"})


def test_trainers_of_preferences_are_told_by_their_keys(tmp_path: Path) -> None:
    base = {"model_name_or_path": "gpt2", "per_device_train_batch_size": 8}
    grouped = written(tmp_path, "t.json", {**base, "num_generations": 8, "max_completion_length": 300, "beta": 0.04})
    assert (grouped.settings["objective"], grouped.settings["seq"]) == ("grpo-reference", 812)
    assert any("generating texts" in caveat.text for caveat in grouped.caveats)
    assert written(tmp_path, "t.json", {**base, "precompute_ref_log_probs": True}).settings["objective"] == "orpo"
    assert written(tmp_path, "t.json", {**base, "desirable_weight": 1.0}).settings["objective"] == "kto"
    script = "accelerate launch dpo.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --learning_rate 1e-6"
    assert written(tmp_path, "dpo.sh", script).settings["objective"] == "dpo"


def test_a_launch_script_of_accelerate_has_its_file(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    fsdp = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    (tmp_path / "configs" / "fsdp.yaml").write_text(fsdp)
    script = (
        'accelerate launch --config_file "configs/fsdp.yaml" train.py --model_name_or_path gpt2 --output_dir o \\\n'
    )
    found = written(tmp_path, "run.sh", script + "--per_device_train_batch_size 8 --use_peft_lora False --lora_r 8")
    assert (found.plan, found.devices, found.settings["batch"]) == ({"zero": 3}, 4, 8)
    assert "lora_rank" not in found.settings
    with pytest.raises(SourceError, match="is not there"):
        written(tmp_path, "run.sh", script.replace("fsdp.yaml", "none.yaml") + "--per_device_train_batch_size 8")


@pytest.mark.parametrize(("more", "name"), [("", "BertForPreTraining"), (" --bert-no-binary-head", "BertForMaskedLM")])
def test_megatrons_bert_also_learns_which_sentence_follows(tmp_path: Path, more: str, name: str) -> None:
    bert = "pretrain_bert.py --num-layers 2 --hidden-size 64 --num-attention-heads 4"
    model = written(tmp_path, "bert.sh", f"{bert} --micro-batch-size 2 --seq-length 32{more}\n").model
    assert isinstance(model, dict)
    assert model["architectures"] == [name]
    workload = function_of_entries(model, "bert", tmp_path)(batch=2, seq=32)
    assert workload.loss(workload.model(), workload.batch()).ndim == 0


def test_megatrons_t5_and_earlier_names_are_read(tmp_path: Path) -> None:
    t5 = "pretrain_t5.py --encoder-num-layers 2 --decoder-num-layers 3 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000"
    model = written(tmp_path, "t5.sh", f"torchrun {t5}").model
    assert isinstance(model, dict)
    assert (model["num_layers"], model["num_decoder_layers"], model["d_model"]) == (2, 3, 64)
    zero = 'cat <<EOF > ds.json\n{"zero_optimization": {"stage": 2}}\nEOF\n'
    more = "--fp16 --checkpoint-activations --deepspeed --deepspeed_config ds.json --num-experts 64 --moe-expert-parallel-size 4"
    found = written(tmp_path, "ds.sh", f"{zero}deepspeed pretrain_gpt.py {MEGATRON} {more}")
    assert (found.plan["zero"], found.plan["checkpointing"], found.plan["ep"]) == (2, "full", 4)


def test_fp8_is_read_with_its_recipe(tmp_path: Path) -> None:
    fp8 = written(tmp_path, "a.yaml", "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config: {backend: TE}\n")
    assert fp8.settings["precision"] == "parameters:fp32/autocast:bf16/fp8:delayed"
    assert not fp8.caveats
    more = "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather --first-last-layers-bf16"
    found = written(tmp_path, "a.sh", f"torchrun pretrain_gpt.py {MEGATRON} {more} --num-layers-at-end-in-bf16 2")
    assert found.settings["precision"].endswith("master:fp32/fp8:current/weights:fp8/half_blocks:1-2")
    assert not any("fp8" in caveat.text for caveat in found.caveats)
    fp4 = written(tmp_path, "b.sh", f"torchrun pretrain_gpt.py {MEGATRON} --bf16 --fp4-format e2m1")
    assert fp4.settings["precision"].endswith("fp8:mx")
    assert any("fp4_format (4-bit products" in caveat.text for caveat in fp4.caveats)


TITAN_FP8 = """
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
local_batch_size = 1
[parallelism]
data_parallel_shard_degree = -1
[float8]
recipe_name = "rowwise"
enable_fsdp_float8_all_gather = true
"""


def test_torchtitans_converters_are_fp8(tmp_path: Path) -> None:
    found = written(tmp_path, "llama3_8b.toml", TITAN_FP8)
    assert found.settings["precision"] == "parameters:fp32/compute:bf16/reduce:fp32/fp8:rowwise/weights:fp8"
    moved = TITAN_FP8.replace("[float8]", "[quantize.linear.float8]").replace('"float8"', '"quantize.linear.float8"')
    assert written(tmp_path, "moved.toml", moved).settings == found.settings
    assert "fp8" not in written(tmp_path, "plain.toml", TITAN_FP8.replace('["float8"]', "[]")).settings["precision"]


@pytest.mark.parametrize(
    ("words", "plan"),
    [("", {"cp": 4}), ("--cp-comm-type p2p", {"cp": 4}), ("--cp-comm-type a2a", {"cp": 4, "ulysses": 4}),
     ("--cp-comm-type all_gather", {"cp": 4, "cp_gather": True}),
     ("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", {"cp": 4, "ulysses": 2})],
)  # fmt: skip
def test_how_ranks_meet_the_rest_of_a_sequence_is_read(tmp_path: Path, words: str, plan: dict[str, Any]) -> None:
    found = written(tmp_path, "a.sh", f"torchrun pretrain_gpt.py {MEGATRON} --context-parallel-size 4 {words}")
    assert {name: found.plan[name] for name in ("cp", "ulysses", "cp_gather") if name in found.plan} == plan
    assert not any("cp_comm" in caveat.text or "hierarchical" in caveat.text for caveat in found.caveats)


def test_torchs_own_context_parallelism_gathers_keys(tmp_path: Path) -> None:
    titan = TITAN_FP8.replace("[parallelism]", "[parallelism]\ncontext_parallel_degree = 2")
    assert written(tmp_path, "a.toml", titan).plan["cp_gather"] is True
    ring = titan.replace("degree = 2", 'degree = 2\ncontext_parallel_rotate_method = "alltoall"')
    assert "cp_gather" not in written(tmp_path, "b.toml", ring).plan


@pytest.mark.parametrize(
    ("words", "kernel"),
    [("--bf16 --use-flash-attn", None),  # Transformer Engine's layers take no notice of it
     ("--bf16 --use-flash-attn --transformer-impl transformer_engine", None),
     ("--bf16 --use-flash-attn --transformer-impl local", "flash2"),
     ("--bf16 --attention-backend fused", "cudnn"), ("--fp16 --deepspeed --use-flash-attn-v2", "flash2"),
     ("--fp16 --deepspeed --use-flash-attn", "flash1"), ("--fp16 --use-flash-attn-triton", "flash1")],
)  # fmt: skip
def test_the_attention_kernel_is_the_one_that_the_trainer_picks(tmp_path: Path, words: str, kernel: str | None) -> None:
    assert written(tmp_path, "a.sh", f"torchrun pretrain_gpt.py {MEGATRON} {words}").settings.get("attention") == kernel


@pytest.mark.parametrize(
    ("name", "ending"),
    [("bf16_mixed", "master:fp32"), ("bf16-mixed", "master:fp32"), ("bf16_with_fp8_delayed_scaling_mixed", "fp8:delayed/weights:fp8"),
     ("bf16_with_fp8_current_scaling_mixed", "fp8:current/weights:fp8/half_blocks:1-1"),
     ("bf16_with_fp8_subchannel_scaling_mixed", "fp8:blockwise"), ("bf16_with_mxfp8_mixed", "fp8:mx/weights:fp8")],
)  # fmt: skip
def test_recipes_of_megatron_bridge_are_read_by_name(tmp_path: Path, name: str, ending: str) -> None:
    sizes = "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 1000}\nnum_layers: 2\nhidden_size: 64"
    found = written(tmp_path, "a.yaml", f"{sizes}\nmixed_precision: {name}\n")
    assert found.settings["precision"].endswith(ending)


def test_megatrons_flags_say_what_is_fused(tmp_path: Path) -> None:
    experts = MEGATRON + "--bf16 --swiglu --num-experts 8 --moe-router-topk 2 "
    fused = {
        "--moe-permute-fusion": "megatron",
        "": "megatron-without-permute",
        "--moe-permute-fusion --no-rope-fusion": "megatron-without-rope",
        "--no-gradient-accumulation-fusion --cross-entropy-loss-fusion": "megatron-compiled-loss-without-permute-without-wgrad",
    }
    for number, (more, kernels) in enumerate(fused.items()):
        assert written(tmp_path, f"{number}.sh", experts + more).settings["kernels"] == kernels
    dense = written(tmp_path, "dense.sh", MEGATRON + "--bf16 --swiglu")
    assert dense.settings["kernels"] == "megatron"
    turned = written(tmp_path, "rope.sh", MEGATRON + "--multi-latent-attention --kv-lora-rank 16 --rope-type rope")
    assert turned.settings["kernels"] == "megatron-without-rope"


def test_experts_of_megatron_may_lie_on_ranks_of_tensor_parallelism(tmp_path: Path) -> None:
    split = (
        MEGATRON + "--num-experts 8 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 8 "
    )
    plan = written(tmp_path, "a.sh", split + "--expert-tensor-parallel-size 1").template().plan_for(EIGHT)
    assert (plan.etp, plan.ep, plan.dp) == (1, 8, 4)
    shared = written(tmp_path, "b.sh", split.replace("parallel-size 8", "parallel-size 4")).template().plan_for(EIGHT)
    assert (shared.etp, shared.ep) == (None, 4)
    once = written(
        tmp_path, "d.sh", split + "--moe-token-dispatcher-type flex --moe-enable-deepep --expert-tensor-parallel-size 1"
    )
    assert once.template().plan_for(EIGHT).dispatch == "deepep"
    normed = written(tmp_path, "c.sh", MEGATRON + "--swiglu --num-experts 8 --moe-ffn-hidden-size 96 --qk-layernorm")
    assert not isinstance(normed.model, str)
    assert normed.model["model_type"] == "qwen3_moe"
