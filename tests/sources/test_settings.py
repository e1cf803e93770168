"""Settings of a source: as text, or as the Python values that a user would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretell
from foretell.errors import InputError, PlanError, SourceError
from foretell.sources.configs import Configuration
from foretell.sources.resolve import load_workload
from foretell.sources.settings import texts_of

FILE = """
from typing import Literal
import torch, foretell

def tiny(batch: int = 2, bias: bool = True, mode: Literal[False, True, "fast"] = False, name: str | None = None, lr: float = 0.1):
    return foretell.Workload(
        name=f"{batch} {bias} {mode} {name} {lr}", model=lambda: torch.nn.Linear(8, 8, bias=bias),
        batch=lambda: torch.randn(batch, 8), loss=lambda model, x: model(x).mean(), optimizer=lambda p: torch.optim.SGD(p, lr=lr),
    )
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "settings_source.py").write_text(FILE)
    return f"{tmp_path / 'settings_source.py'}:tiny"


def test_python_values_mean_what_their_texts_mean(source: str) -> None:
    values = {"batch": np.int64(4), "bias": False, "mode": True, "name": None, "lr": 1e-5}
    texts = {"batch": "4", "bias": "no", "mode": "true", "name": "none", "lr": "0.00001"}
    assert load_workload(source, values).name == load_workload(source, texts).name == "4 False True None 1e-05"


def test_every_function_takes_python_values(source: str) -> None:
    settings: dict[str, Any] = {"batch": 4, "bias": False}
    graph = foretell.capture_graph(source, settings)
    assert graph.samples == 4
    texts = foretell.capture_graph(source, {"batch": "4", "bias": "false"})
    assert graph.content_hash == texts.content_hash
    step = foretell.forecast(source, "h200", settings=settings).step_time.seconds
    assert foretell.forecast(graph, "h200").step_time.seconds == step
    assert foretell.scale(source, "h200", up_to=2, settings=settings)[0].forecast.step_time.seconds > 0
    planned = foretell.plan(
        source,
        "2xh200",
        job=foretell.JobLength.usual(samples=1e6),
        settings=settings,
        space=foretell.Space(vary={"lr": [0.1]}),
    )
    assert planned.recommended is not None
    assert foretell.fit_batch(source, "t4", settings={"bias": False}).batch > 1
    assert (
        foretell.Point(source=source, settings=settings).key
        == foretell.Point(source=source, settings=texts_of(settings)).key
    )


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, object()])
def test_a_value_that_no_text_says_is_refused(value: Any, source: str) -> None:
    with pytest.raises(InputError, match=r"setting batch=.*Settings are text, numbers, True or False"):
        foretell.capture_graph(source, {"batch": value})


def test_a_batch_that_is_no_number_is_the_files_to_say() -> None:
    with pytest.raises(SourceError, match=r"batch=many of ds\.json must be a whole number"):
        Configuration(file="ds.json", trainer="DeepSpeed").template({"batch": "many"})
    with pytest.raises(PlanError, match="a plan has no dpp"):
        Configuration(file="ds.json", trainer="DeepSpeed", plan={"dpp": 3}).template()
