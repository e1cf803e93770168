"""The package as its users meet it: public names, what an import costs, versions and pins that agree."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

import foretell

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_public_face_is_what_the_docs_use() -> None:
    assert sorted(foretell.__all__) == foretell.__all__
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    blocks = [b for page in pages for b in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.S | re.M)]
    used = {name for block in blocks for name in re.findall(r"(?<![\w.])foretell\.(\w+)\(", block)}
    assert {"forecast", "Workload"} <= used <= set(foretell.__all__)


@pytest.mark.parametrize("name", ["forecast", "fit_batch", "scale", "plan"])
def test_siblings_take_the_same_arguments(name: str) -> None:
    parameters = inspect.signature(getattr(foretell, name)).parameters
    assert list(parameters)[:3] == ["workload", "on", "plan"]
    assert {"settings", "model", "profile", "conditions", "job"} <= set(parameters)
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[3:])


@pytest.mark.parametrize("name", foretell.__all__)
def test_public_names_are_there(name: str) -> None:
    value = getattr(foretell, name)
    assert name == "__version__" or value.__doc__


def test_no_module_has_the_name_of_a_function() -> None:
    modules = {found.name for found in pkgutil.iter_modules(foretell.__path__)}
    assert not modules & {*foretell.__all__, "plan"}  # importing it would hide the function


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(foretell, "nosuch")


@pytest.mark.parametrize("first", ["foretell.forecasting.forecast", "foretell.cli", "foretell.hardware"])
def test_public_names_stay_what_they_are_whatever_is_imported_first(first: str) -> None:
    check = f"import {first}, foretell; assert callable(foretell.forecast) and isinstance(foretell.Cluster, type)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)


def test_import_does_no_work() -> None:
    """Some 50 ms of processor; the limit is a safety net."""
    check = (
        "import sys, time; start = time.process_time(); import foretell; print(time.process_time() - start);"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'rich', 'typer'}))"
    )
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    seconds, loaded = ended.stdout.split("\n")[:2]
    assert loaded == ""
    assert float(seconds) < 1.0


@pytest.mark.parametrize("verb", [(), ("predict",)])
def test_help_is_quick(verb: tuple[str, ...]) -> None:
    """Some 0.35 s of processor, interpreter and all; the limit is a safety net."""
    before = _children_seconds()
    command = [sys.executable, "-m", "foretell.cli", *verb, "--help"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert _children_seconds() - before < 4.0


def _children_seconds() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def test_one_version() -> None:
    assert foretell.__version__ == PROJECT["version"] == metadata.version("foretell")
    assert f"\nversion: {foretell.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'version = "{foretell.__version__}"' in (ROOT / "bench" / "pyproject.toml").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(foretell.__version__)}\]?", changes, flags=re.MULTILINE)


def test_it_is_typed() -> None:
    assert (resources.files("foretell") / "py.typed").is_file()


def test_everything_asked_for_is_pinned() -> None:
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    asked = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
    names = {re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in asked}
    assert names <= set(pins)
