"""Kernels of fused trainers: which ops become one, and what is kept for the backward pass then."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foretell import forecast
from foretell.capture import capture
from foretell.cost.workspace import kept_workspaces, temporary_bytes
from foretell.graph import Graph
from foretell.hardware import device as device_named
from foretell.units import MIB
from tests.capture.tiny import codes, names, workload

ROWS, WIDTH, WIDE, WORDS = 4 * 16, 32, 64, 96


class Norm(nn.Module):
    """As language models write it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, leak: bool) -> None:
        super().__init__()
        self.leak = leak
        self.norm, self.gate, self.up = Norm(WIDTH), nn.Linear(WIDTH, WIDE, False), nn.Linear(WIDTH, WIDE, False)
        self.down, self.project = nn.Linear(WIDE, WIDTH, False), nn.Linear(WIDTH, WIDTH, False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = rotated(self.project(x), cos, sin)
        normed = self.norm(x + turned)
        opened = F.silu(self.gate(normed))
        out = F.dropout(self.down(opened * self.up(normed)), 0.1) + x
        return out + opened.mean(-1, keepdim=True) if self.leak else out


class Model(nn.Module):
    def __init__(self, leak: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, False)
        self.layers = nn.ModuleList(Layer(leak) for _ in range(2))
        self.register_buffer("cos", torch.randn(16, WIDTH))
        self.register_buffer("sin", torch.randn(16, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(x)


def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).float().flatten(0, 1), x.flatten())


@cache
def graph(kernels: str, leak: bool = False, **settings: Any) -> Graph:
    given = {"precision": "parameters:bf16/gradients:fp32/master:fp32", "optimizer": torch.optim.AdamW, **settings}
    return capture(
        workload(lambda: Model(leak), lambda: torch.randint(WORDS, (4, 16)), loss=loss, kernels=kernels, **given)
    )


def test_patterns_become_one_op_each() -> None:
    fused = Counter(names(graph("megatron")))
    expected = {
        "aten._fused_rms_norm": 2, "aten._fused_rms_norm_backward": 2, "foretell.rotary": 4, "foretell.gated_backward": 2,
        "foretell.dropout_add": 2, "foretell.cross_entropy_backward": 1, "aten.silu": 0, "aten.neg": 0, "aten.cat": 0,
        "aten.rsqrt": 0, "aten.nll_loss_backward": 0, "aten._fused_adamw_": 1,
    }  # fmt: skip
    assert {name: fused[name] for name in expected} == expected
    assert "kernels-not-fused" in codes(graph("megatron"))


def test_a_norm_keeps_its_input_and_a_gate_its_two() -> None:
    kept, captured = (graph(which).bytes_of("activation") for which in ("megatron", "torch"))
    norm = 4 * ROWS * WIDTH + 2 * ROWS * WIDTH - 2 * ROWS * WIDTH  # fp32 and cast copies; now the sum that it reads
    gate = 2 * ROWS * WIDE  # what was opened
    assert captured - kept == 2 * (norm + gate)


def test_products_add_to_main_gradients_by_themselves() -> None:
    torchs, fused = graph("torch"), graph("megatron")
    main = [op for op in fused.ops if op.phase == "backward" and any(_role(fused, t) == "gradient" for t in op.outputs)]
    assert Counter(op.signature.name for op in main) == {"aten.mm": 9, "aten.add_": 3}  # embedding and norms are added
    assert {op.signature.outputs[0].dtype for op in main} == {"float32"}
    assert fused.bytes_of("gradient") == torchs.bytes_of("gradient")
    assert fused.gradients is not None
    assert len(fused.gradients) == 12


def test_of_a_fused_model_alone_gradients_are_added_up_and_parameters_updated_as_asked() -> None:
    whole, model = (Counter(names(graph(which))) for which in ("megatron", "fused-model"))
    assert model["aten.add_"] == whole["aten.add_"] + 9
    assert (model["aten._fused_adamw_"], model["aten._foreach_sqrt"]) == (0, 1)
    assert model["aten._fused_rms_norm"] == whole["aten._fused_rms_norm"]


def test_a_compiled_loss_writes_its_softmax_anew() -> None:
    plain, compiled = graph("megatron"), graph("megatron-compiled-loss")
    device = device_named("h100-sxm")
    more = sum(temporary_bytes(compiled, device)) - sum(temporary_bytes(plain, device))
    assert more == 4 * ROWS * WORDS  # in fp32
    assert Counter(names(compiled))["foretell.compiled_cross_entropy_backward"] == 1
    assert len(compiled.ops) == len(plain.ops)


def test_a_fused_trainer_has_a_workspace_of_its_own() -> None:
    def sizes(name: str) -> list[int]:
        return sorted(nbytes for _, nbytes in kept_workspaces(graph("megatron"), device_named(name)))

    assert sizes("h100-sxm") == [32 * MIB] * 3
    assert sizes("a100-80g-sxm") == [4 * MIB, 8320 * 1024, 8320 * 1024]
    assert len(kept_workspaces(graph("torch"), device_named("h100-sxm"))) == 2


def test_a_pattern_whose_inside_others_read_stays() -> None:
    fused = Counter(names(graph("megatron", leak=True)))
    assert (fused["aten.silu"], fused["foretell.gated_backward"], fused["foretell.rotary"]) == (2, 0, 4)


@pytest.mark.parametrize(
    "plan", ["dp=1", "dp=2,tp=2,sequence_parallel=true,zero=1", "dp=4,zero=3", "checkpointing=full"]
)
def test_fused_steps_take_less_under_every_plan(plan: str) -> None:
    def ask(which: str) -> Any:
        devices = {"dp=1": 1, "checkpointing=full": 1}.get(plan, 4)
        return forecast(graph(which), on=f"{devices}xh100-sxm", plan=plan, model="roofline")

    fused, captured = ask("megatron"), ask("torch")
    assert fused.device_time.seconds < captured.device_time.seconds
    own = [f.memory.allocated - f.memory.breakdown.workspace for f in (fused, captured)]
    assert own[0] <= own[1]


def _role(graph: Graph, tensor: int) -> str:
    return graph.storages[graph.tensors[tensor].storage].role
