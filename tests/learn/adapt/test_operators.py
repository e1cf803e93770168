"""What single ops take, learned from steps that were recorded op by op."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from foretell import Plan, Profile, Workload, forecast
from foretell.capture import capture
from foretell.cost.model import load_model
from foretell.errors import InputError, ProfileError
from foretell.forecasting.forecast import profile_response
from foretell.forecasting.step import role_step
from foretell.graph import Graph, Op
from foretell.hardware import Cluster
from foretell.hardware import device as known_device
from foretell.hardware import host as known_host
from foretell.learn.adapt.fit import fit_profile
from foretell.learn.adapt.operators import Recorded, fit_operators
from foretell.learn.adapt.steps import Step
from foretell.parallel import parallelize
from foretell.profile import FAMILIES, Operators, Residuals, family_of, files_of

from ...parallel.models import graph

ON = "h200"
DEVICE = known_device(ON)
BUSY = Profile(name="busy", device=8.0, host=0.1)  # small models are host-bound, and this shows their ops
NAMES = ("cnn", "llama")
SLOW = {"matmul": 3.0, "elementwise": 0.5}  # what the device takes over what the model says


def recorded(asked: Graph, scatter: float = 0.0, slow: dict[str, float] = SLOW) -> Recorded:
    """As if it had run on a device where families of ops take other times."""
    draw = np.random.default_rng(len(asked.ops))
    priced = load_model().price(asked, Cluster.parse(ON).nodes[0].device)
    seconds = [
        s * slow.get(family_of(op.signature), 1.0) * float(np.exp(scatter * draw.normal())) or None
        for s, op in zip(priced.seconds.tolist(), asked.ops, strict=True)
    ]
    return Recorded(graph=asked, seconds=seconds)


def fitted(scatter: float = 0.0) -> Operators:
    steps = [(recorded(graph(name), scatter), graph(name)) for name in NAMES]
    return fit_operators(steps, Cluster.parse(ON))


def device_seconds(asked: Graph, operators: Operators | None) -> dict[str, float]:
    return dict(zip(FAMILIES, profile_response(asked, ON, timed=operators).device.tolist(), strict=False))


@pytest.mark.parametrize("scatter", [0.0, 0.2])
def test_what_ops_took_is_what_a_forecast_says_of_them(scatter: float) -> None:
    before, after = (device_seconds(graph("llama"), operators) for operators in (None, fitted(scatter)))
    for family, factor in SLOW.items():
        assert after[family] == pytest.approx(factor * before[family], rel=0.15)


def test_ops_that_ran_under_other_names_are_timed_by_their_module() -> None:
    asked = graph("llama")
    whole = recorded(asked, slow={})

    def renamed(op: Op) -> Op:
        other = replace(op.signature, target="aten.exp.default")
        return replace(op, signature=other) if family_of(op.signature) == "attention" else op

    slower = [
        None if s is None else s * (5.0 if family_of(op.signature) == "attention" else 1.0)
        for s, op in zip(whole.seconds, asked.ops, strict=True)
    ]
    ran = Recorded(graph=replace(asked, ops=tuple(map(renamed, asked.ops))), seconds=slower)
    operators = fit_operators([(ran, replace(asked, name=f"llama {i}")) for i in range(6)], Cluster.parse(ON))
    before, after = device_seconds(asked, None), device_seconds(asked, operators)
    assert after["attention"] == pytest.approx(5.0 * before["attention"], rel=0.3)
    assert after["matmul"] == pytest.approx(before["matmul"], rel=0.1)


def perceptron(number: int) -> Graph:
    """Of widths and depths that differ, so that products of many shapes are timed."""
    width = 64 * (number + 1)

    def model() -> torch.nn.Module:
        layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(2 + number % 3)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(width, 32 * (9 - number)))

    return capture(
        Workload(
            name=f"perceptron {number}",
            model=model,
            batch=lambda: {"x": torch.randn(2 ** (5 + number % 4), width)},
            loss=lambda model, batch: model(batch["x"]).sum(),
        )
    )


NETWORKS = [perceptron(number) for number in range(8)]
COLUMNS = ("seconds", "flops", "traffic", "last", "channels", "narrow")
# Wide products take ten times what the model says and narrow ones what it says: no factor of a family is that.
TRUTH = Operators(
    curves={
        "matmul": Residuals(
            columns=COLUMNS, scales=(1.0,) * 6, points=(), weights=(), slopes=(0.0, 0.0, 0.0, 0.0, 1.0, 0.0), offset=-4.0, high=4.0
        )
    }
)  # fmt: skip


def steps(truth: Profile | None, recorded_by: Operators) -> list[Step]:
    made = []
    for asked in NETWORKS:
        seconds = forecast(asked, ON, profile=truth).step_time.seconds
        priced = role_step(
            parallelize(asked, Plan(dp=1)).roles[0], DEVICE, known_host(DEVICE.host), load_model(), recorded_by
        )
        took = [8.0 * s or None for s in priced.durations.device.tolist()]
        made.append(Step(workload=asked, on=ON, seconds=seconds, recorded=Recorded(graph=asked, seconds=took)))
    return made


def test_a_profile_has_operators_where_they_help_and_keeps_them(tmp_path: Path) -> None:
    found = fit_profile(steps(replace(BUSY, operators=TRUTH), TRUTH), name="lab")
    assert found.operators is not None
    assert found.card.form.startswith("operators")
    assert found.card.error_after is not None
    assert found.card.error_before is not None
    assert found.card.error_after < 0.5 * found.card.error_before
    again = Profile.load(found.save(tmp_path / "lab.toml"))
    asked = graph("llama")
    assert forecast(asked, ON, profile=again).step_time.seconds == pytest.approx(
        forecast(asked, ON, profile=found).step_time.seconds
    )


def test_times_of_ops_that_mislead_are_left_out() -> None:
    """Steps take what the model says, and a broken clock says otherwise of their ops."""
    assert fit_profile(steps(None, TRUTH), name="lab").operators is None


def test_nothing_is_fitted_on_top_of_operators() -> None:
    with pytest.raises(InputError, match="times of single ops"):
        fit_profile(steps(None, TRUTH), name="more", start=Profile(name="lab", operators=fitted()))


@pytest.mark.parametrize("part", [Operators, Residuals])
def test_a_file_of_other_arrays_says_so(part: type[Operators] | type[Residuals], tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(save({"scales": np.ones(2)}))
    with pytest.raises(ProfileError, match="Make the profile again"):
        part.load(path)


def test_a_broken_file_of_operators_says_so(tmp_path: Path) -> None:
    path = Profile(name="lab", operators=fitted()).save(tmp_path / "lab.toml")
    assert [file.name for file in files_of(path)] == ["lab.toml", "lab.operators.safetensors"]
    beside = tmp_path / "lab.operators.safetensors"
    beside.write_bytes(beside.read_bytes()[:100])
    with pytest.raises(ProfileError, match="Make the profile again"):
        Profile.load(path)
    path.write_text(path.read_text().replace('"lab.operators', '"../lab.operators'))
    with pytest.raises(ProfileError, match="must name a file beside it"):
        Profile.load(path)
