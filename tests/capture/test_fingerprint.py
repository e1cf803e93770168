"""A Workload is captured once in a process, and again as soon as what its functions refer to has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import foretell
from foretell.capture import capture as captured
from foretell.capture.child import capture_workload
from foretell.capture.fingerprint import fingerprint
from foretell.workload import Workload
from tests.capture.tiny import workload

WIDTH = 8


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of workloads, as often as they are captured."""
    made: list[str] = []

    def counted(workload: Workload, *rest: Any) -> Any:
        made.append(workload.name)
        return capture_workload(workload, *rest)

    monkeypatch.setattr("foretell.capture.capture_workload", counted)
    return made


def linear(model: Callable[[], nn.Module], **settings: Any) -> Workload:
    return workload(**{"model": model, "batch": lambda: torch.randn(2, 8), **settings})


def test_the_same_workload_is_captured_once(captures: list[str]) -> None:
    step = linear(lambda: nn.Linear(8, 8))
    first = captured(step)
    forecast = foretell.forecast(step, "h200")
    assert foretell.forecast(step, "2xh100-sxm").step_time.seconds > 0
    assert forecast.graph is first
    assert len(captures) == 1
    captured(step, cache=False)
    assert len(captures) == 2


def test_a_number_that_a_function_refers_to(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = linear(lambda: nn.Linear(8, WIDTH))
    narrow = captured(step)
    monkeypatch.setitem(globals(), "WIDTH", 16)
    assert captured(step).bytes_of("parameter") > narrow.bytes_of("parameter")
    assert len(captures) == 2


def test_a_live_model_that_is_changed(captures: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    step = foretell.step(model, torch.optim.SGD(model.parameters()), lambda m, x: m(x).mean(), torch.randn(2, 8))
    whole = captured(step)
    model[0].requires_grad_(False)
    assert len(captured(step).ops) < len(whole.ops)
    model.append(nn.Linear(8, 32))
    assert captured(step).bytes_of("parameter") > whole.bytes_of("parameter")
    assert len(captures) == 3


def test_a_configuration_that_is_changed() -> None:
    config, numbers = SimpleNamespace(width=8), {"depth": [1]}

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(8, config.width) for _ in numbers["depth"]))

    step = linear(build)
    prints = [fingerprint(step)]
    config.width = 16
    prints.append(fingerprint(step))
    numbers["depth"].append(2)
    prints.append(fingerprint(step))
    assert None not in prints
    assert len(set(prints)) == 3
    assert fingerprint(step) == prints[2]


def test_a_class_a_function_and_a_tensor_that_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Block(nn.Module):
        width = 8

    weight = torch.randn(2, 8)
    step = linear(lambda: Block(), batch=lambda: weight)
    prints = {fingerprint(step), fingerprint(step)}
    assert len(prints) == 1
    weight.add_(1)
    prints.add(fingerprint(step))
    monkeypatch.setattr(Block, "width", 9)
    prints.add(fingerprint(step))
    monkeypatch.setattr(Block, "forward", lambda self, x: x, raising=False)
    prints.add(fingerprint(step))
    assert None not in prints
    assert len(prints) == 4


def test_a_file_that_is_read(captures: list[str], tmp_path: Path) -> None:
    path = tmp_path / "width.txt"
    path.write_text("8")
    step = linear(lambda: nn.Linear(8, int(path.read_text())))
    narrow = captured(step)
    path.write_text("64")
    assert captured(step).bytes_of("parameter") > narrow.bytes_of("parameter")
    assert len(captures) == 2


@pytest.mark.parametrize("setting", ["environment", "dtype"])
def test_what_surrounds_it(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = linear(lambda: nn.Linear(8, 8))
    before = fingerprint(step)
    if setting == "environment":
        monkeypatch.setenv("WIDTH_OF_A_MODEL", "16")
        assert fingerprint(step) != before
        return
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert fingerprint(step) != before
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_cannot_be_followed_is_captured_again(captures: list[str]) -> None:
    batches = (torch.randn(2, 8) for _ in range(9))
    step = linear(lambda: nn.Linear(8, 8), batch=lambda: next(batches))
    assert fingerprint(step) is None
    assert captured(step).ops == captured(step).ops
    assert len(captures) == 2
