"""Software of another time: versions and dates, and what a step takes under them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import foretell
from foretell.capture import capture
from foretell.cost.model import load_model
from foretell.cost.older_software import OlderSoftware
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.profile import Purpose
from foretell.software import RELEASES, Software


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(64, 192), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.fixture(scope="module")
def step() -> Graph:
    return capture(
        foretell.Workload(
            name="layers",
            model=lambda: nn.Sequential(*(Layer() for _ in range(4))),
            batch=lambda: torch.randn(8, 512, 64),
            loss=lambda model, x: model(x).float().square().mean(),
            optimizer=lambda parameters: torch.optim.AdamW(parameters),
            precision="amp-fp16",
        )
    )


def under(step: Graph, software: str | None, **more: Any) -> foretell.Forecast:
    return foretell.forecast(step, on="rtx-3090", conditions=foretell.Conditions(software=software), **more)


@pytest.mark.parametrize(
    "text", ["torch-1.12", "1.12.1", "PyTorch 1.12", "torch==1.12.1+cu113", "2022-07", "2022-10-27"]
)
def test_a_version_is_read_however_it_is_written(text: str) -> None:
    assert str(Software.parse(text)) == "torch-1.12"


@given(st.sampled_from(sorted(RELEASES)))
def test_a_version_is_current_from_its_day_on(version: tuple[int, int]) -> None:
    day = RELEASES[version]
    assert Software.parse(str(day)).torch == version
    if version != min(RELEASES):
        assert Software.parse(str(day - timedelta(days=1))).torch < version


@pytest.mark.parametrize("text", ["", "0.4", "cuda-12", "2017", "2022-13", "2022-01-32", "torch"])
def test_what_is_no_version_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InputError, match="or a date from"):
        foretell.Conditions(software=text)


def test_older_software_is_slower_in_attention_and_updates(step: Graph) -> None:
    today, then = under(step, None), under(step, "torch-1.13")
    assert then.device_time.seconds > 1.05 * today.device_time.seconds  # scores go to memory
    assert then.host_time.seconds > 1.2 * today.host_time.seconds  # an op for each parameter
    assert {"other-software", "memory-of-today"} <= {caveat.code for caveat in then.caveats}
    assert then.memory == today.memory


def test_versions_since_the_last_that_was_compared_are_today(step: Graph) -> None:
    today, now = under(step, None), under(step, "torch-2.11")
    assert now.step_time.seconds == today.step_time.seconds
    assert "memory-of-today" not in {caveat.code for caveat in now.caveats}


def test_between_two_versions_factors_lie_between_theirs() -> None:
    older = OlderSoftware(times={(1, 11): {"norm": 2.0}, (1, 13): {"norm": 1.5}, (2, 4): {}})
    at = [
        older.factor("norm", Software.parse(f"torch-{v}"))
        for v in ("1.4", "1.11", "1.12", "1.13", "2.1", "2.4", "2.11")
    ]
    assert at == sorted(at, reverse=True)
    assert (at[0], at[1], at[3]) == pytest.approx((2.0, 2.0, 1.5))
    assert 1.5 < at[2] < 2.0
    assert 1.0 < at[4] < 1.5
    assert (at[5], at[6]) == pytest.approx((1.0, 1.0))
    assert older.factor("matmul", Software.parse("1.0")) == 1.0


def test_the_shipped_model_knows_what_took_longer() -> None:
    known = load_model().older_software
    then = Software.parse("torch-1.12")
    assert known.factor("channels_last_grouped_convolution", then) > 1.5  # cuDNN had no kernels for them
    assert 1.0 < known.factor("matmul", then) < 1.25
    assert 0.02 < known.spread < 0.12


def test_a_profile_has_software_of_its_own(step: Graph) -> None:
    profile = foretell.Profile(name="lab", device=1.1)
    with pytest.raises(InputError, match="Give one of them"):
        under(step, "torch-1.12", profile=profile)


def test_a_profile_of_older_software_is_on_top_of_it(step: Graph, tmp_path: Path) -> None:
    told = foretell.Profile(name="lab", device=1.5, host=1.5, purpose=Purpose(software="2022-07"))
    kept = foretell.Profile.load(told.save(tmp_path / "lab.toml"))
    assert kept.purpose.software == "torch-1.12"
    then = under(step, "torch-1.12").step_time.seconds
    found = foretell.forecast(step, "rtx-3090", profile=kept)
    assert found.step_time.seconds == pytest.approx(1.5 * then, rel=1e-3)
    assert "other-software" in {caveat.code for caveat in found.caveats}
    assert under(step, "torch-1.12", profile=kept).step_time == found.step_time
    with pytest.raises(InputError, match=r"ran under torch-1\.12"):
        under(step, "torch-1.11", profile=kept)


def test_steps_that_say_their_software_make_a_profile_on_top_of_it(step: Graph) -> None:
    then = under(step, "torch-1.12").step_time.seconds
    steps = [
        foretell.MeasuredStep(workload=step, on="rtx-3090", seconds=factor * then, software="torch-1.12")
        for factor in (1.4, 1.4, 1.4)
    ]
    found = foretell.adapt(steps, name="lab")
    assert found.purpose.software == "torch-1.12"
    assert found.card.error_before == pytest.approx(1 - 1 / 1.4, abs=0.01)
    with pytest.raises(InputError, match=r"several times: today, torch-1\.12"):
        foretell.adapt([*steps, replace(steps[0], software=None)], name="lab")
    with pytest.raises(InputError, match="several times"):
        foretell.adapt(steps, name="lab", start=foretell.Profile(name="of today"))
