"""The suite itself: its list of slow tests names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()


def names_of_tests(file: Path) -> set[str]:
    """`test_this` and `TestThat::test_this` of a file."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    functions = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = {f"{c.name}::{node.name}" for c in classes for node in c.body if isinstance(node, ast.FunctionDef)}
    return functions | methods


def test_every_slow_test_is_there() -> None:
    files = {name.partition("::")[0] for name in SLOW}
    there = {f"{file}::{name}" for file in files if (ROOT / file).exists() for name in names_of_tests(ROOT / file)}
    assert set(SLOW) - there == set(), "run `make slow`"
