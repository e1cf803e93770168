"""Recipes that are functions of Python: what they come to, that nothing of them is run, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretell.errors import SourceError
from foretell.sources.configs import Configuration, configuration_of
from foretell.sources.configs.python_recipes import Unread, read_recipe

TITAN = """
from torchtitan.trainer import Trainer
from . import model_registry
raise SystemExit("a recipe was run")

LENGTH = 4 * 1024

def small() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        model_spec=spec,
        loss=Loss.Config(vocabulary=size_of(spec)),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * LENGTH, max_context_length=LENGTH, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=FullAC.Config(),
    )

def in_fp8() -> Trainer.Config:
    config = small()
    config.compile = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(recipe_name="rowwise")])
    config.activation_checkpoint = None
    return config

def pipelined() -> Trainer.Config:
    config = small()
    config.parallelism.pipeline_parallel_degree = 2
    config.parallelism.num_pp_microbatches = 4
    config.parallelism.tensor_parallel_degree = 1
    return config

def in_pieces() -> Trainer.Config:
    config = small()
    config.loss = ChunkedLossWrapper.Config(loss_fn=config.loss)
    return config

def unread() -> Trainer.Config:
    config = small()
    config.training.max_context_length = length_of(config)
    return config

def something_else() -> int:
    return 3
"""
COMMON = """
def base() -> ConfigContainer:
    cfg = ConfigContainer(
        model=None, train=TrainingConfig(global_batch_size=32, micro_batch_size=2), optimizer=adam(clip_grad=0.5),
        ddp=DDP(overlap_grad_reduce=True, overlap_param_gather=True, use_distributed_optimizer=True, grad_reduce_in_fp32=True),
        dataset=Data(seq_length=4096), mixed_precision="bf16_mixed", comm_overlap=None,
    )
    return cfg

def tuned(cfg):
    cfg.ddp.grad_reduce_in_fp32 = False
    if isinstance(cfg.mixed_precision, str):
        cfg.model.recompute_granularity = "full"
        cfg.model.recompute_method = "uniform"
        cfg.model.recompute_num_layers = 1
    else:
        cfg.mixed_precision.grad_reduce_in_fp32 = False
"""
BRIDGE = """
from company.recipes.common import base, tuned
from company.bridge import AutoBridge

def llama_config() -> ConfigContainer:
    cfg = base()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").get_model_config()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = 8192
    cfg.train.micro_batch_size = 1
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    return cfg

def recomputing_config() -> ConfigContainer:
    cfg = llama_config()
    cfg.model.num_layers = 40
    tuned(cfg)
    return cfg

def eight_bit_config() -> ConfigContainer:
    cfg = llama_config()
    cfg.mixed_precision = bf16_with_fp8_current_scaling_mixed()
    tuned(cfg)
    return cfg

def laid_out_config() -> ConfigContainer:
    cfg = llama_config()
    cfg.model.pipeline_model_parallel_layout = [["embedding"] + LAYERS, ["decoder"], ["loss"]]
    cfg.model.num_moe_experts = count_of(cfg)
    try:
        cfg.model.pipeline_model_parallel_layout = layout_of(4, 5)
    except ValueError:
        pass
    return cfg

def counted_config() -> ConfigContainer:
    cfg = llama_config()
    if has_many(cfg):
        cfg.model.moe_permute_fusion = True
    return cfg

def nameless_config() -> ConfigContainer:
    cfg = base()
    cfg.model = HybridProvider(layers=3)
    return cfg
"""


@pytest.fixture
def titan(tmp_path: Path) -> Path:
    folder = tmp_path / "llama3"
    folder.mkdir()
    path = folder / "config_registry.py"
    path.write_text(TITAN)
    return path


@pytest.fixture
def bridge(tmp_path: Path) -> Path:
    folder = tmp_path / "company" / "recipes"
    folder.mkdir(parents=True)
    (folder / "common.py").write_text(COMMON)
    path = folder / "llama.py"
    path.write_text(BRIDGE)
    return path


def of(path: Path, name: str, **settings: Any) -> Configuration:
    found = configuration_of(f"{path}:{name}", settings)
    assert found is not None
    return found


def test_torchtitans_recipe_says_what_its_toml_said(titan: Path) -> None:
    found = of(titan, "small")
    assert (found.trainer, found.model) == ("torchtitan", "hf/llama-3-8b")
    assert (found.settings["batch"], found.settings["seq"], found.settings["clip_grad_norm"]) == (2, 4096, 1.0)
    assert found.plan == {"tp": 2, "zero": 3, "sequence_parallel": True, "checkpointing": "full"}
    assert found.caveats == ()


def test_a_recipe_that_builds_on_another_changes_what_it_sets(titan: Path) -> None:
    found = of(titan, "in_fp8")
    assert found.plan["checkpointing"] == "none"
    assert found.plan["overlap_tp"] is True
    assert found.settings["compile"] is True
    assert "fp8:rowwise" in found.settings["precision"]
    staged = of(titan, "pipelined")
    assert (staged.plan["pp"], staged.settings["batch"], staged.settings["grad_accumulation"]) == (2, 2, 4)
    assert staged.plan["schedule"] == "1f1b"


def test_a_loss_in_pieces_never_has_all_logits(titan: Path) -> None:
    titan.write_text(TITAN.replace("tensor_parallel_degree=2", "tensor_parallel_degree=1"))
    assert of(titan, "in_pieces").settings["fused_loss"] is True
    titan.write_text(TITAN)
    assert "fused_loss" not in of(titan, "in_pieces").settings
    assert any("loss (in pieces" in caveat.text for caveat in of(titan, "in_pieces").caveats)


def test_what_only_running_would_show_is_refused_where_it_is_needed(titan: Path) -> None:
    with pytest.raises(SourceError, match=r"num_tokens_per_microbatch_per_dp_rank.*length_of"):
        of(titan, "unread")
    made = read_recipe(titan, "small")
    assert made is not None
    assert isinstance(made["model_spec"], dict)
    assert isinstance(read_recipe(titan, "unread")["training"]["max_context_length"], dict | Unread)  # type: ignore[index]


def test_other_functions_are_no_recipes(titan: Path, tmp_path: Path) -> None:
    assert configuration_of(f"{titan}:something_else") is None
    assert configuration_of(f"{titan}:nowhere") is None
    (tmp_path / "broken.py").write_text("def f(:")
    assert configuration_of(f"{tmp_path / 'broken.py'}:f") is None


def test_a_bridge_recipe_is_megatrons_plan_for_a_model_of_the_hub(bridge: Path) -> None:
    found = of(bridge, "llama_config")
    assert (found.trainer, found.model, found.global_batch) == ("Megatron-Bridge", "hf/llama-3-70b", 32)
    assert (found.settings["seq"], found.settings["batch"], found.settings["clip_grad_norm"]) == (8192, 1, 0.5)
    assert found.settings["precision"] == "parameters:bf16/gradients:fp32/master:fp32"
    assert found.settings["kernels"] == "megatron"
    plan = {"tp": 4, "pp": 4, "virtual_stages": 5, "zero": 1, "sequence_parallel": True, "overlap_tp": True}
    assert plan.items() <= found.plan.items()
    assert found.plan["overlap_gather"] is True
    assert not [c for c in found.caveats if c.kind == "configuration-key-unknown"]


def test_branches_and_functions_that_change_a_recipe_are_followed(bridge: Path) -> None:
    found = of(bridge, "recomputing_config")
    assert found.model == {"like": "llama-3-70b", "num_hidden_layers": 40}
    assert found.plan["checkpointing"] == "full"
    assert "gradients:fp32" not in found.settings["precision"]
    eight = of(bridge, "eight_bit_config")
    assert "fp8:current" in eight.settings["precision"]
    assert "gradients:fp32" not in eight.settings["precision"]
    assert eight.plan.get("checkpointing", "none") == "none"


def test_what_a_bridge_recipe_computes_is_named_or_refused(bridge: Path) -> None:
    with pytest.raises(SourceError, match="pipeline_model_parallel_layout in a way that only running"):
        of(bridge, "laid_out_config")
    assert any("moe_permute_fusion (its value is not" in caveat.text for caveat in of(bridge, "counted_config").caveats)


def test_a_bridge_recipe_without_a_name_of_the_hub_takes_a_model_from_the_user(bridge: Path) -> None:
    with pytest.raises(SourceError, match="--set model"):
        of(bridge, "nameless_config")
    assert of(bridge, "nameless_config", model="hf/llama-3-8b").model == "hf/llama-3-8b"


def test_endless_functions_end(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(
        "def f() -> ConfigContainer:\n    return f()\n\ndef g() -> ConfigContainer:\n    g(); g()\n    return 1\n"
    )
    for name in ("f", "g"):
        with pytest.raises(SourceError):
            configuration_of(f"{path}:{name}")
