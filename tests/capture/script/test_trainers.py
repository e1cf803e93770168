"""Wrappers that bring a precision and a plan: FSDP2's policy and DeepSpeed's engine, against Workloads written by hand."""

from __future__ import annotations

import torch
from torch import nn

import foretell
from tests.capture.script.conftest import Write

BODY = "nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))"


def by_hand(precision: str, *, fused: bool) -> foretell.Graph:
    return foretell.capture_graph(
        foretell.Workload(
            name="by hand",
            model=lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)),
            batch=lambda: torch.randn(16, 64),
            loss=lambda model, x: model(x).float().pow(2).mean() * 3,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True if fused else None),
            precision=precision,
            grad_accumulation=3,
            clip_grad_norm=1.0,
        )
    )


def ops(graph: foretell.Graph, leave_out: str = "") -> list[tuple[object, ...]]:
    return [
        (op.target, op.signature.inputs, op.signature.outputs, op.times) for op in graph.ops if op.target != leave_out
    ]


def test_a_policy_of_fully_shard_is_computed_in_and_becomes_the_precision(script: Write) -> None:
    text = f"""
        import torch
        from torch import nn
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        torch.distributed.init_process_group("nccl")
        model = {BODY}.cuda()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(9):
            for micro in range(3):
                loss = model(torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)).float().pow(2).mean() * 3
                (loss / 3).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    """
    graph = foretell.capture_graph(script(text, processes=8))
    assert (graph.precision.arithmetic, graph.precision.name) == ("bf16", "parameters:fp32/compute:bf16/reduce:fp32")
    assert graph.facts.plan is not None
    assert str(graph.facts.plan.plan_for(8)) == "dp=8,zero=3"
    made = "aten.randn.default"  # the batch, which the script draws on the device
    assert ops(graph, made) == ops(by_hand("parameters:fp32/compute:bf16/reduce:fp32", fused=False))


def test_deepspeed_brings_masters_accumulation_clipping_and_the_plan(script: Write) -> None:
    text = f"""
        import argparse, torch
        from torch import nn
        import deepspeed
        arguments = deepspeed.add_config_arguments(argparse.ArgumentParser()).parse_args()
        deepspeed.init_distributed()
        model = {BODY}
        config = {{
            "train_batch_size": 16 * 3 * 8, "train_micro_batch_size_per_gpu": 16, "gradient_clipping": 1.0,
            "bf16": {{"enabled": True}}, "zero_optimization": {{"stage": 2, "offload_optimizer": {{"device": "cpu"}}}},
            "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}}, "autotuning": {{"enabled": True}},
        }}
        engine, optimizer, _, _ = deepspeed.initialize(
            args=arguments, model=model, model_parameters=model.parameters(), config=config
        )
        for step in range(30):
            x = torch.randn(16, 64, dtype=torch.bfloat16, device=engine.device)
            loss = engine(x).float().pow(2).mean() * 3
            engine.backward(loss)
            engine.step()
            engine.save_checkpoint("out")
    """
    graph = foretell.capture_graph(script(text, processes=8))
    plan = "dp=8,zero=2,overlap=false,sharding=deepspeed,offload=optimizer"
    assert graph.facts.plan is not None
    assert str(graph.facts.plan.plan_for(8)) == plan
    assert (graph.grad_accumulation, graph.precision.name) == (3, "parameters:bf16/master:fp32")
    assert any("autotuning" in c.text for c in graph.caveats)
    made = "aten.randn.default"
    assert ops(graph, made) == ops(by_hand("parameters:bf16/master:fp32", fused=True))
    assert foretell.forecast(graph, "8xa100-80g-sxm").plan == plan


def test_an_optimizer_inside_another_ends_no_step_of_its_own(script: Write) -> None:
    text = """
        import torch
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner = inner
                super().__init__(inner.param_groups, {})
            def step(self, closure=None):
                self.inner.step()
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(9):
            for micro in range(4):
                model(torch.randn(4, 8).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    assert foretell.capture_graph(script(text)).grad_accumulation == 4
