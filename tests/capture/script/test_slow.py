"""Loops that run for long before a script trains: the next run ends them early."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import runpy
import textwrap
import time
from pathlib import Path
from typing import Any, cast

import pytest

from foretell.capture.script import parsed, slow
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.parsed import known_tree, tree_of
from foretell.capture.script.session import Session
from foretell.capture.script.slow import CUT, MORE, ROUNDS, Looks, Rounds, around, cut

LOOPS = """
    def prepare(rows):
        found = []
        for row in rows:
            found.append(row)
        n = 0
        while n < 10**9:
            n += 1
        return found, [row for row in rows], n

    def learn(env):
        for step in range(10**9):
            env.step(step)
"""


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    path = tmp_path / "prepare.py"
    path.write_text(textwrap.dedent(LOOPS).strip())
    tree_of(str(path))
    return path


def test_loops_that_train_are_left(loops: Path) -> None:
    assert [line for _, line in around(str(loops), 4)] == [3]
    assert [line for _, line in around(str(loops), 8)] == [8]
    assert list(around(str(loops), 12)) == []


def test_a_bar_of_progress_trains_nothing_and_a_generator_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "prepare.py"
    path.write_text(
        "def prepare(rows, pbar):\n    for row in rows:\n        pbar.update(1)\n"
        "def play(env):\n    while True:\n        yield env\n"
        "def copy(rows, to_update, pretrained):\n    for i in rows:\n        to_update[i] = pretrained[i]\n"
        "def learn(rows, pbar, net):\n    for row in rows:\n        pbar.update(1)\n        net.update(row)\n"
    )
    tree_of(str(path))
    assert [list(around(str(path), line)) for line in (3, 6, 9, 12)] == [[(str(path), 2)], [], [(str(path), 8)], []]


def test_a_look_does_not_parse(tmp_path: Path) -> None:
    path = str(tmp_path / "other.py")
    Path(path).write_text("for row in range(3):\n    pass\n")
    assert list(around(path, 2)) == []
    assert known_tree(path) is None


def test_what_a_script_runs_and_imports_is_parsed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = importlib.machinery.SourceFileLoader
    monkeypatch.setattr(runpy, "compile", compile, raising=False)
    monkeypatch.setattr(loader, "get_code", loader.get_code)
    monkeypatch.syspath_prepend(tmp_path)
    other, script = tmp_path / "imported_by_a_script.py", tmp_path / "script.py"
    other.write_text("rows = [row for row in range(3)]\n")
    script.write_text("import imported_by_a_script\nfor row in imported_by_a_script.rows:\n    print(row)\n")
    parsed.install(cast(Session, None))
    runpy.run_path(str(script))
    assert [line for _, line in around(str(script), 3)] == [2]
    assert [line for _, line in around(str(other), 1)] == [1]


def test_long_ones_end_early(loops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_LONGEST", 0.0)
    ended: list[int] = []
    rounds = Rounds(lambda path, line: ended.append(line))
    names: dict[str, Any] = {ROUNDS: rounds.of, MORE: rounds.more}
    exec(compile(cut(ast.parse(loops.read_text()), {3, 6, 8}), str(loops), "exec"), names)
    found, again, n = names["prepare"](range(10**6))
    assert len(found) == len(again) == n == 64
    assert ended == [3, 6, 8]
    assert names["prepare"](range(10))[0] == list(range(10))


def test_a_loop_of_long_rounds_ends_after_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_LONG", 0.0)
    rounds = Rounds(lambda path, line: None)
    names: dict[str, Any] = {ROUNDS: rounds.of}
    exec(compile(cut(ast.parse("found = [row for row in range(50)]"), {1}), "rows.py", "exec"), names)
    assert names["found"] == [0, 1, 2, 3]


def test_calls_one_after_another_have_rounds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_LONGEST", 0.0)
    ended: list[int] = []
    rounds = Rounds(lambda path, line: ended.append(line))
    text = "def draw(n):\n    while True:\n        n -= 1\n        if not n:\n            return 'sample'"
    names: dict[str, Any] = {MORE: rounds.more}
    exec(compile(cut(ast.parse(text), {2}), "draw.py", "exec"), names)
    assert [names["draw"](20) for _ in range(8)] == ["sample"] * 8
    assert not ended


def test_a_loop_is_seen_where_the_script_often_is(loops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, guesses = Looks(), Guesses()
    names: dict[str, Any] = {}
    exec(compile(loops.read_text(), str(loops), "exec"), names)

    def rows() -> Any:
        import sys

        for row in range(slow._LOOKS):
            looks.see(sys._getframe())
            yield row
        raise KeyError

    with pytest.raises(KeyError):
        names["prepare"](rows())
    monkeypatch.setattr(slow, "_PATIENCE", time.process_time() + 1000.0)
    assert looks.slow(guesses) == {}  # too soon
    monkeypatch.setattr(slow, "_PATIENCE", 0.0)
    assert [str(loops), 3] in looks.slow(guesses)[CUT]
