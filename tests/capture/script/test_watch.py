"""Whoever waits for a script hears where it is, and one that comes to no update is refused with the line that runs."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foretell
from foretell.capture.script import parsed, slow, watch
from foretell.capture.script.guesses import Guesses
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write


def test_progress_names_the_stage_and_the_line(script: Write) -> None:
    text = """
        import time, torch
        time.sleep(1.5)
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            model(torch.randn(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            time.sleep(1.2)
    """
    heard: list[str] = []
    foretell.capture_graph(script(text), progress=heard.append)
    assert any("getting ready · line 3 of train.py" in line for line in heard)
    assert any("step 2 of 3 · line 9 of train.py" in line for line in heard)


def test_a_script_without_an_update_is_refused_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_UPDATE", 0.0)
    monkeypatch.setattr(watch, "_LOOK", 0.01)
    monkeypatch.delenv(watch.LIMIT, raising=False)
    session: Any = SimpleNamespace(
        updates=SimpleNamespace(sequence=[]),
        passes=SimpleNamespace(quiet=1200, learning=0),
        recorder=SimpleNamespace(seen=7),
        script=SimpleNamespace(path="train.py", fake_data=False),
        loops=SimpleNamespace(left_out=Counter()),
        guesses=Guesses(),
    )
    refused: list[str] = []
    heard: list[str] = []
    ended = threading.Event()
    looking = watch.Watch(session, heard.append, lambda text: (refused.append(text), ended.set()))  # type: ignore[func-returns-value, arg-type]
    looking.start()
    assert ended.wait(60)
    assert "evaluation, cut short" in heard[0]
    assert "7 ops" in heard[0]
    assert "1,200 forward passes" in refused[0]
    assert "FORETELL_CAPTURE_LIMIT" in refused[0]
    assert "assert ended.wait(60)" in refused[0]


def test_a_script_that_fills_the_host_ends_its_loops_early_and_is_refused_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MEMORY_LIMIT", 0)
    monkeypatch.setattr(watch, "_LOOK", 0.01)
    monkeypatch.delenv(watch.MEMORY, raising=False)
    guesses = Guesses()
    loops = [{"loops that end early": [["train.py", 3]]}, {}]
    session: Any = SimpleNamespace(
        updates=SimpleNamespace(sequence=[]),
        passes=SimpleNamespace(quiet=0, learning=0),
        recorder=SimpleNamespace(seen=0),
        script=SimpleNamespace(path="train.py", fake_data=True),
        guesses=guesses,
    )
    heard: list[Any] = []
    ended = threading.Event()
    looking = watch.Watch(session, str, lambda text: (heard.append(text), ended.set()), heard.append)  # type: ignore[func-returns-value, arg-type]
    monkeypatch.setattr(
        looking._looks, "slow", lambda known, at_once: loops.pop(0) if at_once and known is guesses else {}
    )
    looking.start()
    assert ended.wait(60)
    assert heard[0] == {"loops that end early": [["train.py", 3]]}
    assert watch.MEMORY in heard[-1]
    assert "before its first update" in heard[-1]


def test_loops_are_named_at_once_where_memory_is_full(tmp_path: Path) -> None:
    path = tmp_path / "prepare.py"
    path.write_text("def prepare(rows):\n    for row in rows:\n        keep(row)\n")
    parsed.tree_of(str(path))
    names: dict[str, Any] = {}
    looks = slow.Looks()
    names["keep"] = lambda row: looks.see(sys._getframe(1))
    exec(compile(path.read_text(), str(path), "exec"), names)
    names["prepare"](range(3))
    assert looks.slow(Guesses()) == {}
    assert looks.slow(Guesses(), at_once=True)[slow.CUT] == [[str(path), 2]]


def test_a_script_that_waits_for_a_process_that_failed_is_refused_at_once(script: Write) -> None:
    text = """
        import multiprocessing
        def play(queue):
            raise ValueError("no such environment")
        queue = multiprocessing.Queue()
        multiprocessing.Process(target=play, args=(queue,)).start()
        queue.get()
    """
    with pytest.raises(WorkloadError, match=r"(?s)waits in line 7 of .*failed, with exit code 1.*no such environment"):
        foretell.capture_graph(script(text))
