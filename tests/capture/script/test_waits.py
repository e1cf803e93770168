"""Conditions that put training off until a buffer is full: in a slow script the next run takes them to hold sooner."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest

from foretell.capture.script import waits
from foretell.capture.script.parsed import tree_of
from foretell.capture.script.waits import READY, Waiting, hurried

AGENT = """
    def play(env, agent, memory, start, rounds, every=4):
        for t in range(rounds):
            memory.append(env.step(t))
            if t % 1000 > 998 and memory:
                print(t)
            if t >= start and t % every == 0:
                agent.learn(memory)

    def play_on(env, agent, memory, start, rounds):
        for t in range(rounds):
            memory.append(env.step(t))
            if len(memory) < start:
                continue
            agent.optimizer.step()

    def read(lines):
        for line in lines:
            if len(line) < 3:
                continue
            yield line
"""


class _World:
    def step(self, t: int) -> int:
        return t


class _Agent:
    def __init__(self) -> None:
        self.learnt, self.optimizer = 0, self

    def learn(self, memory: list[int]) -> None:
        self.learnt += 1

    def step(self) -> None:
        self.learnt += 1


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(waits, "_LONGEST", 0.0)
    path = tmp_path / "agent.py"
    path.write_text(textwrap.dedent(AGENT).strip())
    return path


def _run(path: Path, trains: bool) -> tuple[dict[str, Any], list[int]]:
    ended: list[int] = []
    tree = tree_of(str(path))
    waiting = Waiting(lambda file, line: ended.append(line), lambda: trains)
    names: dict[str, Any] = {READY: waiting.ready}
    exec(compile(hurried(ast.parse(path.read_text()), waits.waits(tree)), str(path), "exec"), names)
    return names, ended


def test_only_what_training_waits_for_counts(agent: Path) -> None:
    assert waits.waits(tree_of(str(agent))) == [6, 12]


@pytest.mark.parametrize(("how", "line"), [("play", 6), ("play_on", 12)])
def test_training_begins_before_the_buffer_is_full(agent: Path, how: str, line: int) -> None:
    names, ended = _run(agent, trains=False)
    learner, memory = _Agent(), list[int]()
    names[how](_World(), learner, memory, 50_000, waits._ENOUGH)
    assert learner.learnt == 0
    names[how](_World(), learner, memory, 50_000, 100)
    assert learner.learnt > 0
    assert ended == [line]


def test_a_script_that_has_trained_is_left_alone(agent: Path) -> None:
    names, ended = _run(agent, trains=True)
    learner = _Agent()
    names["play"](_World(), learner, [], 50_000, 2 * waits._ENOUGH)
    assert learner.learnt == 0
    assert ended == []
