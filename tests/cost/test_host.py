"""What a host pays to issue ops."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

from foretell.capture import capture
from foretell.cost.host import MODES, HostCosts, inner_launches, updated_parameters, usual_costs
from foretell.cost.model import DEFAULT, load_model
from foretell.errors import ModelError
from foretell.graph import Graph, Layout, Op, Signature
from foretell.graph.calls import Call
from foretell.graph.operators import ENTERED, LAUNCHED_BY
from foretell.hardware import host
from foretell.workload import Workload
from tests.report.examples import small_graph

VM = host("cloud-vm")


@pytest.fixture
def graph() -> Graph:
    return small_graph()[0]


@pytest.mark.parametrize("costs", [usual_costs(), load_model(DEFAULT).host], ids=["usual", "fitted"])
def test_every_op_costs_something_and_a_view_costs_less(costs: HostCosts, graph: Graph) -> None:
    assert all(s > 0 for s in costs.seconds(graph, VM))
    for mode in MODES:
        assert 0 < costs.view[mode] < min(costs.kernel[mode].values())


def test_a_host_twice_as_slow_takes_twice_as_long(graph: Graph) -> None:
    slow = dataclasses.replace(VM, op_seconds=2 * VM.op_seconds)
    costs = load_model(DEFAULT).host
    assert sum(costs.seconds(graph, slow)) == pytest.approx(2 * sum(costs.seconds(graph, VM)))


def test_inference_is_cheaper_than_a_forward_pass_that_is_watched(graph: Graph) -> None:
    watched = graph if graph.training else dataclasses.replace(graph, training=True)
    free = dataclasses.replace(graph, training=False)
    costs = load_model(DEFAULT).host
    assert sum(costs.seconds(free, VM)) < sum(costs.seconds(watched, VM))


def entered(graph: Graph, launched_by: str = "code") -> Graph:
    """With compiled code entered twice before its first op."""
    call = Signature(f"{ENTERED}.call", (), (), (("inputs", 10), (LAUNCHED_BY, launched_by)))
    return dataclasses.replace(graph, ops=(*[Op(call, "forward", "", (), ())] * 2, *graph.ops))


@pytest.mark.parametrize("launched_by", ["code", "graph"])
def test_a_pass_enters_compiled_code_once(graph: Graph, launched_by: str) -> None:
    plain = dataclasses.replace(load_model(DEFAULT).host, entered=0.0, given=0.5, entering={})
    costs = dataclasses.replace(plain, entering={"forward": 30.0, "inference": 20.0})
    given = VM.op_seconds * (0 if launched_by == "graph" else 2 * 10 * plain.given)
    assert sum(costs.seconds(graph, VM)) == pytest.approx(sum(plain.seconds(graph, VM))), "nothing of it is compiled"
    alone = 20.0
    if launched_by == "graph":
        costs, alone = dataclasses.replace(costs, entering={**costs.entering, "replayed": 10.0}), 10.0
    for training, entering, around in ((True, 30.0, plain.step), (False, alone, plain.call)):
        step = dataclasses.replace(graph, training=training)
        more = sum(costs.seconds(entered(step, launched_by), VM)) - sum(plain.seconds(step, VM))
        assert more == pytest.approx(given + VM.op_seconds * (entering - (around or 0.0)))
        assert costs.step_weight(entered(step, launched_by)) - plain.step_weight(step) == pytest.approx(
            more / VM.op_seconds
        )


def test_nothing_passes_between_kernels_that_a_graph_of_cuda_launches(graph: Graph) -> None:
    costs = load_model(DEFAULT).host
    assert costs.gap_in(graph) == costs.gap > 0
    marked = [
        dataclasses.replace(
            op, signature=dataclasses.replace(op.signature, arguments=(*op.signature.arguments, (LAUNCHED_BY, "graph")))
        )
        for op in graph.ops
    ]
    assert costs.gap_in(dataclasses.replace(graph, ops=tuple(marked))) == 0
    half = tuple(ours if i % 2 else theirs for i, (ours, theirs) in enumerate(zip(marked, graph.ops, strict=True)))
    assert 0 < costs.gap_in(dataclasses.replace(graph, ops=half)) < costs.gap


def test_longer_lists_take_longer() -> None:
    costs = load_model(DEFAULT).host
    few, many = (Call(listed("aten._fused_adamw_", count), "optimizer", False, False) for count in (4, 40))
    assert costs.weight(many, "optimizer") - costs.weight(few, "optimizer") == pytest.approx(36 * costs.tensor)


def test_a_fused_norm_is_no_fused_optimizer() -> None:
    costs = load_model(DEFAULT).host
    for name, mode in (("aten._fused_rms_norm", "forward"), ("aten._fused_rms_norm_backward", "backward")):
        assert costs.weight(Call(listed(name, 2), mode, False, False), mode) == costs.kernel[mode]["composite"]


def listed(name: str, count: int) -> Signature:
    x = Layout((8, 8), (8, 1), "float32")
    return Signature(f"{name}.default", (x,) * count, (x,))


def recurrent(
    length: int, hidden: int, dtype: str, *, layers: int = 2, both_ways: bool = False, mode: int = 2
) -> Signature:
    x = Layout((4, length, 32), (32 * length, 32, 1), dtype)
    size = (("hidden_size", hidden), ("num_layers", layers))
    arguments = (("mode", mode), ("batch_first", True), *size, ("bidirectional", both_ways))
    return Signature("aten._cudnn_rnn.default", (x,), (x,), arguments)


def test_a_recurrent_layer_launches_kernels_for_every_place() -> None:
    assert inner_launches(recurrent(50, 512, "float32")) == 2 * 50 * 2
    assert inner_launches(recurrent(50, 512, "float32", both_ways=True)) == 2 * 50 * 2 * 2
    assert inner_launches(recurrent(50, 64, "float32")) == 0  # one kernel walks the sequence
    assert inner_launches(recurrent(50, 64, "bfloat16")) > 0
    assert inner_launches(recurrent(50, 256, "float32")) > 0
    assert inner_launches(recurrent(50, 256, "float32", mode=1)) == 0  # without gates, more of it stays on chip


@pytest.mark.parametrize(("dtype", "launches"), [("float32", 2 * 8), ("bfloat16", 0)])
def test_experts_are_multiplied_one_by_one_but_in_bf16(dtype: str, launches: int) -> None:
    rows, experts = Layout((64, 16), (16, 1), dtype), Layout((8, 16, 32), (512, 32, 1), dtype)
    out = Layout((64, 32), (32, 1), dtype)
    assert inner_launches(Signature("aten._grouped_mm.default", (rows, experts), (out,))) == launches


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text("{}")
    with pytest.raises(ModelError, match="foretell fit"):
        HostCosts.load(tmp_path / "host.json")


@pytest.mark.parametrize("name", ["call", "launched", "gap"])
@pytest.mark.parametrize("cost", ["", [], "x", -1.0])
def test_what_is_no_cost_is_refused(name: str, cost: object, tmp_path: Path) -> None:
    """Nothing said is null; what only looks like nothing is refused with the rest."""
    (tmp_path / "host.json").write_text(json.dumps(dataclasses.asdict(usual_costs()) | {name: cost}))
    with pytest.raises(ModelError, match="holds no costs of a host"):
        HostCosts.load(tmp_path / "host.json")


def test_a_step_without_gradients_has_less_around_it(graph: Graph) -> None:
    costs = dataclasses.replace(usual_costs(), step=40.0, call=5.0)
    trained, called = (costs.step_weight(dataclasses.replace(graph, training=t)) for t in (True, False))
    alike = dataclasses.replace(costs, call=None).step_weight(dataclasses.replace(graph, training=False))
    assert alike - called == pytest.approx(35.0)
    assert trained > 40.0


def test_many_short_lists_cost_little_more_than_few_long_ones() -> None:
    costs = load_model(DEFAULT).host
    long, short = (Call(written(count), "optimizer", False, False) for count in (200, 5))
    whole, parts = costs.weight(long, "optimizer"), 40 * costs.weight(short, "optimizer")
    assert whole < parts < whole + 40 * costs.kernel["forward"]["plain"]
    assert costs.listed < costs.kernel["forward"]["plain"], "it launches one kernel that autograd does not watch"


def test_tensors_that_a_list_makes_cost_more_than_those_it_writes() -> None:
    costs = load_model(DEFAULT).host
    x = Layout((8, 8), (8, 1), "float32")
    made = Call(Signature("aten._foreach_sqrt.default", (x,) * 20, (x,) * 20), "optimizer", False, False)
    assert costs.weight(made, "optimizer") == pytest.approx(
        costs.weight(Call(written(20), "optimizer", False, False), "optimizer") + 20 * costs.made
    )


def written(count: int) -> Signature:
    x = Layout((8, 8), (8, 1), "float32")
    return Signature("aten._foreach_mul_.Scalar", (x,) * count, (), (), tuple(range(count)))


def test_counters_in_host_memory_are_counted_up_there() -> None:
    """An optimizer's steps are a list of numbers that the host adds one to: no kernel, and no list of the device."""
    graph = capture(adam(rates=1))
    counted = [
        c for c in graph.calls.distinct if c.signature.name == "aten._foreach_add_" and not c.signature.inputs[0].shape
    ]
    assert counted
    assert all(c.on_host and not c.launches for c in counted)
    costs = usual_costs()
    assert costs.weight(counted[0], "optimizer") == pytest.approx(costs.number * len(counted[0].signature.inputs))


def test_parameters_are_charged_once_however_they_are_grouped() -> None:
    costs = usual_costs()
    one, two = capture(adam(rates=1)), capture(adam(rates=2))
    assert updated_parameters(one) == updated_parameters(two) == 8
    free = dataclasses.replace(costs, parameter=0.0)
    for graph in (one, two):
        assert costs.step_weight(graph) - free.step_weight(graph) == pytest.approx(8 * costs.parameter)
        assert sum(costs.seconds(graph, VM)) == pytest.approx(VM.op_seconds * costs.step_weight(graph))


def adam(*, rates: int) -> Workload:
    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        every = list(parameters)
        return torch.optim.AdamW(
            [{"params": every[i::rates], "lr": 1e-3 / (i + 1)} for i in range(rates)], foreach=True
        )

    return Workload(
        name="groups",
        model=lambda: nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]),
        batch=lambda: torch.randn(4, 8),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=optimizer,
    )


def test_costs_that_were_fitted_before_lists_were_told_apart_still_load(tmp_path: Path) -> None:
    known = dataclasses.asdict(usual_costs())
    old = {name: known[name] for name in known if name not in ("made", "number", "parameter")}
    (tmp_path / "host.json").write_text(json.dumps(old))
    found = HostCosts.load(tmp_path / "host.json")
    assert (found.listed, found.made, found.parameter) == (old["listed"], 0.0, 0.0)
