"""The cache: what is found again, what is not, and that it never stands in the way of an answer."""

from __future__ import annotations

import importlib.metadata
import json
import os
from functools import cache
from pathlib import Path

import pytest

from foretell.capture import cache as graph_cache
from foretell.capture import capture
from foretell.graph import Graph
from tests.capture.tiny import mlp

SOURCE = """
import torch
from neighbour import WIDTH

import foretell


def linear(batch: int = 2):
    return foretell.Workload(
        name="linear", model=lambda: torch.nn.Linear(WIDTH, 4), batch=lambda: torch.randn(batch, WIDTH),
        loss=lambda model, x: model(x).mean(), optimizer=torch.optim.SGD,
    )
"""


@cache
def a_graph() -> Graph:
    return capture(mlp())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 8\n")
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


def test_a_source_is_captured_once_and_again_when_a_neighbour_changes(store: Path, file: Path) -> None:
    told: list[str] = []
    source = f"{file}:linear"
    first = capture(source, progress=told.append)
    assert told == [f"capturing {source}"]
    stored, listed = sorted(store.iterdir())
    assert (stored.suffix, listed.suffix) == (".graph", ".json")
    assert {Path(path).name for path in json.loads(listed.read_text())} == {"mine.py", "neighbour.py"}
    assert capture(source, progress=told.append) == first
    assert len(told) == 1  # served from disk

    (file.parent / "neighbour.py").write_text("WIDTH = 16\n")
    again = capture(source, progress=told.append)
    assert len(told) == 2
    assert again.bytes_of("parameter") == 4 * (16 * 4 + 4)
    assert capture(source, progress=told.append) == again
    assert len(told) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file where the folder should be")
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "occupied" / "cache"))
    graph_cache.put("key", a_graph(), [])
    assert graph_cache.get("key") is None


def test_what_is_put_is_found_again(store: Path, file: Path) -> None:
    key = graph_cache.key("a:b", {})
    assert graph_cache.get(key) is None
    graph_cache.put(key, a_graph(), [str(file)])
    assert graph_cache.get(key) == a_graph()


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_an_entry_lasts_as_long_as_the_files_it_came_from(store: Path, file: Path, change: str) -> None:
    graph_cache.put("key", a_graph(), [str(file), str(file.parent / "neighbour.py")])
    neighbour = file.parent / "neighbour.py"
    neighbour.unlink() if change == "deleted" else neighbour.write_text("WIDTH = 9\n")
    assert graph_cache.get("key") is None


@pytest.mark.parametrize("damaged", ["key.graph", "key.json"])
@pytest.mark.parametrize("damage", [b"", b"not what was written", None])
def test_a_damaged_entry_is_as_good_as_none_and_is_replaced(
    store: Path, file: Path, damaged: str, damage: bytes | None
) -> None:
    graph_cache.put("key", a_graph(), [str(file)])
    path = store / damaged
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    assert graph_cache.get("key") is None
    graph_cache.put("key", a_graph(), [str(file)])
    assert graph_cache.get("key") == a_graph()


def test_a_list_of_files_that_is_none_is_no_entry(store: Path, file: Path) -> None:
    graph_cache.put("key", a_graph(), [str(file)])
    (store / "key.json").write_text(json.dumps(["not", "a", "mapping"]))
    assert graph_cache.get("key") is None


def test_no_partial_file_is_left(store: Path, file: Path) -> None:
    graph_cache.put("key", a_graph(), [str(file)])
    assert {path.name for path in store.iterdir()} == {"key.graph", "key.json"}


def test_the_key_holds_settings_and_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = graph_cache.key(f"{file}:linear", {})
    assert plain == graph_cache.key(f"{file}:linear", {})
    assert plain != graph_cache.key(f"{file}:linear", {"batch": "2"})
    assert plain != graph_cache.key(f"{file}:other", {})
    assert graph_cache.key("x:f", {"a": "1", "b": "2"}) == graph_cache.key("x:f", {"b": "2", "a": "1"})
    monkeypatch.chdir(file.parent)
    here = graph_cache.key("mine:linear", {})
    monkeypatch.chdir(file.parent.parent)
    assert here != graph_cache.key("mine:linear", {})  # a module of the same name, in another project


def test_the_key_holds_the_content_of_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 64}')
    before = graph_cache.key(str(config), {})
    config.write_text('{"hidden_size": 65}')
    assert graph_cache.key(str(config), {}) != before


def test_the_key_holds_the_versions_of_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph_cache.key("timm/resnet18", {})
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == "torch" else version(name))
    assert graph_cache.key("timm/resnet18", {}) != before


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path))
    assert graph_cache.folder() == tmp_path
    monkeypatch.delenv("FORETELL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert graph_cache.folder() == tmp_path / "xdg" / "foretell"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert graph_cache.folder() == Path.home() / ".cache" / "foretell"


def test_a_large_cache_forgets_what_was_used_longest_ago(
    store: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_cache, "_MOST_BYTES", 1)
    graph_cache.put("old", a_graph(), [str(file)])
    os.utime(store / "old.graph", (0, 0))
    graph_cache.put("new", a_graph(), [str(file)])
    assert {path.stem for path in store.iterdir()} == {"new"}
