"""DeepSpeed as scripts use it: the engine's face, its parts, pipelines. None of its own package is needed."""

from __future__ import annotations

import pytest

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

FACE = """
    import argparse, deepspeed, torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
    from deepspeed.utils import logger, RepeatingLoader
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    assert args.deepspeed and args.local_rank == 0
    deepspeed.init_distributed()
    assert deepspeed.comm.get_world_size() == 4 and get_accelerator().device_name() == "cuda"
    class Model(torch.nn.Linear):
        hidden = 8
    with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config), deepspeed.OnDevice(dtype=torch.bfloat16):
        model = Model(8, 8)
    reference, *_ = deepspeed.initialize(model=torch.nn.Linear(8, 8), config={"train_batch_size": 4, "bf16": {"enabled": True}})
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        torch.nn.init.zeros_(model.bias)
    optimizer = FusedAdam(model.parameters(), lr=1e-3)
    config = {"train_batch_size": 32, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "bf16": {"enabled": True},
              "zero_optimization": {"stage": 2}, "scheduler": {"type": "WarmupLR", "params": {}}}
    engine, optimizer, _, scheduler = deepspeed.initialize(
        args=args, model=model, optimizer=optimizer, model_parameters=model.parameters(), config_params=config)
    assert engine.bfloat16_enabled() and not engine.fp16_enabled() and engine.train_batch_size() == 32
    assert engine.train_micro_batch_size_per_gpu() == 4 and engine.gradient_accumulation_steps() == 2
    assert engine.zero_optimization_stage() == 2 and engine.hidden == 8 and engine.module is model
    assert isinstance(engine, deepspeed.DeepSpeedEngine) and len(engine.get_lr()) == 1 and scheduler.get_last_lr()
    _, client = engine.load_checkpoint("nowhere")
    for step, batch in zip(range(client["step"], 12), RepeatingLoader([torch.randn(4, 8)])):
        boundary = engine.is_gradient_accumulation_boundary()
        engine.backward(engine(batch.to(engine.device, dtype=torch.bfloat16)).float().sum())
        engine.step()
        assert boundary == (step % 2 == 1) and engine.global_steps == (step + 1) // 2
    engine.save_checkpoint("nowhere", client_state={})
"""


@pytest.mark.slow
def test_what_scripts_ask_of_the_engine(script: Write) -> None:
    how = ("--local_rank=0", "--deepspeed", "--deepspeed_config", "none.json")
    graph = foretell.capture_graph(script(FACE, processes=4, arguments=how))
    assert graph.facts.plan is not None
    assert str(graph.facts.plan.plan_for(4)) == "dp=4,zero=2,overlap=false,sharding=deepspeed"
    assert (graph.grad_accumulation, graph.precision.parameters, graph.facts.parameters) == (2, "bf16", 72)


@pytest.mark.slow
def test_a_pipeline_of_deepspeed_runs_whole(script: Write) -> None:
    text = """
        import deepspeed, torch
        from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
        layers = [LayerSpec(torch.nn.Linear, 8, 8) for _ in range(4)] + [torch.relu]
        model = PipelineModule(layers=layers, num_stages=2, loss_fn=torch.nn.MSELoss(), activation_checkpoint_interval=2)
        data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 8))
        config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
                  "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, training_data=data)
        for step in range(5):
            engine.train_batch()
    """
    graph = foretell.capture_graph(script(text, processes=4))
    assert graph.facts.plan is not None
    plan = graph.facts.plan.plan_for(4)
    assert (plan.dp, plan.pp) == (2, 2)
    assert (graph.grad_accumulation, graph.samples, graph.facts.parameters) == (4, 2, 4 * 72)


@pytest.mark.slow
def test_a_part_that_is_not_known_fails_as_itself(script: Write) -> None:
    text = """
        from deepspeed.moe.layer import MoE
        MoE(hidden_size=8, expert=None, num_experts=4)
    """
    with pytest.raises(WorkloadError, match=r"stand-in for DeepSpeed has no deepspeed\.moe\.layer\.MoE"):
        foretell.capture_graph(script(text))
