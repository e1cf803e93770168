"""What a host pays to issue ops."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from foretell.cost.host import MODES, HostCosts, inner_launches, usual_costs
from foretell.cost.model import DEFAULT, load_model
from foretell.errors import ModelError
from foretell.graph import Graph, Layout, Signature
from foretell.graph.calls import Call
from foretell.hardware import host
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


def recurrent(length: int, hidden: int, dtype: str, *, layers: int = 2, both_ways: bool = False) -> Signature:
    x = Layout((4, length, 32), (32 * length, 32, 1), dtype)
    arguments = (("batch_first", True), ("hidden_size", hidden), ("num_layers", layers), ("bidirectional", both_ways))
    return Signature("aten._cudnn_rnn.default", (x,), (x,), arguments)


def test_a_recurrent_layer_launches_kernels_for_every_place() -> None:
    assert inner_launches(recurrent(50, 512, "float32")) == 2 * 50 * 2
    assert inner_launches(recurrent(50, 512, "float32", both_ways=True)) == 2 * 50 * 2 * 2
    assert inner_launches(recurrent(50, 64, "float32")) == 0  # one kernel walks the sequence
    assert inner_launches(recurrent(50, 64, "bfloat16")) > 0


@pytest.mark.parametrize(("dtype", "launches"), [("float32", 2 * 8), ("bfloat16", 0)])
def test_experts_are_multiplied_one_by_one_but_in_bf16(dtype: str, launches: int) -> None:
    rows, experts = Layout((64, 16), (16, 1), dtype), Layout((8, 16, 32), (512, 32, 1), dtype)
    out = Layout((64, 32), (32, 1), dtype)
    assert inner_launches(Signature("aten._grouped_mm.default", (rows, experts), (out,))) == launches


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text("{}")
    with pytest.raises(ModelError, match="foretell fit"):
        HostCosts.load(tmp_path / "host.json")


def test_a_step_without_gradients_has_less_around_it(graph: Graph) -> None:
    costs = dataclasses.replace(usual_costs(), step=40.0, call=5.0)
    trained, called = (costs.step_weight(dataclasses.replace(graph, training=t)) for t in (True, False))
    alike = dataclasses.replace(costs, call=None).step_weight(dataclasses.replace(graph, training=False))
    assert alike - called == pytest.approx(35.0)
    assert trained > 40.0
