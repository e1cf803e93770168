"""The suite itself: its list of slow tests names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLOW = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()


def names_of_tests(file: Path) -> set[str]:
    """`test_this` and `TestThat::test_this` of a file."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = {f"{c.name}::{node.name}" for c in classes for node in c.body if isinstance(node, ast.FunctionDef)}
    return functions | methods


@pytest.mark.parametrize("file", sorted({name.partition("::")[0] for name in SLOW}))
def test_every_slow_test_is_there(file: str) -> None:
    listed = {name.partition("::")[2] for name in SLOW if name.startswith(f"{file}::")}
    assert (ROOT / file).exists(), f"{file} is gone: run `make slow`"
    assert listed - names_of_tests(ROOT / file) == set(), "run `make slow`"
