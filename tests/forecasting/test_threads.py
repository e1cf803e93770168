"""Threads that forecast at once share a process: its garbage collector, and what graphs and models remember."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from foretell.capture import capture
from foretell.cost import model as cost_model
from foretell.cost import operators
from foretell.cost.model import load_model
from foretell.forecasting import garbage
from foretell.forecasting.garbage import no_garbage_collection
from foretell.graph import Graph
from foretell.hardware import device
from tests.capture.tiny import mlp


def test_garbage_is_collected_after_forecasts_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, goes_on = threading.Event(), threading.Event()

    class Slow:
        """The collector, as a thread sees it that is interrupted just after it has looked whether it is on."""

        enable, disable = staticmethod(gc.enable), staticmethod(gc.disable)

        @staticmethod
        def isenabled() -> bool:
            found = gc.isenabled()
            looked.set()
            assert goes_on.wait(60)
            return found

    def second() -> None:
        with no_garbage_collection():
            pass

    thread = threading.Thread(target=second)
    with no_garbage_collection():
        monkeypatch.setattr(garbage, "gc", Slow)
        thread.start()
        assert looked.wait(60)
        monkeypatch.setattr(garbage, "gc", gc)
    goes_on.set()
    thread.join()
    try:
        assert gc.isenabled()
    finally:
        gc.enable()


def test_one_forecast_goes_without_and_so_does_what_it_calls() -> None:
    with no_garbage_collection(), no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()  # as the program wants it
    finally:
        gc.enable()


def test_a_graph_answers_though_another_thread_lets_it_forget() -> None:
    class Forgetful(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            self.clear()  # by another thread

    graph = Graph(name="empty", ops=(), tensors=(), storages=())
    vars(graph)["_remembered"] = Forgetful()
    assert graph.remember("key", lambda: "made") == "made"


def test_a_graph_remembers() -> None:
    graph = Graph(name="empty", ops=(), tensors=(), storages=())
    made = [graph.remember(key, object) for key in range(40)]
    assert graph.remember(39, object) is made[39]
    assert len(graph._remembered) <= 32


def test_a_model_forgets_nothing_that_another_thread_is_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cost_model, operators):
        monkeypatch.setattr(module, "REMEMBERED", 0)
    graph, here = capture(mlp()), device("h100-sxm")
    first, *others = graph.signatures
    model = load_model()
    learned = model._learn([first], here, False)
    model._learn(others, here, False)  # what another thread does meanwhile
    assert first in learned
