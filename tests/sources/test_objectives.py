"""Objectives of fine-tuning, fused losses and optimizers of matrices: what they compute and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foretell.sources.config import function_of_entries
from foretell.sources.named.huggingface.fused_loss import fused_linear_cross_entropy
from foretell.sources.named.low_rank import LowRankAdam, MuonAndAdam
from foretell.sources.named.rotations import RotatedLinear
from foretell.sources.settings import converted, settings_of

TINY = {"layers": "1", "batch": "2", "seq": "8"}
SMALL = {
    "like": "llama-small",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


class Passes:
    """A step's loss: how many texts went through the trained model, and through its reference."""

    def __init__(self, **settings: str) -> None:
        function = function_of_entries(SMALL, "small", Path("small"))
        workload = function(**converted("small", {**TINY, **settings}, settings_of(function)))
        self.model, batch = workload.model(), workload.batch()
        self.texts = {True: 0, False: 0}  # with gradients, and without
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):
                module.register_forward_hook(self._count)
        self.loss = workload.loss(self.model, batch)
        self.samples = workload.samples or batch["input_ids"].shape[0]
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def _count(self, module: nn.Module, given: Any, made: Any) -> None:
        self.texts[torch.is_grad_enabled()] += given[0].shape[0]


def test_a_fused_loss_has_the_same_value_and_gradients_of_the_same_shapes() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(12, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    labels = torch.randint(40, (12,))
    loss = fused_linear_cross_entropy(hidden, weight, labels)
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.t(), labels))
    loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert (hidden.grad.shape, weight.grad.shape) == (hidden.shape, weight.shape)


@pytest.mark.parametrize(
    ("objective", "trained", "others"),
    [("sft", 2, 0), ("dpo", 4, 4), ("orpo", 4, 0), ("kto", 2, 6), ("reward", 4, 0), ("reward-lm", 4, 0), ("grpo", 2, 0),
     ("grpo-reference", 2, 2), ("ppo", 2, 2)],
)  # fmt: skip
def test_an_objective_takes_its_passes(objective: str, trained: int, others: int) -> None:
    made = Passes(objective=objective)
    assert made.samples == 2
    assert made.texts == {True: trained, False: others}
    assert made.loss.requires_grad


def test_a_reference_is_a_frozen_copy_or_the_model_without_adapters() -> None:
    plain, whole, adapted = Passes(), Passes(objective="dpo"), Passes(objective="dpo", lora_rank="4")
    assert whole.parameters == 2 * plain.parameters
    assert plain.parameters < adapted.parameters < 1.5 * plain.parameters
    assert adapted.texts == {True: 4, False: 4}


def test_a_score_takes_the_place_of_the_vocabulary() -> None:
    width, vocabulary = 32, 100
    assert Passes().parameters - Passes(objective="reward").parameters == width * (vocabulary - 1)


def test_layers_may_be_trained_whole_beside_adapters_or_alone() -> None:
    trained = Passes(lora_rank="4", also_trained="embed_tokens")
    assert trained.model.get_input_embeddings().weight.requires_grad
    assert not trained.model.get_output_embeddings().weight.requires_grad
    last = Passes(trained_layers="1", layers="2").model
    assert [any(p.requires_grad for p in layer.parameters()) for layer in last.model.layers] == [False, True]


def test_doras_lengths_are_trained() -> None:
    names = [
        name for name, p in Passes(lora_rank="4", lora_decomposed="true").model.named_parameters() if p.requires_grad
    ]
    assert any(name.endswith("q_proj.magnitude") for name in names)


def test_blocks_of_inputs_are_rotated_by_what_is_trained() -> None:
    passes = Passes(oft_block="16")
    trained = [(name, p.shape) for name, p in passes.model.named_parameters() if p.requires_grad]
    assert ("model.layers.0.self_attn.q_proj.angles", (2, 16 * 15 // 2)) in trained
    layer = RotatedLinear(torch.nn.Linear(8, 4), 4)
    x = torch.randn(3, 8)
    assert torch.allclose(layer(x), layer.base_layer(x))  # it begins as it was
    torch.nn.init.normal_(layer.angles, std=0.01)
    assert torch.allclose(layer._rotations() @ layer._rotations().mT, torch.eye(4), atol=1e-4)


def test_low_rank_state_is_small() -> None:
    layer = torch.nn.Linear(64, 128, bias=False)
    layer.weight.grad = torch.randn_like(layer.weight)
    before = layer.weight.detach().clone()
    optimizer = LowRankAdam([layer.weight], rank=4)
    optimizer.step()
    kept = sum(t.numel() for t in optimizer.state[layer.weight].values())
    assert kept == 4 * 64 + 2 * 4 * 128
    assert torch.equal(before, layer.weight)  # its projector is zero until it is made of a gradient


def test_muon_leaves_embeddings_and_vectors_to_adam() -> None:
    layer, table, norm = torch.nn.Linear(16, 16, bias=False), torch.nn.Embedding(256, 16), torch.nn.LayerNorm(16)
    parameters = [layer.weight, table.weight, norm.weight]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = MuonAndAdam(parameters)
    optimizer.step()
    assert "momentum_buffer" in optimizer.state[layer.weight]
    assert {"exp_avg", "exp_avg_sq"} <= optimizer.state[table.weight].keys()
    assert {"exp_avg", "exp_avg_sq"} <= optimizer.state[norm.weight].keys()
