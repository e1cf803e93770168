"""The cost model of a forecast: the one that is shipped, and the roofline."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from foretell import forecast
from foretell.capture import capture
from foretell.cost.model import DEFAULT, ROOFLINE, load_model, names
from foretell.cost.operators import OperatorModels
from foretell.cost.transfer import Generations
from foretell.errors import ModelError
from foretell.graph import Graph
from foretell.graph.operators import operator_of
from foretell.hardware import device
from foretell.precision import Precision
from tests.report.examples import small_graph

H200 = device("h200")


@pytest.fixture
def graph() -> Graph:
    return small_graph()[0]


def test_nothing_is_faster_than_the_roofline(graph: Graph) -> None:
    learned, least = (load_model(name).price(graph, H200).prices for name in (DEFAULT, ROOFLINE))
    assert all(a.seconds >= b.seconds for a, b in zip(learned, least, strict=True))
    assert sum(a.seconds for a in learned) > 1.2 * sum(b.seconds for b in least)


def test_equal_ops_cost_the_same(graph: Graph) -> None:
    prices = load_model().price(graph, H200).prices
    seen: dict[object, float] = {}
    for op, price in zip(graph.ops, prices, strict=True):
        if price.work.kernel:
            assert seen.setdefault(op.signature, price.seconds) == price.seconds


def test_the_forecast_names_its_model(graph: Graph) -> None:
    assert forecast(graph, on="h200").model == DEFAULT
    plain = forecast(graph, on="h200", model=ROOFLINE)
    assert plain.model == ROOFLINE
    assert any(c.code == "roofline-costs" for c in plain.caveats)


def test_a_device_that_was_not_measured_is_told(graph: Graph) -> None:
    assert not any(c.code == "device-not-measured" for c in forecast(graph, on="h200").caveats)
    [caveat] = [c for c in forecast(graph, on="a100-80g-sxm").caveats if c.code == "device-not-measured"]
    assert "h200" in caveat.text
    assert "a100-80g-sxm" in caveat.text


def test_an_operator_nobody_measured_is_told_with_its_share(graph: Graph) -> None:
    first = next(i for i, op in enumerate(graph.ops) if op.target.startswith("aten.mm"))
    odd = dataclasses.replace(graph.ops[first].signature, target="mylib.odd.default")
    ops = [dataclasses.replace(op, signature=odd) if i == first else op for i, op in enumerate(graph.ops)]
    answer = forecast(dataclasses.replace(graph, ops=tuple(ops)), on="h200")
    [caveat] = [c for c in answer.caveats if c.code == "op-without-model"]
    assert caveat.text.startswith("mylib.odd")
    assert caveat.share is not None
    assert 0 < caveat.share < 1


def test_models_by_name_and_by_folder(tmp_path: Path) -> None:
    assert {ROOFLINE, DEFAULT} <= set(names())
    with pytest.raises(ModelError, match="foretell fit"):
        load_model(str(tmp_path / "nosuch"))
    with pytest.raises(ModelError, match="holds no model"):
        load_model(str(tmp_path))


def test_what_was_priced_before_is_priced_the_same(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(load_model())  # one that was asked nothing yet
    first = model.price(graph, H200)
    other = model.price(graph, device("a100-80g-sxm"))
    monkeypatch.setattr(OperatorModels, "seconds", lambda *_: pytest.fail("the models were asked again"))
    again = model.price(graph, H200)
    assert [p.seconds for p in again.prices] == [p.seconds for p in first.prices]
    assert [p.seconds for p in other.prices] != [p.seconds for p in first.prices]
    assert again.unknown == first.unknown


def test_an_interval_is_given_where_the_model_was_held_against_measurements(graph: Graph) -> None:
    f = forecast(graph, on="h200")
    for time in (f.step_time, f.device_time, f.host_time):
        assert time.low is not None
        assert time.high is not None
        assert time.low < time.seconds < time.high
    other = forecast(graph, on="h200", model="roofline")
    assert other.step_time.low is None
    assert any(c.code == "not-calibrated" for c in other.caveats)


def test_what_is_learned_of_other_devices_leaves_its_own_alone(graph: Graph) -> None:
    model = load_model()
    alone = dataclasses.replace(model, generations=Generations())
    assert model.generations.factors
    prices, others = ([p.seconds for p in m.price(graph, H200).prices] for m in (model, alone))
    assert prices == others
    card = device("v100-32g-sxm")
    assert [p.seconds for p in model.price(graph, card).prices] != [p.seconds for p in alone.price(graph, card).prices]


def test_an_interval_on_another_device_has_a_caveat_and_is_wider_the_stranger_it_is(graph: Graph) -> None:
    widths = []
    for on in ("a100-80g-sxm", "mi300x", "gaudi2"):
        other = forecast(graph, on=on)
        low, high = other.step_time.low, other.step_time.high
        assert low is not None
        assert high is not None
        assert low < other.step_time.seconds < high
        assert any(c.code == "calibrated-elsewhere" for c in other.caveats)
        device_time = other.device_time  # a step that waits for its host is as wide as the host's interval
        assert device_time.low is not None
        assert device_time.high is not None
        widths.append(round(device_time.high / device_time.low, 9))
    assert widths == sorted(widths)


def test_torch_by_itself_convolves_on_tf32_units_and_multiplies_without() -> None:
    """One graph in three precisions: each op costs what it costs in the precision that its unit runs in."""
    small = capture("torchvision/resnet18", {"batch": "4", "optimizer": "sgd"})
    of = {name: dataclasses.replace(small, precision=Precision.parse(name)) for name in ("fp32", "torch-fp32", "tf32")}
    for on in (H200, device("a100-80g-sxm")):
        alone = dataclasses.replace(load_model(), interaction=None)
        fp32, mixed, tf32 = ([price.seconds for price in alone.price(graph, on).prices] for graph in of.values())
        for i, op in enumerate(small.ops):
            family = operator_of(op.signature.name).family
            assert mixed[i] == (tf32 if family in ("convolution", "convolution_backward") else fp32)[i]
        assert sum(mixed) < 0.8 * sum(fp32)


def test_a_device_of_the_measured_name_with_better_facts_is_no_slower(graph: Graph) -> None:
    """Trees know the measured device alone: they were asked with facts of a device that nobody has."""
    model = load_model()
    listed = model.price(graph, H200).seconds
    for facts in ({"bandwidth": 1.5 * H200.bandwidth}, {"peaks": {u: 1.5 * rate for u, rate in H200.peaks.items()}}):
        better = model.price(graph, dataclasses.replace(H200, **facts)).seconds
        assert (better <= listed * (1 + 1e-9)).all()
        assert (1.5 * better >= listed * (1 - 1e-9)).all()
    assert model.price(graph, dataclasses.replace(H200, memory_bytes=2 * H200.memory_bytes)).seconds.tolist() == (
        pytest.approx(listed.tolist())
    )
