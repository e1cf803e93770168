"""Sharded modules, meshes, tensor parallelism and distributed checkpoints, as scripts use them: one replica runs whole."""

from __future__ import annotations

import pytest

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

TWO_DIMENSIONS = """
    import os, torch
    from torch import nn
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.width = 8, 8
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        def forward(self, x):
            q, k, v = (t.view(*x.shape[:2], self.heads, self.width).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))

    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    assert mesh["dp"].size() == world // 2 and mesh.get_group("tp") is not None and mesh["tp"].get_local_rank() == 0
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(64), Attention(), nn.Linear(64, 64))
    model[1].heads = model[1].heads // mesh["tp"].size()
    parallelize_module(model, mesh["tp"], {"0": SequenceParallel(), "1.qkv": ColwiseParallel(),
        "1": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "1.out": RowwiseParallel(output_layouts=Shard(1))})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard([model[0], model[1]], mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    assert isinstance(model, FSDPModule) and isinstance(model, nn.Sequential) and isinstance(model[1], Attention)
    model[0].set_modules_to_forward_prefetch([model[1]])
    model.unshard(async_op=True).wait()
    model.to_empty(device="cuda")
    assert all(p.placements == (Shard(0),) and p.device_mesh.ndim == 1 for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    states = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    get_optimizer_state_dict(model, optimizer)
    assert states["2.weight"].full_tensor().shape == (64, 64)
    dcp.save(states, checkpoint_id="somewhere")
    assert distribute_tensor(torch.zeros(4), mesh["dp"], [Shard(0)]).to_local().is_cuda
    for step in range(4):
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            model(torch.randn(4, 16, 64, device="cuda")).float().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_mesh_of_two_dimensions_is_the_plan(script: Write) -> None:
    graph = foretell.capture_graph(script(TWO_DIMENSIONS, processes=8))
    assert graph.facts.plan is not None
    assert str(graph.facts.plan.plan_for(8)) == "dp=4,tp=2,zero=3,sequence_parallel=true"
    assert graph.facts.parameters == 2 * 64 + 64 * 192 + 192 + 2 * (64 * 64 + 64)
    assert (graph.grad_accumulation, graph.precision.arithmetic, graph.precision.parameters) == (2, "bf16", "fp32")
    assert not [c.text for c in graph.caveats if c.code.endswith("not-modelled")]


@pytest.mark.slow
def test_a_pipeline_is_refused_with_a_way_out(script: Write) -> None:
    text = """
        import torch
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
        torch.distributed.init_process_group("nccl")
        stage = PipelineStage(torch.nn.Linear(8, 8), 0, 2, torch.device("cuda"))
    """
    with pytest.raises(WorkloadError, match=r"one stage.*--plan dp=…,pp=…"):
        foretell.capture_graph(script(text, processes=2))


FSDP_FACE = """
    import torch
    from torch import nn
    from torch.distributed import fsdp
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
    torch.distributed.init_process_group("nccl")
    class Model(nn.Sequential):
        steps = 3
    model = FSDP(Model(nn.Linear(8, 8), nn.Linear(8, 8)), device_id=torch.cuda.current_device())
    assert model.steps == 3 and model[0].in_features == 8 and FSDP.fsdp_modules(model) == [model]
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.Linear))
    optimizer = torch.optim.SGD(model.parameters())
    with FSDP.summon_full_params(model), FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.state_dict()
    for step in range(4):
        with model.no_sync():
            model(torch.randn(4, 8, device="cuda")).sum().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
"""


@pytest.mark.slow
def test_what_scripts_ask_of_fsdp(script: Write) -> None:
    graph = foretell.capture_graph(script(FSDP_FACE, processes=2))
    assert graph.facts.plan is not None
    assert str(graph.facts.plan.plan_for(2)) == "dp=2,zero=3"
    assert graph.facts.parameters == 144


@pytest.mark.slow
def test_an_evaluation_first_and_a_loader_made_anew(script: Write) -> None:
    """As Lightning does: it makes loaders again by their signature, and evaluates before it trains."""
    text = """
        import inspect, torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
        from torch.utils.data import DataLoader, TensorDataset
        torch.distributed.init_process_group("nccl")
        first = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4, num_workers=2)
        names = inspect.signature(first.__init__).parameters
        loader = DataLoader(**{name: value for name, value in vars(first).items() if name in ("dataset", "batch_size") and name in names})
        model = FSDP(torch.nn.Linear(8, 8), device_id=0, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
        optimizer = torch.optim.SGD(model.parameters())
        with torch.no_grad():
            model(torch.randn(4, 8, device="cuda"))
        for (x,) in loader:
            model(x.cuda()).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    graph = foretell.capture_graph(script(text, processes=2))
    assert (graph.samples, graph.precision.arithmetic) == (4, "bf16")
