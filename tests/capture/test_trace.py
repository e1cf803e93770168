"""The recorded step: phases, modules, data dependencies, lifetimes, and the variations on a plain training step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import foretell
from foretell.capture import capture
from foretell.cost.flops import total_flops
from foretell.graph import Graph
from foretell.parallel.parameters import parameters
from foretell.simulate.memory import replay
from tests.capture.tiny import MLP_NUMBERS, codes, mlp, named, names, roles, storage_of, the, workload


@cache
def plain(**settings: Any) -> Graph:
    return capture(mlp(**settings))


# Phases and modules.


def test_phases_come_in_order() -> None:
    phases = [op.phase for op in plain().ops]
    assert phases == sorted(phases, key=["forward", "backward", "optimizer"].index)
    assert set(phases) == {"forward", "backward", "optimizer"}


def test_every_op_of_a_layer_carries_its_module_in_both_directions() -> None:
    graph = plain()
    assert [op.module for op in named(graph, "addmm", "forward")] == ["0", "2"]
    assert [op.module for op in named(graph, "mm", "backward")] == ["2", "2", "0"]
    assert the(graph, "relu").module == the(graph, "threshold_backward").module == "1"
    assert the(graph, "nll_loss_forward").module == ""  # the loss is outside the model
    assert {op.module for op in graph.ops if op.phase == "optimizer"} == {""}


def test_nested_modules_are_named_by_their_path() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.inner(x).sigmoid()

    graph = capture(workload(lambda: nn.Sequential(Block(), Block()), lambda: torch.randn(2, 8)))
    assert [op.module for op in named(graph, "tanh")] == ["0.inner.1", "1.inner.1"]
    assert [op.module for op in named(graph, "tanh_backward")] == ["1.inner.1", "0.inner.1"]
    assert [op.module for op in named(graph, "sigmoid")] == ["0", "1"]
    assert [op.module for op in named(graph, "sigmoid_backward")] == ["1", "0"]


# Data dependencies.


def test_what_one_op_writes_the_next_one_reads() -> None:
    graph = plain()
    hidden = named(graph, "addmm")[0]
    relu = the(graph, "relu")
    assert relu.inputs == hidden.outputs
    assert relu.outputs[0] in named(graph, "addmm")[1].inputs
    assert relu.outputs[0] in the(graph, "threshold_backward").inputs


def test_a_view_is_another_tensor_in_the_same_storage() -> None:
    graph = plain()
    transpose = named(graph, "t", "forward")[0]
    source, view = (graph.tensors[i] for i in (*transpose.inputs, *transpose.outputs))
    assert source != view
    assert source.storage == view.storage
    assert view.layout.shape == source.layout.shape[::-1]
    assert graph.storages[view.storage].role == "parameter"


def test_a_slice_starts_further_in() -> None:
    graph = capture(
        workload(lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), loss=lambda model, x: model(x)[1:, 2:].mean())
    )
    last = named(graph, "slice", "forward")[-1]
    assert graph.tensors[last.outputs[0]].offset == 1 * 8 + 2


def test_every_tensor_fits_into_its_storage() -> None:
    graph = plain(optimizer=torch.optim.AdamW)
    for tensor in graph.tensors:
        assert tensor.layout.distinct_bytes <= graph.storages[tensor.storage].nbytes


def test_writing_in_place_names_what_is_written() -> None:
    loss = lambda model, x: model(x).mul_(2).relu_().mean()  # noqa: E731
    graph = capture(workload(lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), loss=loss))
    for name in ("mul_", "relu_"):
        op = the(graph, name)
        assert op.signature.mutates == (0,)
        assert op.outputs == op.inputs[:1]
    assert the(graph, "addmm").signature.mutates == ()
    assert the(plain(optimizer=torch.optim.SGD), "_foreach_add_", "optimizer").signature.mutates == (0, 1, 2, 3)


def test_scalar_arguments_are_kept_by_name() -> None:
    loss = lambda model, x: nn.functional.leaky_relu(model(x), 0.25).mean()  # noqa: E731
    graph = capture(
        workload(lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), lambda: torch.randn(2, 3, 8, 8), loss=loss)
    )
    convolution = the(graph, "convolution").signature
    assert convolution.argument("stride") == (2, 2)
    assert convolution.argument("padding") == (1, 1)
    assert convolution.argument("transposed") is False
    assert convolution.tensor("weight").shape == (4, 3, 3, 3)
    assert the(graph, "leaky_relu").signature.argument("negative_slope") == 0.25


def test_tied_weights_are_one_storage() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    graph = capture(workload(Tied, lambda: torch.randint(10, (2, 3))))
    assert graph.bytes_of("parameter") == graph.bytes_of("gradient") == 10 * 4 * 4
    assert (graph.samples, graph.tokens) == (2, 6)


# Lifetimes.


def test_an_activation_kept_for_backward_dies_in_backward() -> None:
    graph = plain()
    kept = storage_of(graph, the(graph, "relu").outputs[0])
    assert kept.role == "activation"
    assert graph.ops[kept.freed].phase == "backward"
    assert kept.freed == graph.ops.index(the(graph, "threshold_backward"))


def test_what_nobody_keeps_dies_at_once() -> None:
    graph = plain()
    before_relu = storage_of(graph, named(graph, "addmm")[0].outputs[0])
    assert before_relu.role == "temporary"
    assert graph.ops[before_relu.freed].module == "1"


ROW = 4096  # numbers in a row: 16 KiB, a multiple of the allocator's block


def chain(length: int, function: Any, **settings: Any) -> Graph:
    """A vector through a chain of functions; `scale` is the one parameter."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(ROW))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.scale
            for _ in range(length):
                x = function(x)
            return x

    return capture(workload(Chain, lambda: torch.randn(ROW), **settings))


@settings(max_examples=3, deadline=None)
@given(length=st.integers(1, 6))
def test_a_chain_keeps_one_activation_for_each_link_that_needs_it(length: int) -> None:
    """relu keeps its output; the product before it keeps its inputs, which exist anyway."""
    trace = replay(chain(length, torch.relu))
    kept = trace.at_peak["activation"]
    assert kept == length * ROW * 4
    assert trace.at_peak["parameter"] == trace.at_peak["input"] == ROW * 4


def test_a_chain_without_gradients_holds_two_links_at_most() -> None:
    trace = replay(chain(6, torch.relu, optimizer=None))
    assert trace.peak_allocated == 4 * ROW * 4  # weight, input, the link that is read and the one that is written


def test_adding_keeps_nothing() -> None:
    graph = chain(5, lambda x: x + 1)
    large = [s for s in graph.storages if s.role == "activation" and s.nbytes == ROW * 4]
    assert not large


# Whose gradient is whose.


class OfOneSize(nn.Module):
    """Two parameters of one size, the first of which is also used last, so that its gradient is ready first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.first.detach()).sin() * self.second * self.first


def test_parameters_of_one_size_get_their_own_gradients() -> None:
    graph = capture(workload(OfOneSize, lambda: torch.randn(4, 8)))
    update = [graph.tensors[i].storage for i in the(graph, "_foreach_add_").inputs]
    assert graph.gradients == dict(zip(update[:2], update[2:], strict=True))
    first, second = parameters(graph)
    assert {p.storage: p.gradient for p in (first, second)} == graph.gradients
    assert first.ready < second.ready


def test_the_size_of_a_gradient_tells_whose_it_is_only_where_the_file_does_not() -> None:
    graph = capture(workload(OfOneSize, lambda: torch.randn(4, 8)))
    first, second = parameters(replace(graph, gradients=None))
    assert graph.gradients == {first.storage: second.gradient, second.storage: first.gradient}


def test_only_what_is_trained_has_a_gradient_of_its_own() -> None:
    graph = capture(workload(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), lambda: torch.randn(4, 8)))
    assert graph.gradients is not None
    assert {graph.storages[s].role for s in graph.gradients} == {"parameter"}
    assert len(graph.gradients) == len(set(graph.gradients.values())) == 4
    assert sorted(graph.gradients.values()) == [i for i, s in enumerate(graph.storages) if s.role == "gradient"]
    for parameter, gradient in graph.gradients.items():
        assert graph.storages[parameter].nbytes == graph.storages[gradient].nbytes


# Variations.


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    def half_frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model[0].requires_grad_(False)
        return model

    graph = capture(workload(half_frozen, lambda: torch.randn(2, 8), optimizer=torch.optim.AdamW))
    trained = 4 * (16 * 4 + 4)
    held = roles(graph)
    assert held["parameter"] == 4 * MLP_NUMBERS
    assert held["gradient"] == trained
    assert held["optimizer"] == 2 * trained
    assert {op.module for op in named(graph, "mm", "backward")} == {"2"}


def test_low_rank_adapters_train_without_a_gradient_of_the_weight() -> None:
    class Adapted(nn.Module):
        def __init__(self, rank: int = 2) -> None:
            super().__init__()
            self.frozen = nn.Linear(32, 32, bias=False).requires_grad_(False)
            self.down, self.up = nn.Linear(32, rank, bias=False), nn.Linear(rank, 32, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(x) + self.up(self.down(x))

    graph = capture(workload(lambda: nn.Sequential(Adapted(), nn.ReLU(), Adapted()), lambda: torch.randn(4, 32)))
    assert graph.bytes_of("gradient") == 2 * 2 * 32 * 2 * 4
    assert not [s for s in graph.storages if s.role == "gradient" and s.nbytes == 32 * 32 * 4]
    through = [op for op in named(graph, "mm", "backward") if op.module.endswith("frozen")]
    assert [op.signature.outputs[0].shape for op in through] == [(4, 32)]  # on to the first adapter, through the second


class Blocks(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def test_checkpointing_computes_again_and_keeps_less() -> None:
    kept, again = (capture(workload(lambda c=c: Blocks(c), lambda: torch.randn(8, 16))) for c in (False, True))
    assert len(named(kept, "gelu")) == 3
    assert len(named(again, "gelu", "forward")) == len(named(again, "gelu", "backward")) == 3
    assert [op.module for op in named(again, "gelu", "backward")] == ["blocks.2.1", "blocks.1.1", "blocks.0.1"]
    assert again.bytes_of("activation") < kept.bytes_of("activation") / 3
    assert again.bytes_of("gradient") == kept.bytes_of("gradient")
    products = 2 * 8 * 16 * 64
    assert total_flops(kept) == 3 * (2 + 4) * products - products  # no gradient of the input
    assert total_flops(again) >= total_flops(kept) + 3 * products


def test_reentrant_checkpointing_too() -> None:
    class Reentrant(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=True)
            return x

    graph = capture(workload(lambda: Reentrant(True), lambda: torch.randn(8, 16, requires_grad=True)))
    assert len(named(graph, "gelu", "backward")) == 3
    assert graph.bytes_of("gradient") == 4 * 3 * (16 * 64 + 64 + 64 * 16 + 16)


def test_inference_is_the_forward_call_taken_apart() -> None:
    make = lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))  # noqa: E731
    graph = capture(workload(make, lambda: torch.randn(2, 8), optimizer=None, loss=lambda model, x: model(x)))
    assert not graph.training
    assert {op.phase for op in graph.ops} == {"forward"}
    assert roles(graph)["gradient"] == roles(graph)["optimizer"] == graph.bytes_of("activation") == 0
    assert [name for name in names(graph) if name not in ("aten.t", "aten.transpose")] == [
        "aten.addmm", "aten.native_layer_norm", "aten.addmm",
    ]  # fmt: skip


def test_accumulated_micro_steps_are_recorded_once_and_counted() -> None:
    once, four = plain(), plain(grad_accumulation=4)
    assert {op.times for op in once.ops} == {1}
    assert [op.times for op in named(four, "addmm")] == [1, 1, 3, 3]
    assert {op.times for op in four.ops if op.phase == "optimizer"} == {1}
    assert four.grad_accumulation == 4
    assert four.samples == once.samples == 2
    added = [op for op in named(four, "add_", "backward") if storage_of(four, op.inputs[0]).role == "gradient"]
    assert [op.times for op in added] == [3] * 4
    assert roles(four)["gradient"] == roles(once)["gradient"]


@pytest.mark.parametrize("micro_steps", [2, 3, 7])
def test_work_is_linear_in_the_number_of_micro_steps(micro_steps: int) -> None:
    assert total_flops(plain(grad_accumulation=micro_steps)) == micro_steps * total_flops(plain())


def test_what_a_trainer_compiles_is_its_eager_step() -> None:
    graph = plain(compile=True, trainer="torchtitan")
    assert codes(graph) == {"compile-not-modelled"}
    assert [op.signature for op in graph.ops] == [op.signature for op in plain().ops]


def test_what_a_model_makes_on_first_use_is_there_in_the_recorded_step() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.table: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(8.0).cos()
            return self.linear(x) * self.table

    graph = capture(workload(Table, lambda: torch.randn(2, 8)))
    assert not named(graph, "cos")
    assert graph.bytes_of("parameter") == 4 * (8 * 8 + 8) + 4 * 8


def test_constants_made_in_the_step_are_no_model_state() -> None:
    loss = lambda model, x: (model(x) * torch.tensor([1.0, 2.0])).mean()  # noqa: E731
    graph = capture(workload(lambda: nn.Linear(8, 2), lambda: torch.randn(2, 8), loss=loss))
    assert graph.bytes_of("parameter") == 4 * (8 * 2 + 2)
    assert storage_of(graph, the(graph, "lift_fresh").outputs[0]).born >= 0


def test_samples_and_tokens_as_stated_or_as_found() -> None:
    assert (plain().samples, plain().tokens) == (2, None)
    stated = plain(samples=7, tokens=70)
    assert (stated.samples, stated.tokens) == (7, 70)


def test_the_same_workload_gives_the_same_graph() -> None:
    first, second = (capture(mlp(optimizer=torch.optim.AdamW, precision="amp-bf16")) for _ in range(2))
    assert first == second
    assert first.content_hash == second.content_hash
    assert first.provenance["torch"] == torch.__version__
    assert first.provenance.keys() >= {"torch", "python", "captured_on"}


def test_a_workload_may_ask_for_the_accelerator_and_compile() -> None:
    @torch.compile
    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        assert torch.isfinite(x).all()
        return torch.nn.functional.mse_loss(model(x.to("cuda", non_blocking=True)), torch.ones(4, 8, device="cuda:0"))

    asked = foretell.Workload(
        name="asked",
        model=lambda: torch.compile(torch.nn.Linear(8, 8).cuda()),
        batch=lambda: torch.randn(4, 8, device=torch.device("cuda")).cuda(),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    plain = replace(
        asked,
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda: torch.randn(4, 8),
        loss=lambda model, x: torch.nn.functional.mse_loss(model(x), torch.ones(4, 8)),
    )
    graph = foretell.capture_graph(asked)
    assert {"compiled", "compile-not-modelled"} <= codes(graph)  # the model in the capture, the loss before it
    products = {"aten.addmm", "aten.mm", "aten.mse_loss", "aten.mse_loss_backward"}
    ran, expected = (
        [
            (op.signature.name, op.signature.inputs, op.signature.outputs)
            for op in made.ops
            if op.signature.name in products
        ]
        for made in (graph, foretell.capture_graph(plain))
    )
    assert ran == expected


def test_an_assertion_on_data_is_tried_on_a_small_real_step() -> None:
    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = model(x).softmax(-1)
        assert (made.sum(-1) > 0.9).all()
        return made.square().sum()

    graph = foretell.capture_graph(
        foretell.Workload(
            name="asserts",
            model=lambda: torch.nn.Linear(8, 8),
            batch=lambda: torch.randn(32, 8),
            loss=loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )
    )
    assert codes(graph) == {"ran-on-cpu"}
    assert graph.samples == 32
