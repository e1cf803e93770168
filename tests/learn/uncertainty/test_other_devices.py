"""Intervals on devices that were not measured: from published steps of others, each left out."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foretell_bench.research.coverage import coverage_on_other_devices
from foretell_bench.tables import devices as bench
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from foretell.cli import app
from foretell.cost.model import load_model
from foretell.distribution import interval
from foretell.errors import InputError, ModelError
from foretell.forecasting.forecast import forecast
from foretell.forecasting.uncertainty.device_classes import CLASSES, DeviceClass
from foretell.forecasting.uncertainty.other_devices import FILE, Group, Kind, OtherDevices, StepKind
from foretell.graph import Graph, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import device, host
from foretell.learn.transfer.published_steps import SOURCES, PublishedStep, outside_step, published_steps
from foretell.learn.uncertainty.other_device_steps import LEARNED, OtherDeviceStep
from foretell.learn.uncertainty.other_devices import OneDeviceJob, errors_by_device, save_errors
from foretell.store.importers import public_rows

CARDS = ("a100-40g-pcie", "v100-32g-pcie", "t4", "p100-pcie", "rtx-3090", "rtx-4090", "rtx-2080-ti", "titan-xp", "l40s")
DATA = Path(__file__).parents[4] / "shared" / "data"


KIND = StepKind(half=False, trains=True, convolutions=0.5, unknown=0.0)


def kind(**changes: Any) -> StepKind:
    return dataclasses.replace(KIND, **changes)


def steps(spread: float, shift: float = 0.0, count: int = 40, seed: int = 0) -> list[OtherDeviceStep]:
    """Steps of many cards, each card off by its own factor and each step by another."""
    draw = np.random.default_rng(seed)
    made = []
    for card in CARDS:
        bias = draw.normal(shift, spread)
        for i in range(count):
            predicted = float(draw.lognormal(-3, 1))
            measured = predicted * math.exp(bias + draw.normal(0, spread))
            made.append(
                OtherDeviceStep(
                    origin="made up",
                    device=card,
                    source=f"net{i}",
                    trains=True,
                    half=False,
                    seconds=measured,
                    predicted={LEARNED: predicted, "physics": predicted, "roofline": predicted / 2},
                    unknown=0.0,
                    convolutions=0.5,
                )
            )
    return made


def test_intervals_from_other_devices_hold_most_steps_of_a_new_one() -> None:
    inside = [coverage_on_other_devices(steps(0.2, seed=seed))[0].inside for seed in range(6)]
    assert 0.83 <= np.mean(inside) <= 0.97


def test_a_device_unlike_all_others_falls_outside_and_that_shows() -> None:
    odd = [dataclasses.replace(s, seconds=s.seconds * 5) if s.device == "t4" else s for s in steps(0.2)]
    inside = {c.group: c.inside for c in coverage_on_other_devices(odd)}
    assert inside["t4"] < 0.5
    assert inside["rtx-3090"] > 0.85


def test_intervals_are_as_wide_as_devices_differ() -> None:
    narrow, wide = (coverage_on_other_devices(steps(spread))[0].width for spread in (0.05, 0.4))
    assert 1 < narrow < wide


def line(seconds: float) -> list[tuple[float, float]]:
    """A step that follows its device alone."""
    return [(factor, factor * seconds) for factor in (0.6, 1.0, 1.6)]


@given(st.sampled_from(CARDS), st.floats(1e-4, 10), st.floats(0, 1))
def test_an_interval_is_around_its_point_and_grows_with_what_nobody_knows(
    name: str, predicted: float, unknown: float
) -> None:
    known = errors_by_device(steps(0.2, count=4))
    low, high = interval(known.step_time(line(predicted), device(name), kind(unknown=unknown)))
    assert low <= predicted <= high
    assert predicted / low == pytest.approx(high / predicted)
    less, more = interval(known.step_time(line(predicted), device(name), KIND))
    assert high / low >= more / less * (1 - 1e-9)


def made(devices: DeviceClass, width: float, what: Kind = "convolutions") -> Group:
    return Group(kind=what, devices=devices, width=width, units=3, steps=9)


def others(*groups: Group, **changes: Any) -> OtherDevices:
    return OtherDevices(groups=groups, host=0.5, unknown=0.5, **changes)


def test_a_group_says_how_sure_its_steps_are() -> None:
    known = others(
        made("recent", 0.3), made("older", 0.6), made("recent", 0.1, "products"), made("older", 0.2, "products")
    )
    assert known.width(device("rtx-3080"), KIND) == pytest.approx(0.3)
    assert known.width(device("p100-pcie"), KIND) == pytest.approx(0.6)
    assert known.width(device("rtx-3080"), kind(convolutions=0.0)) == pytest.approx(0.1)
    assert known.width(device("rtx-3080"), kind(convolutions=0.25)) == pytest.approx(0.2)


def test_a_class_that_nobody_left_out_is_less_sure_than_any_that_was() -> None:
    known = others(made("recent", 0.3), made("older", 0.6))
    for name in ("cpu", "gaudi2", "m3-max", "mi300x"):
        assert known.width(device(name), KIND) == pytest.approx(1.5 * 0.6)
        assert known.is_strange(device(name), KIND)
        assert "like" in known.source(device(name), KIND)
    assert not known.is_strange(device("rtx-3080"), KIND)


def test_a_stranger_class_is_never_surer_than_one_better_known() -> None:
    groups = [
        Group(kind="products", devices="recent", width=0.3, units=9, steps=50),
        Group(kind="products", devices="other makers", width=0.1, units=1, steps=2),  # right by chance
    ]
    errors = OtherDevices(groups=groups, host=0.5, unknown=0.5)
    products = kind(convolutions=0.0)
    assert errors.width(device("mi300x"), products) >= errors.width(device("a100-80g-sxm"), products) == 0.3


def test_a_step_that_waits_for_its_host_is_as_sure_as_hosts_are() -> None:
    known = others(made("recent", 0.1))
    waiting = [(0.6, 1.0), (1.0, 1.0), (1.6, 1.0)]  # whatever the device, the step takes a second
    low, high = interval(known.step_time(waiting, device("rtx-3080"), KIND))
    assert math.log(high) == pytest.approx(0.5)
    assert math.log(low) == pytest.approx(-0.5)


def test_a_source_that_is_new_counts_as_a_device_that_is() -> None:
    """Many boards of one source agree with each other, and say nothing of another source."""
    boards = [OneDeviceJob(origin="one", device=name, convolves=True, error=0.05) for name in CARDS]
    another = OneDeviceJob(origin="another", device="a10", convolves=True, error=0.5)
    [group] = [g for g in errors_by_device([], [*boards, another]).groups if g.devices == "recent"]
    assert group.width > 0.4


def test_steps_that_wait_for_their_host_say_nothing_of_their_device() -> None:
    waiting = [
        dataclasses.replace(s, seconds=9 * s.seconds, curve=[(f, s.predicted[LEARNED]) for f in (0.6, 1.0, 1.6)])
        for s in steps(0.1, count=3)
    ]
    sure = steps(0.1)
    assert errors_by_device([*sure, *waiting]).groups == errors_by_device(sure).groups


def test_steps_that_older_software_ran_widen_no_interval() -> None:
    """On one board, torch 1.12 took up to several times as long as 2.4 for the same network."""
    former = [dataclasses.replace(s, seconds=4 * s.seconds, torch="1.12") for s in steps(0.1, count=3)]
    today = [dataclasses.replace(s, torch="2.4") for s in steps(0.1)]
    assert errors_by_device([*today, *former]).groups == errors_by_device(today).groups


def test_the_fewer_units_there_are_the_less_sure_is_a_step() -> None:
    few, many = (
        errors_by_device([], [OneDeviceJob(origin=o, device="a10", convolves=True, error=0.3) for o in "abcdefgh"[:n]])
        for n in (1, 8)
    )
    assert few.groups[0].width > many.groups[0].width > 0.3


def test_convolutions_in_groups_are_no_surer_than_others() -> None:
    known = others(made("recent", 0.3), made("recent", 0.1, "grouped convolutions"))
    assert known.width(device("rtx-3080"), kind(grouped=1.0)) == pytest.approx(0.3)
    unheard = others(made("recent", 0.3), made("older", 0.4))
    assert unheard.width(device("rtx-3080"), kind(grouped=1.0)) == pytest.approx(1.5 * 0.3)


def test_boards_newer_than_any_measured_are_no_surer_than_older_ones() -> None:
    known = others(made("recent", 0.2), made("older", 0.3), made("newer", 0.1))
    for name in ("b200", "rtx-5090", "rtx-pro-6000"):
        assert known.width(device(name), KIND) == pytest.approx(0.3)
    assert known.width(device("h100-sxm"), KIND) == pytest.approx(0.2)


def test_intervals_of_models_up_to_2026_11_3_are_still_read() -> None:
    lists = [
        {"device": "rtx-3090", "make": "", "half": True, "trains": True, "numbers": [0.0] * 5, "errors": [-0.2, 0.1]},
        {"device": "p4", "make": "", "half": True, "trains": True, "numbers": [0.0] * 5, "errors": [0.4]},
    ]
    known = OtherDevices.parse({"devices": lists, "reach": 2.0, "unknown": 0.5, "single": 0.2, "usual": 0.1})
    assert known.width(device("rtx-3080"), KIND) == pytest.approx(0.2)
    assert known.width(device("p100-pcie"), KIND) == pytest.approx(0.4)


def small_graph() -> Graph:
    x = Layout((4096, 4096), (4096, 1), "float32")
    op = Op(Signature("aten.relu.default", (x,), (x,)), "forward", "", (0,), (1,))
    storages = (Storage(x.nbytes, "input", -1, 1), Storage(x.nbytes, "activation", 0, 1))
    return Graph(name="relu", ops=(op,), tensors=(Tensor(x, 0), Tensor(x, 1)), storages=storages, training=False)


def test_a_forecast_elsewhere_says_what_its_interval_rests_on(tmp_path: Path) -> None:
    products = [dataclasses.replace(s, convolutions=0.0) for s in steps(0.2)]
    save_errors(errors_by_device([*steps(0.2), *products]), tmp_path)
    model = dataclasses.replace(load_model(), folder=tmp_path)
    f = forecast(small_graph(), on="a100-80g-sxm", model=model)
    assert f.step_time.low is not None
    assert f.step_time.high is not None
    assert f.step_time.low < f.step_time.seconds < f.step_time.high
    assert f.host_time.low is None
    [text] = [c.text for c in f.caveats if c.code == "calibrated-elsewhere"]
    assert f"{len(CARDS) * 80} published steps" in text
    assert "wider" not in text
    assert not any(c.code == "not-calibrated" for c in f.caveats)
    [far] = [
        c.text for c in forecast(small_graph(), on="gaudi2", model=model).caveats if c.code == "calibrated-elsewhere"
    ]
    assert "wider" in far
    several = forecast(small_graph(), on="2xa100-80g-sxm", model=model)
    assert several.step_time.low is None
    assert any(c.code == "not-calibrated" for c in several.caveats)
    own = forecast(small_graph(), on="h200", model=model)
    assert not any(c.code == "calibrated-elsewhere" for c in own.caveats)


def test_what_was_timed_beside_a_step_is_the_copy_of_its_batch_and_its_gradients_set_to_zero() -> None:
    graph, desktop, pascal = small_graph(), host("desktop"), device("titan-xp")
    weight = Storage(64, "parameter", -1, 1)
    graph = dataclasses.replace(graph, storages=(*graph.storages, weight))
    settings = {"batch": "12", "precision": "fp32", "optimizer": "sgd"}
    step = PublishedStep(origin="made up", device="titan-xp", source="net", settings=settings, seconds=1.0)
    assert outside_step(step, graph, desktop, pascal) == 0
    fed = dataclasses.replace(step, feeds=True)
    asked = dataclasses.replace(fed, settings={**settings, "optimizer": "none"})
    assert outside_step(asked, graph, desktop, pascal) == pytest.approx(4096**2 * 4 / 6e9)
    assert outside_step(fed, graph, desktop, pascal) - outside_step(asked, graph, desktop, pascal) == pytest.approx(
        desktop.op_seconds
    )
    added = dataclasses.replace(step, adds_up=True)
    assert outside_step(added, graph, desktop, pascal) == pytest.approx(3 * 64 / pascal.bandwidth)
    assert outside_step(dataclasses.replace(asked, feeds=False, adds_up=True), graph, desktop, pascal) == 0


def test_errors_on_other_devices_come_back_as_they_were_saved(tmp_path: Path) -> None:
    known = errors_by_device(steps(0.2))
    save_errors(known, tmp_path)
    again = OtherDevices.load(tmp_path / FILE)
    predicted = [interval(u.step_time(line(1.0), device("a10"), kind(unknown=0.1))) for u in (known, again)]
    assert predicted[0] == predicted[1]
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(ModelError, match="foretell fit"):
        OtherDevices.load(tmp_path / FILE)


def test_what_the_benchmark_found_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    found = bench.DeviceErrors(ops=[], steps=steps(0.2))
    bench.save(found, tmp_path / "found.json")
    again = bench.read(tmp_path / "found.json")
    assert [f.to_dict() for f in bench.figures(again)] == [f.to_dict() for f in bench.figures(found)]
    (tmp_path / "other.json").write_text(json.dumps({"steps": []}))
    with pytest.raises(InputError, match="bench devices"):
        bench.read(tmp_path / "other.json")


def test_a_page_gets_every_device_and_one_line_for_all(tmp_path: Path) -> None:
    found = bench.DeviceErrors(ops=[], steps=steps(0.2) + steps(0.2, count=4, seed=1)[:4])
    bench.save(found, tmp_path / "found.json")
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- table: {name} -->\n<!-- end -->\n\n" for name in ("ops", "steps", "bars")))
    asked = ["bench", "devices", "--from", str(tmp_path / "found.json"), "--page", str(page)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| made up")]
    assert len(rows) == len(CARDS)
    [whole] = [line for line in page.read_text().splitlines() if line.startswith("| all")]
    devices = [[abs(s.predicted[LEARNED] / s.seconds - 1) for s in found.steps if s.device == card] for card in CARDS]
    assert f"{np.mean([np.mean(errors) for errors in devices]):.1%}" in whole


@pytest.mark.nightly
@pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not here")
def test_published_steps_are_drawn_the_same_way_each_time() -> None:
    taken = published_steps(DATA, 4)
    assert taken == published_steps(DATA, 4)
    assert {name: those.rows for name, those in taken.items()} == {
        name: len(public_rows(DATA, name)) for name in SOURCES
    }, "every row is taken or counted"
    found = [step for those in taken.values() for step in those.items]
    assert {s.origin for s in found} == {"neusight_e2e", "cnn_many_gpus", "timm_train", "timm_infer"}
    assert {"rtx-3090", "titan-xp", "mi100", "p4"} <= {s.device for s in found}
    assert all(1e-3 < s.seconds < 20 for s in found)


def test_results_of_earlier_versions_still_load() -> None:
    found = bench.read(Path(__file__).parents[3] / "bench" / "results" / "devices.json")
    assert found.steps[0].predicted[LEARNED] > 0
    asked = bench.bars(found)
    assert all(figure.bar is not None and figure.rows for figure in asked)
    assert {"neusight_e2e", "boards of low power", "products in 16 bits"} < {figure.source for figure in asked}


def test_a_step_of_one_product_over_and_over_is_less_sure() -> None:
    """Errors of single ops even out over a network, and not over one of them."""
    known = others(made("recent", 0.1), single=0.3)
    usual, same = (known.width(device("rtx-3090"), kind(alike=alike)) for alike in (0.0, 1.0))
    assert same == pytest.approx(usual + 0.3)
    counted = dataclasses.replace(known, usual=0.2)  # the errors are of steps that were as much alike
    assert counted.width(device("rtx-3090"), kind(alike=0.2)) == pytest.approx(usual)


@pytest.mark.parametrize("wrong", [[], "7", 0, -1, 1.5, True, None, 10**400])
@pytest.mark.parametrize("field", ["units", "steps"])
def test_groups_count_in_whole_numbers(field: str, wrong: object, tmp_path: Path) -> None:
    """A list was read, and broke the sentence about where an interval is from."""
    group = {"kind": "products", "devices": CLASSES[0], "width": 0.2, "units": 3, "steps": 40}
    content = {"groups": [{**group, field: wrong}], "host": 0.5, "unknown": 1.0}
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=field):
        OtherDevices.load(tmp_path / FILE)
