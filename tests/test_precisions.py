"""Every precision can be asked about everywhere, and which units run it follows from the device."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import foretell
from foretell.capture import capture
from foretell.capture.dtypes import FLOATS, half_dtype, torch_dtype
from foretell.cli import app
from foretell.errors import PlanError
from foretell.graph import Graph
from foretell.hardware import device
from foretell.learn.adapt.pool import usual_points
from foretell.learn.adapt.steps import Step
from foretell.planner.handover import hand_over
from foretell.precision import PRECISIONS, Precision
from foretell.workload import Workload

from .capture.tiny import workload
from .parallel.models import graph

PARTS = ["parameters:bf16/gradients:fp32/master:fp32", "compute:bf16/reduce:fp32"]
EVERY = pytest.mark.parametrize("precision", [*PRECISIONS, *PARTS])
WITHOUT_TF32 = ["t4", "v100-32g-sxm", "cpu", "gaudi", "mi250x", "gtx-1080-ti"]


def tiny(batch: int = 2, precision: str = "fp32") -> Workload:
    """A convolution and a product."""
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 4)]
    return workload(
        lambda: torch.nn.Sequential(*layers), lambda: torch.randn(batch, 3, 8, 8), precision=precision,
        optimizer=torch.optim.AdamW,
    )  # fmt: skip


@cache
def step(precision: str) -> Graph:
    return capture(tiny(precision=precision))


@EVERY
def test_it_is_forecast_on_every_generation(precision: str) -> None:
    for on in ("h200", "2xa100-80g-sxm", *WITHOUT_TF32):
        assert foretell.forecast(step(precision), on).step_time.seconds > 0


@EVERY
def test_its_largest_batch_is_found(precision: str) -> None:
    assert foretell.fit_batch(lambda batch: tiny(batch, precision), "t4", model="roofline").batch > 1


@EVERY
def test_it_is_scaled(precision: str) -> None:
    points = foretell.scale(step(precision), "t4", "zero=3", up_to=4, model="roofline")
    assert [point.devices for point in points] == [1, 2, 4]


@EVERY
def test_it_is_planned_and_handed_over(precision: str) -> None:
    best = foretell.plan(
        step(precision), "2xh100-sxm", job=foretell.JobLength(samples=1e6), model="roofline"
    ).recommended
    assert best is not None
    chosen = replace(best, plan="dp=2,zero=3")
    assert Precision.parse(chosen.precision) == Precision.parse(precision)
    assert f"FORETELL_PRECISION={chosen.precision}" in hand_over(chosen, "torchrun")
    for tool in ("deepspeed", "accelerate", "torchtitan", "lightning", "fsdp"):
        try:
            assert hand_over(chosen, tool)
        except PlanError as error:
            refusal = str(error)
            assert f"precision={chosen.precision}" in refusal  # a file that keeps other numbers is not written


def test_all_of_them_are_compared(tmp_path: Path) -> None:
    files = []
    for number, precision in enumerate((*PRECISIONS, *PARTS)):
        step(precision).save(tmp_path / f"{number}.graph")
        files.append(f"{tmp_path / f'{number}.graph'}")
    ran = CliRunner().invoke(app, ["compare", *files, "--on", "h100-sxm", "--model", "roofline", "--json"])
    assert ran.exit_code == 0, ran.output
    assert len(json.loads(ran.stdout)) >= len(files)


def test_a_profile_is_adapted_from_steps_in_all_of_them() -> None:
    steps = [
        Step(workload=step(precision), on="h200", seconds=2 * foretell.forecast(step(precision), "h200").step_time.seconds)
        for precision in (*PRECISIONS, *PARTS)
    ]  # fmt: skip
    found = foretell.adapt(steps, name="twice")
    for one in steps:
        assert one.predicted(found) == pytest.approx(one.seconds, rel=0.3)


@pytest.mark.parametrize("on", WITHOUT_TF32)
def test_without_tf32_units_all_three_of_fp32_are_the_same(on: str) -> None:
    answers = [
        foretell.forecast(replace(graph("cnn"), precision=Precision.parse(name)), on)
        for name in ("fp32", "torch-fp32", "tf32")
    ]
    assert len({(a.step_time.seconds, a.step_time.low, a.memory.total) for a in answers}) == 1


def test_with_tf32_units_convolutions_or_all_products_use_them() -> None:
    units = {
        name: [Precision.parse(name).unit(family, device("h200")) for family in ("matmul", "convolution")]
        for name in ("fp32", "torch-fp32", "tf32", "amp-bf16", "fp16")
    }
    assert units == {
        "fp32": ["fp32", "fp32"], "torch-fp32": ["fp32", "tf32"], "tf32": ["tf32", "tf32"],
        "amp-bf16": ["bf16", "bf16"], "fp16": ["fp16", "fp16"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("on", "precision", "unit"),
    [("gaudi", "amp-fp16", "bf16"), ("v100-32g-sxm", "amp-bf16", "fp32"), ("v100-32g-sxm", "fp16", "fp16"), ("p100-sxm", "fp16", "fp32"),
     ("cpu", "amp-bf16", "fp32")],
)  # fmt: skip
def test_what_a_device_lacks_runs_on_units_that_it_has(on: str, precision: str, unit: str) -> None:
    assert Precision.parse(precision).unit("matmul", device(on)) == unit
    assert device(on).peak(Precision.parse(precision).products) == device(on).peaks[unit]


@pytest.mark.parametrize(
    ("name", "precision"), [("h200", "amp-bf16"), ("t4", "amp-fp16"), ("p100-sxm", "fp32"), ("cpu", "fp32")]
)
def test_a_device_is_adapted_in_what_it_has_units_for(name: str, precision: str) -> None:
    assert {point.settings["precision"] for point in usual_points(device(name))} == {precision}


def test_floats_of_torch_and_back() -> None:
    assert {torch_dtype(name): name for name in FLOATS.values()} == FLOATS
    assert (half_dtype("bf16"), half_dtype("fp32"), half_dtype(None)) == (torch.bfloat16, None, None)


def test_a_name_and_parts_are_one_type() -> None:
    named, parts = Precision.parse("amp-bf16"), Precision.parse(PARTS[0])
    assert (named.name, named.is_autocast, named.gathered, named.reduced) == ("amp-bf16", True, "bf16", None)
    assert (parts.name, parts.arithmetic, parts.gathered, parts.reduced) == (PARTS[0], "bf16", None, "fp32")
    assert Precision.parse(named) is named
