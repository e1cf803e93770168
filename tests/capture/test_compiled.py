"""Compiled steps: the kernels that torch's compiler schedules for a GPU, found without one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import foretell
from foretell.errors import NotModelled
from foretell.graph.operators import ENTERED, FUSED, LAUNCHED_BY


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return made


def block() -> foretell.Workload:
    return foretell.Workload(
        name="block",
        model=lambda: nn.Sequential(Block(), Block()),
        batch=lambda: torch.randn(32, 64),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        compile=True,
    )


@cache
def compiled() -> foretell.Graph:
    return foretell.capture_graph(block())


@cache
def eager() -> foretell.Graph:
    return foretell.capture_graph(replace(block(), compile=False))


def test_ops_between_products_are_fused() -> None:
    entered, *forward = [op.signature for op in compiled().ops if op.phase == "forward"][:7]
    assert (entered.name, entered.argument("inputs")) == (ENTERED, 13)
    norm, product, gelu, second, joined = forward[:5]
    assert [s.name for s in forward[:5]] == [FUSED, "aten.addmm", FUSED, "aten.addmm", FUSED]
    kinds = ("persistent_reduction", "pointwise", "persistent_reduction")
    assert [norm.target, gelu.target, joined.target] == [f"{FUSED}.{kind}" for kind in kinds]
    assert {s.argument(LAUNCHED_BY) for s in (entered, *forward[:5])} == {"code"}
    assert (norm.argument("reduced"), gelu.argument("reduced")) == (64, 1)
    assert gelu.argument("traffic") == 2 * 32 * 256 * 4
    assert "aten.erf.default" in str(gelu.argument("of"))
    assert product.outputs[0].shape == (32, 256)
    assert second.outputs[0].shape == (32, 64)


def test_a_compiled_step_has_the_parameters_gradients_and_products_of_the_eager_one() -> None:
    for role in ("parameter", "gradient", "input"):
        assert compiled().bytes_of(role) == eager().bytes_of(role)
    assert len(compiled().gradients or ()) == len(eager().gradients or ()) == 12
    products = [
        sum(op.signature.name in ("aten.mm", "aten.addmm") for op in graph.ops) for graph in (compiled(), eager())
    ]
    assert products[0] == products[1]
    assert {op.module for op in compiled().ops} >= {"0.norm", "1.up", "1.down"}


def test_the_forecast_says_that_kernels_are_the_compilers() -> None:
    forecast = foretell.forecast(compiled(), on="h200")
    assert "compiled" in {caveat.code for caveat in forecast.caveats}
    assert "compile-not-modelled" not in {caveat.code for caveat in forecast.caveats}
    assert forecast.memory.allocated <= foretell.forecast(eager(), on="h200").memory.allocated * 1.1


def test_capture_of_a_compiled_step_repeats() -> None:
    assert foretell.capture_graph(block()).content_hash == compiled().content_hash


def test_a_plan_that_cuts_a_compiled_step_is_refused() -> None:
    assert foretell.parallelize(compiled(), foretell.Plan(dp=4)).ranks == 4
    with pytest.raises(NotModelled, match=r"tp=2 of a compiled step.*compile=False"):
        foretell.parallelize(compiled(), foretell.Plan(tp=2))


@pytest.mark.parametrize(
    "plan", [foretell.Plan(dp=4, zero=3), foretell.Plan(dp=4, zero=3, checkpointing="full")], ids=str
)
def test_blocks_of_a_compiled_step_are_gathered_and_run_again_as_those_of_the_eager_one(plan: foretell.Plan) -> None:
    ours, theirs = (foretell.parallelize(graph, plan) for graph in (compiled(), eager()))
    exchanged = [[(c.kind, c.nbytes) for c in program.roles[0].collectives] for program in (ours, theirs)]
    assert len(exchanged[0]) >= 4
    assert exchanged[0] == exchanged[1]
    assert "compiled-by-blocks" in {caveat.code for caveat in ours.whole.caveats}
    if plan.checkpointing != "none":
        assert sum(op.signature.name == FUSED for op in ours.roles[0].graph.ops) > sum(
            op.signature.name == FUSED for op in compiled().ops
        )


def test_a_step_that_compiles_by_itself_is_eager_under_a_plan_that_cuts_its_kernels() -> None:
    by_itself = replace(block(), model=lambda: torch.compile(nn.Sequential(Block(), Block())), compile=False)
    whole, cut = (foretell.forecast(by_itself, on="2xh200", plan=plan) for plan in ("dp=2", "tp=2"))
    assert whole.graph.is_compiled
    assert not cut.graph.is_compiled
    assert "compile-not-modelled" in {caveat.code for caveat in cut.caveats}


def test_a_mode_of_the_compiler_that_is_not_modelled_is_named() -> None:
    graph = foretell.capture_graph(replace(block(), compile="reduce-overhead"))
    assert {caveat.code for caveat in graph.caveats} == {"compiled", "compile-mode"}


class Bars(nn.Module):
    """Batch norm and group norm, whose decompositions look at the device."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.group = nn.BatchNorm2d(8), nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.group(self.batch(x))
        return made


def test_norms_are_taken_apart_as_on_a_gpu() -> None:
    """On a CPU, batch norm would write its means again in 16 bits, and group norm would scale in a kernel more."""
    graph = foretell.capture_graph(
        replace(block(), model=Bars, batch=lambda: torch.randn(4, 8, 16, 16), precision="amp-bf16")
    )
    forward = [op.signature for op in graph.ops if op.phase == "forward" and op.signature.name == FUSED]
    assert not any(out.dtype == "bfloat16" and out.numel == 8 for s in forward for out in s.outputs)
    assert not any("aten.neg" in str(s.argument("of")) for s in forward)


class Filters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.other = nn.Conv2d(3, 128, 3), nn.BatchNorm2d(128), nn.Conv2d(128, 128, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.other(nn.functional.relu(self.norm(self.one(x))))
        return made


def test_gradients_of_convolutions_lie_as_the_forward_pass_lays_out() -> None:
    """Channels last, as the compiler has it for a GPU: nothing is copied to where it was traced."""
    graph = foretell.capture_graph(replace(block(), model=Filters, batch=lambda: torch.randn(8, 3, 16, 16)))
    convolved = [op.signature for op in graph.ops if op.signature.name == "aten.convolution"]
    assert all(out.is_channels_last for s in convolved for out in s.outputs)
    gradients = [op.signature for op in graph.ops if op.signature.name == "aten.convolution_backward"]
    assert len(gradients) == 2
    assert all(x.is_channels_last for s in gradients for x in s.inputs[:3])
    copied = [s for s in graph.signatures if s.name == FUSED and "convolution_backward" in str(s.argument("of"))]
    assert not any(len(s.inputs) == 1 and s.argument("operations") == 0 for s in copied)


class Scattered(nn.Module):
    """Writes by indices, parts of a whole, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 16)
        self.rows = nn.ModuleList(nn.EmbeddingBag(50, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(32) % 10
        made = self.up(x)
        most = torch.zeros(10, 16).scatter_reduce(0, places[:, None].expand(-1, 16), made, "amax", include_self=False)
        added = torch.zeros(10, 16).index_put((torch.tensor([1, 2, 3] * 4),), made[:12], accumulate=True)
        whole = torch.stack([made, *(row(places[:, None]) for row in self.rows)], 1)
        return most.sum() + added.square().sum() + whole.square().sum()


def test_writes_by_indices_and_into_parts_are_followed() -> None:
    graph = foretell.capture_graph(replace(block(), model=Scattered))
    assert graph.is_compiled
    assert "compile-not-modelled" not in {caveat.code for caveat in graph.caveats}
    assert "aten.scatter_reduce_" in {op.signature.name for op in graph.ops}


class Products(nn.Module):
    """What is added to the first product is read by nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(nn.functional.relu(self.up(x)))
        return made


class Kept(Products):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        risen = self.up(x)
        made: torch.Tensor = self.down(nn.functional.relu(risen)).sum() + risen
        return made


@pytest.mark.parametrize(("model", "over"), [(Products, True), (Kept, False)])
def test_a_kernel_writes_over_what_it_reads_last(model: type[nn.Module], over: bool) -> None:
    graph = foretell.capture_graph(replace(block(), model=model, loss=lambda model, x: model(x), optimizer=None))
    relu = next(op for op in graph.ops if "aten.relu" in str(op.signature.argument("of", "")))
    (read,) = {graph.tensors[number].storage for number in relu.inputs}
    written = {graph.tensors[number].storage for number in relu.outputs}
    assert (read in written) is over
    assert bool(relu.signature.mutates) is over


def test_the_host_pays_for_launches_once_where_a_graph_of_cuda_replays_them() -> None:
    forecasts = [
        foretell.forecast(foretell.capture_graph(replace(block(), compile=how)), on="h200")
        for how in (True, "reduce-overhead")
    ]
    assert forecasts[1].host_time.seconds < 0.9 * forecasts[0].host_time.seconds


def test_graph_breaks_leave_what_is_between_them_eager() -> None:
    def broken(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = model(x)
        return made.square().mean()

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            made: torch.Tensor = self.second(x)
            return made

    graph = foretell.capture_graph(replace(block(), model=Broken, loss=broken))
    fused = [op for op in graph.ops if op.phase == "forward" and op.signature.name == FUSED]
    assert len(fused) > sum(op.phase == "forward" and op.signature.name == FUSED for op in compiled().ops)


class Dropped(nn.Module):
    """Drops whole samples by a Bernoulli's draw, is called with two shapes, and casts inside the code that is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.new_empty((x.shape[0], 1)).bernoulli_(0.9)
        with torch.autocast("cpu", enabled=False):
            made: torch.Tensor = x + self.inner(x) * kept
        return made


def test_draws_casts_and_other_shapes_are_compiled() -> None:
    graph = foretell.capture_graph(
        replace(
            block(),
            model=Dropped,
            batch=lambda: (torch.randn(16, 64), torch.randn(40, 64)),
            loss=lambda model, xs: model(xs[0]).square().mean() + model(xs[1]).square().mean(),
        )
    )
    assert {caveat.code for caveat in graph.caveats} == {"compiled"}
    entered = [op for op in graph.ops if op.signature.name == ENTERED]
    assert len(entered) == 4
    shapes = {out.shape for op in graph.ops if op.signature.name == FUSED for out in op.signature.outputs}
    assert {(16, 64), (40, 64)} <= shapes


class Recurrent(nn.Module):
    """Whose forward pass the compiler leaves alone as a whole, and what runs in it too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(32, 16), nn.GRU(16, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(self.embed(x))[0]
        return made


def test_nothing_is_compiled_of_a_recurrent_network() -> None:
    graph = foretell.capture_graph(
        replace(block(), model=Recurrent, batch=lambda: torch.randint(0, 32, (4, 8))),
    )
    assert not graph.is_compiled
    assert [caveat.text for caveat in graph.caveats if caveat.code == "compiled"] == [
        "torch.compile finds nothing that it could compile; the step runs as it is written."
    ]


@pytest.mark.parametrize("compile", [False, True])
def test_the_loss_of_unaligned_letters_needs_no_real_step(compile: bool) -> None:
    def loss(model: nn.Module, b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores = nn.functional.log_softmax(model(b[0]), -1).transpose(0, 1)
        return nn.functional.ctc_loss(scores, b[1], (30,) * 4, (5,) * 4, zero_infinity=True)

    workload = replace(
        block(), loss=loss, compile=compile, batch=lambda: (torch.randn(4, 30, 64), torch.randint(1, 20, (4, 5)))
    )
    graph = foretell.capture_graph(workload)
    assert {caveat.code for caveat in graph.caveats} == ({"compiled"} if compile else set())
    (found,) = [op.signature for op in graph.ops if op.signature.name == "aten._ctc_loss"]
    assert [out.shape for out in found.outputs] == [(4,), (4, 30, 11)]
