"""Every public name says what it takes, gives and raises, with an example that runs; the API page has them all."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import foretell

ROOT = Path(__file__).parents[1]
NAMES = [name for name in foretell.__all__ if name != "__version__"]


def doc_of(name: str) -> str:
    return inspect.getdoc(getattr(foretell, name)) or ""


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name: str) -> None:
    value, text = getattr(foretell, name), doc_of(name)
    sections = set(re.findall(r"^(Args|Attributes|Returns|Raises|Examples):$", text, flags=re.MULTILINE))
    assert "Examples" in sections
    if inspect.isclass(value):
        assert sections & {"Args", "Attributes"}
        return
    assert "Returns" in sections
    assert "Raises" in sections or not inspect.signature(value).parameters or name == "cheapest_instance"
    missing = [
        p for p in inspect.signature(value).parameters if not re.search(rf"(^    {p}: |`{p}`)", text, re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path, run_forked: Callable[..., CompletedProcess[str]]) -> None:
    ended = run_forked(_run_examples, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


def _run_examples() -> None:
    runner = doctest.DocTestRunner(verbose=False)
    for name in NAMES:
        names: dict[str, Any] = {"foretell": foretell}
        runner.run(doctest.DocTestParser().get_doctest(doc_of(name), names, name, None, 0))
    assert runner.tries > len(NAMES)
    assert runner.failures == 0


def test_the_api_page_has_every_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: foretell\.(\w+)$", page, flags=re.MULTILINE)) == NAMES


def test_guides_and_reference_import_nothing_from_inside() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]
    found = {
        (page.name, module)
        for page in pages
        for module in re.findall(r"^\s*(?:from|import) (foretell[\w.]*)", page.read_text("utf-8"), flags=re.MULTILINE)
    }
    assert {module for _, module in found} <= {"foretell", "foretell.methods"}, found
