"""SOURCE → Workload: every form, every way it can be wrong, and the conversion of settings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretell.errors import SourceError, WorkloadError
from foretell.sources.resolve import find_function, load_workload
from foretell.sources.settings import settings_of

WORKLOADS = """
from __future__ import annotations

from typing import Literal

import torch
from neighbour import WIDTH

import foretell


def linear(
    batch: int = 4, rate: float = 0.1, deep: bool = False, act: Literal["relu", "gelu"] = "relu",
    limit: int | None = None, label="plain", optimizer: str | None = None,
) -> foretell.Workload:
    settings = dict(batch=batch, rate=rate, deep=deep, act=act, limit=limit, label=label, optimizer=optimizer)
    return foretell.Workload(
        name=repr(settings),
        model=lambda: torch.nn.Linear(WIDTH, WIDTH),
        batch=lambda: {"x": torch.randn(batch, WIDTH)},
        loss=lambda model, b: model(b["x"]).sum(),
        optimizer=torch.optim.SGD,
    )


def lost(batch: int = 1):
    return {"batch": batch}


def needs(batch: int):
    return linear(batch)


def odd(shape: list[int] = []):
    return linear()


ready = linear(8)
number = 3
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a user's file that imports its neighbour; what importing it leaves behind is undone."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "neighbour.py").write_text("WIDTH = 16\n")
    (folder / "workloads.py").write_text(WORKLOADS)
    before, modules = list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield "project/workloads.py"
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def made(source: str, **settings: str) -> dict[str, object]:
    result = eval(load_workload(source, settings).name)
    assert isinstance(result, dict)
    return result


def test_a_file_imports_its_neighbours(source: str) -> None:
    assert load_workload(f"{source}:linear").model().in_features == 16


def test_a_module_is_found_from_the_current_folder(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("project")
    assert made("workloads:linear", batch="7")["batch"] == 7


def test_a_workload_that_is_already_made(source: str) -> None:
    assert made(f"{source}:ready")["batch"] == 8


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("batch", "256", 256), ("batch", "1_024", 1024), ("rate", "1e-3", 1e-3), ("rate", "2", 2.0),
        ("deep", "true", True), ("deep", "No", False), ("deep", "0", False), ("act", "gelu", "gelu"),
        ("limit", "none", None), ("limit", "12", 12), ("label", "x=y", "x=y"), ("optimizer", "adam", "adam"),
        ("optimizer", "None", None),
    ],
)  # fmt: skip
def test_settings_become_what_the_function_asks_for(source: str, name: str, text: str, value: object) -> None:
    assert made(f"{source}:linear", **{name: text})[name] == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("batch", "many", "must be a whole number"), ("batch", "1.5", "must be a whole number"),
        ("rate", "fast", "must be a number"), ("deep", "maybe", "must be true or false"),
        ("act", "rely", "Did you mean 'relu'"), ("limit", "few", "must be none or must be a whole number"),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_fit_says_what_would(source: str, name: str, text: str, says: str) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        load_workload(f"{source}:linear", {name: text})
    assert f"{name}={text!r}" in str(caught.value)


def test_an_unknown_setting_names_the_known_ones(source: str) -> None:
    with pytest.raises(SourceError, match=r"no setting 'bacth'.*Did you mean 'batch'.*It takes: batch, rate"):
        load_workload(f"{source}:linear", {"bacth": "2"})


def test_a_type_that_text_cannot_give(source: str) -> None:
    with pytest.raises(SourceError, match="cannot be set from text"):
        load_workload(f"{source}:odd", {"shape": "1,2"})


def test_a_setting_without_a_default_is_asked_for(source: str) -> None:
    with pytest.raises(SourceError, match="--set batch=…"):
        load_workload(f"{source}:needs")
    assert made(f"{source}:needs", batch="3")["batch"] == 3


def test_settings_are_described(source: str) -> None:
    described = settings_of(find_function(f"{source}:linear"))
    assert list(described) == ["batch", "rate", "deep", "act", "limit", "label", "optimizer"]
    assert described["batch"].default == 4
    assert described["label"].annotation is str
    assert settings_of(find_function(f"{source}:needs"))["batch"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("project/workload.py:linear", "no file 'project/workload.py'.*Did you mean 'project/workloads.py'"),
        (
            "project/workloads.py:liner",
            "no function 'liner'.*Did you mean 'linear'.*Functions that return a Workload there: linear",
        ),
        ("project/workloads.py", "does not say which function.*workloads.py:linear"),
        ("project/workloads.py:number", "is a int, not a function"),
        ("nowhere.at.all:f", "no module 'nowhere'"),
        ("resnet50", "does not name a workload.*timm/NAME"),
        ("tim/resnet50", "Did you mean 'timm'"),
        ("missing/config.json", "no file 'missing/config.json'"),
    ],
)
def test_a_source_that_names_nothing(source: str, name: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        load_workload(name)


def test_a_function_that_returns_something_else(source: str) -> None:
    with pytest.raises(WorkloadError, match=r"returned a dict, not a foretell\.Workload"):
        load_workload(f"{source}:lost")


def test_errors_in_the_users_own_file_are_theirs(source: str) -> None:
    Path("project/broken.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load_workload("project/broken.py:f")
    sys.path.insert(0, str(Path("project").resolve()))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load_workload("broken:f")


def test_a_file_may_import_torchvision(source: str) -> None:
    Path("project/vision.py").write_text(WORKLOADS + "import torchvision\n")
    assert made("project/vision.py:linear")["batch"] == 4
