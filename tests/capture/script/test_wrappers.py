"""What wrappers of many devices are asked for: in the plan, free of cost, or a caveat. Nothing vanishes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributed import fsdp as torch_fsdp
from torch.testing._internal.distributed.fake_pg import FakeStore

import foretell
from foretell.capture.compiled.wishes import Compiled, Left
from foretell.capture.script.findings import Aside, Ddp, Findings, Fsdp, StandIn
from foretell.capture.script.wrappers import data_parallel, ddp, deepspeed, fsdp, fully_shard
from foretell.graph import Caveat
from foretell.precision import PRECISIONS, Precision
from tests.capture.script.conftest import Write

WRAPPERS: list[tuple[ModuleType, Callable[..., Any]]] = [
    (ddp, ddp.TORCH_CLASS),
    (data_parallel, data_parallel.TORCH_CLASS),
    (fsdp, torch_fsdp.FullyShardedDataParallel),
    (fully_shard, torch_fsdp.fully_shard),
    (deepspeed, deepspeed.initialize),
]


@pytest.mark.parametrize(("module", "call"), WRAPPERS, ids=lambda value: getattr(value, "__name__", "call"))
def test_every_keyword_of_a_wrapper_is_used_free_or_a_caveat(module: ModuleType, call: Callable[..., Any]) -> None:
    read = [*module.USED, *module.FREE, *getattr(module, "NOT_MODELLED", ())]
    assert len(set(read)) == len(read), "a keyword is read in one way"
    assert set(inspect.signature(call).parameters) <= set(read)


HEAD = """
    import torch
    from torch import nn
    import torch.distributed as dist
    from torch.distributed import fsdp
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, CPUOffload, MixedPrecision
    from torch.nn.parallel import DistributedDataParallel as DDP
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
"""
LOOP = """
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        model(torch.randn(16, 64, device="cuda")).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def captured(script: Write, wrapped: str, processes: int = 16) -> foretell.Graph:
    body = "".join(f"    {line.strip()}\n" for line in wrapped.strip().splitlines())
    return foretell.capture_graph(script(HEAD + body + LOOP, processes=processes))


def plan(graph: foretell.Graph, devices: int = 16, nodes: int = 2) -> str:
    assert graph.facts.plan is not None
    return str(graph.facts.plan.plan_for(devices, nodes))


def unmodelled(graph: foretell.Graph) -> str:
    return " ".join(c.text for c in graph.caveats if c.code.endswith("not-modelled"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ("device_id=0", "dp=16,zero=3"),
        ("sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2, device_id=0", "dp=16,zero=2,hybrid_shard=8"),
        (
            "sharding_strategy=ShardingStrategy.HYBRID_SHARD, cpu_offload=CPUOffload(offload_params=True), device_id=0",
            "dp=16,zero=3,hybrid_shard=8,offload=parameters",
        ),
        (
            "sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=0, device_mesh=init_device_mesh('cuda', (4, 4))",
            "dp=16,zero=3,hybrid_shard=4",
        ),
    ],
)
def test_fsdp_says_who_shares_a_copy_and_what_the_host_keeps(script: Write, wrapped: str, expected: str) -> None:
    graph = captured(script, f"model = FSDP(model, {wrapped})")
    assert plan(graph) == expected
    assert not unmodelled(graph)


@pytest.mark.slow
def test_a_forecast_of_a_hybrid_and_offloaded_script_has_them_on_any_number_of_nodes(script: Write) -> None:
    graph = captured(
        script,
        "model = FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, cpu_offload=CPUOffload(True), device_id=0)",
    )
    hybrid = foretell.forecast(graph, "2x8xh100-sxm")
    assert hybrid.plan == "dp=16,zero=3,hybrid_shard=8,offload=parameters"
    assert foretell.forecast(graph, "8xh100-sxm").plan == "dp=8,zero=3,offload=parameters"
    plain = foretell.forecast(graph, "2x8xh100-sxm", "dp=16,zero=3")
    assert hybrid.step_time.seconds != plain.step_time.seconds


@pytest.mark.slow
def test_what_fsdp_is_asked_for_and_a_plan_cannot_have_is_a_caveat(script: Write) -> None:
    graph = captured(
        script,
        """
        few = dist.new_group(list(range(4)))
        model = FSDP(model, few, ShardingStrategy.SHARD_GRAD_OP, CPUOffload(True), ignored_modules=[model[0]],
                     backward_prefetch=fsdp.BackwardPrefetch.BACKWARD_POST, limit_all_gathers=False)
        model.register_comm_hook(None, lambda state, gradient: None)
        """,
    )
    assert plan(graph) == "dp=16,zero=2,offload=optimizer"
    text = unmodelled(graph)
    for name in (
        "ignored_modules",
        "backward_prefetch",
        "limit_all_gathers",
        "process_group (4 of 16 ranks",
        "cpu_offload",
    ):
        assert name in text
    assert "communication hook" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("offload_policy=fsdp.CPUOffloadPolicy()", "dp=16,zero=3,offload=parameters"),
        ("offload_policy=fsdp.CPUOffloadPolicy(), reshard_after_forward=False", "dp=16,zero=2,offload=optimizer"),
        ("mesh=init_device_mesh('cuda', (4, 4))", "dp=16,zero=3,hybrid_shard=4"),
    ],
)
def test_fully_shard_says_what_the_host_keeps(script: Write, how: str, expected: str) -> None:
    graph = captured(script, f"model = model.cuda()\nfsdp.fully_shard(model[0], {how})\nfsdp.fully_shard(model, {how})")
    assert plan(graph) == expected
    assert ("offload_policy" in unmodelled(graph)) == ("offload=optimizer" in expected)


@pytest.mark.slow
def test_fully_shard_of_a_model_on_the_host_computes_on_the_device(script: Write) -> None:
    graph = captured(script, "fsdp.fully_shard(model, offload_policy=fsdp.CPUOffloadPolicy())")
    assert plan(graph) == "dp=16,zero=3,offload=parameters"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "share"),
    [
        ("model.register_comm_hook(None, default_hooks.allreduce_hook)", 1.0),
        ("model.register_comm_hook(None, default_hooks.fp16_compress_hook)", 0.5),
        ("model.register_comm_hook(None, default_hooks.bf16_compress_hook)", 0.5),
        ("model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)", 0.5),
    ],
)
def test_a_hook_that_compresses_gradients_sends_half_the_bytes(script: Write, hook: str, share: float) -> None:
    graph = captured(script, f"model = DDP(model.cuda())\n{hook}", processes=8)
    assert not unmodelled(graph)
    sent = foretell.forecast(graph, "8xh100-sxm").network.sent_bytes
    numbers = 64 * 128 + 128 + 128 * 64 + 64
    assert sent == pytest.approx(share * 2 * 7 / 8 * 4 * numbers, rel=0.01)


@pytest.mark.slow
@pytest.mark.slow
def test_what_lightning_asks_of_ddp_by_hand_is_there(script: Write) -> None:
    wrapped = """
        from pytorch_lightning.overrides.distributed import prepare_for_backward
        model = DDP(model.cuda(), find_unused_parameters=True)
        prepare_for_backward(model, [model(torch.randn(16, 64, device="cuda"))])
    """
    assert plan(captured(script, wrapped)) == "dp=16"


def test_hooks_and_keywords_of_ddp_that_are_not_modelled_are_caveats(script: Write) -> None:
    graph = captured(
        script,
        """
        few = dist.new_group(list(range(4)))
        model = DDP(model.cuda(), None, None, 0, True, True, few, 10, find_unused_parameters=True, gradient_as_bucket_view=True)
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        """,
    )
    assert plan(graph) == f"dp=16,bucket_bytes={10 * 2**20}"  # given by position
    text = unmodelled(graph)
    for name in ("find_unused_parameters", "gradient_as_bucket_view", "process_group (4 of 16 ranks", "powerSGD_hook"):
        assert name in text


@pytest.mark.slow
def test_data_parallel_on_few_devices_is_a_caveat(script: Write) -> None:
    graph = captured(script, "model = nn.DataParallel(model.cuda(), [0, 1])", processes=4)
    assert plan(graph, 4, 1) == "dp=4,data_parallel=dp"
    assert "device_ids (2 of 4 devices" in unmodelled(graph)


@pytest.mark.slow
def test_data_parallel_divides_the_batch(script: Write) -> None:
    """Each device computes its part of what the loader gives; the loss is of all that comes back to the first."""
    text = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x, *, scale):
            assert x.shape == (5, 64) and x.is_cuda and scale == 2.0
            y = self.head(x) * scale
            return {"logits": y, "loss": y.mean()}

    data = torch.utils.data.TensorDataset(torch.randn(180, 64), torch.randint(10, (180,)))
    model = nn.DataParallel(Model().cuda())
    optimizer = torch.optim.SGD(model.parameters())
    for x, y in torch.utils.data.DataLoader(data, batch_size=18):
        out = model(x, scale=2.0)  # which moves what it is given
        assert out["logits"].shape == (18, 10) and out["loss"].shape == (4,)
        (nn.functional.cross_entropy(out["logits"], y.cuda()) + out["loss"].mean()).backward()
        optimizer.step()
    """
    graph = foretell.capture_graph(script(text, processes=4))
    assert plan(graph, 4, 1) == "dp=4,data_parallel=dp"
    assert (graph.samples, graph.facts.parameters) == (5, 650)


@pytest.mark.slow
def test_collectives_of_the_script_itself_are_a_caveat(script: Write) -> None:
    text = HEAD + "    model = DDP(model.cuda())\n" + LOOP + "        dist.all_reduce(torch.zeros(1, device='cuda'))\n"
    graph = foretell.capture_graph(script(text, processes=2))
    assert "all_reduce" in unmodelled(graph)


@pytest.mark.slow
def test_a_script_in_a_fork_starts_clean(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set in the process that a capture is forked from is not the script's: nor its ranks, nor its group of them."""
    text = """
        import os, torch
        assert "WORLD_SIZE" not in os.environ and not torch.distributed.is_initialized() and torch.is_grad_enabled()
        assert torch.get_default_dtype() is torch.float32
        torch.distributed.init_process_group("nccl")
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(9):
            model(torch.randn(4, 8).cuda()).sum().backward()
            optimizer.step()
    """
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            graph = foretell.capture_graph(script(text))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.distributed.destroy_process_group()
    assert graph.precision.name == "torch-fp32"
    assert plan(graph, 1, 1) == "dp=1"


def test_a_script_in_a_fork_makes_an_accelerator_of_its_own(script: Write) -> None:
    accelerate = pytest.importorskip("accelerate")
    text = """
        import accelerate, torch
        accelerator = accelerate.Accelerator(mixed_precision="bf16")
        model = torch.nn.Linear(8, 8)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
        for step in range(9):
            accelerator.backward(model(torch.randn(4, 8).cuda()).sum())
            optimizer.step()
    """
    accelerate.Accelerator(cpu=True)
    try:
        assert foretell.capture_graph(script(text)).precision.name == "amp-bf16"
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 3])
def test_deepspeeds_engine_knows_its_stage(script: Write, stage: int) -> None:
    text = f"""
        import torch, deepspeed
        model = torch.nn.Linear(8, 8)
        config = {{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": {stage}}},
                  "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}}}}
        engine, *_ = deepspeed.initialize(model=model, config=config, mpu=object())
        assert engine.zero_optimization_stage() == {stage}, engine.zero_optimization_stage()
        for step in range(9):
            engine.backward(engine(torch.randn(4, 8, device="cuda")).sum())
            engine.step()
    """
    graph = foretell.capture_graph(script(text, processes=2))
    assert graph.facts.plan is not None
    assert graph.facts.plan.settings.get("zero", 0) == stage
    assert "mpu" in unmodelled(graph)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_hook_changes_what_is_sent_and_nothing_else(name: str) -> None:
    computed = Precision.parse(name)
    found = Findings(wrapper=Ddp(bucket_bytes=1, reduce="fp16")).precision(computed)
    again = Precision.parse(str(found))  # as a graph's file keeps it
    assert again == found
    assert (found.reduce, found.arithmetic) == ("fp16", name)
    assert dataclasses.replace(found, name=name, reduce=computed.reduce) == computed


SCRIPT = foretell.Script(path="train.py", processes=2)
CHANGES: dict[str, Any] = {
    "world": 4, "degrees": {"tp": 2}, "wrapper": Fsdp(zero=3), "mixed": Precision(parameters="bf16", master="fp32"),
    "compiled": Compiled(left=(Left("step", "x"),)),
    "sync_batch_norm": True, "collectives": ("all_reduce",), "kernels": ("apex.x",), "stand_ins": (StandIn(what="pictures"),),
    "unmodelled": (Caveat("x-not-modelled", "x"),), "assumptions": ("a loss",), "asides": (Aside(what="evaluation", passes=8),),
    "fp8": "delayed",
}  # fmt: skip
RUN_BY = ("copies", "optimizer")  # what the session itself works with: copies are cleared, no update is waited for


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Findings) if f.name not in RUN_BY])
def test_every_finding_changes_the_plan_the_precision_or_the_caveats(name: str) -> None:
    def answers(findings: Findings) -> tuple[Any, ...]:
        precisions = [findings.precision(Precision.parse(name)) for name in ("torch-fp32", "bf16")]
        return findings.plan(SCRIPT), precisions, tuple(findings.caveats(SCRIPT))

    assert answers(Findings(**{name: CHANGES[name]})) != answers(Findings())


def test_a_class_of_dataparallel_may_say_itself_what_each_device_is_given(script: Write) -> None:
    text = """
        import torch
        from torch import nn

        class Own(nn.DataParallel):
            def scatter(self, inputs, kwargs, device_ids):
                return [[batch] for batch in inputs[0]], [{} for _ in inputs[0]]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(8, 4)

            def forward(self, given):
                return self.layer(given["picture"].cuda()).sum()

        model = Own(Model(), device_ids=[0]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            model([{"picture": torch.randn(6, 8)}]).mean().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text)).samples == 6
