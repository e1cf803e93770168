"""The cache: what is found again, what is not, and that it never stands in the way of an answer."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foretell.capture import cache as graph_cache
from foretell.capture import capture
from foretell.capture.reads import Reads, digest
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


def read(*files: Path) -> dict[str, str]:
    return {str(file): digest(file) for file in files}


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
    assert {Path(path).name for path in json.loads(listed.read_text())["read"]} >= {"mine.py", "neighbour.py"}
    assert capture(source, progress=told.append) == first
    assert len(told) == 1  # served from disk

    (file.parent / "neighbour.py").write_text("WIDTH = 16\n")
    again = capture(source, progress=told.append)
    assert len(told) == 2
    assert again.bytes_of("parameter") == 4 * (16 * 4 + 4)
    assert capture(source, progress=told.append) == again
    assert len(told) == 2


READER = """
import json
from pathlib import Path

import torch

import foretell

HERE = Path(__file__).parent


def linear(edit: bool = False):
    width = json.loads((HERE / "width.json").read_text())
    if edit:  # as an editor would, meanwhile
        (HERE / "width.json").write_text("32")
    return foretell.Workload(
        name="linear", model=lambda: torch.nn.Linear(width, 4), batch=lambda: torch.randn(2, width),
        loss=lambda model, x: model(x).mean(), optimizer=torch.optim.SGD,
    )
"""


def width(source: str, **settings: str) -> int:
    return capture(source, settings).bytes_of("parameter") // 16 - 1


def test_a_file_that_the_source_reads_belongs_to_it(store: Path, tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(READER)
    source = f"{tmp_path / 'reader.py'}:linear"
    for wide in (8, 16):
        (tmp_path / "width.json").write_text(str(wide))
        assert width(source) == wide
    entry = next(path for path in store.glob("*.json") if "width.json" in path.read_text())
    assert str(tmp_path / "width.json") in json.loads(entry.read_text())["read"]


def test_an_edit_during_the_capture_is_seen_by_the_next(store: Path, tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "width.json").write_text("8")
    source = f"{tmp_path / 'reader.py'}:linear"
    assert width(source, edit="true") == 8
    assert not list(store.glob("*"))
    assert width(source, edit="true") == 32


def test_what_a_step_writes_is_no_input_of_it(tmp_path: Path, run_forked: Callable[..., Any]) -> None:
    def do() -> None:
        reads = Reads()
        (tmp_path / "own").write_text("made here")
        (tmp_path / "own").read_text()
        (tmp_path / "large").read_bytes()
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / "missing").read_text()
        print(json.dumps(reads.found))

    with (tmp_path / "large").open("wb") as large:
        large.truncate(2**30)
    found = json.loads(run_forked(do).stdout)
    assert found.keys() == {str(tmp_path / "large"), str(tmp_path / "missing")}
    assert found[str(tmp_path / "missing")] == ""
    assert found[str(tmp_path / "large")].startswith("1073741824 bytes of ")


def test_a_graph_and_its_files_belong_together(store: Path, file: Path) -> None:
    """Two captures at once, of a source that was edited in between, may each write one of them last."""
    graph_cache.put("key", a_graph(), read(file))
    replace(a_graph(), name="another").save(store / "key.graph")
    assert graph_cache.get("key") is None


def test_a_cache_that_is_not_ours_to_write_is_read(store: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError

    graph_cache.put("key", a_graph(), read(file))
    monkeypatch.setattr(os, "utime", refuse)
    assert graph_cache.get("key") == a_graph()


def test_what_a_killed_writer_left_is_removed(store: Path, file: Path) -> None:
    store.mkdir()
    (store / ".key.graph.x1").touch()
    (store / ".key.graph.x2").touch()
    os.utime(store / ".key.graph.x1", (0, 0))
    graph_cache.put("key", a_graph(), read(file))
    assert {path.name for path in store.iterdir()} == {"key.graph", "key.json", ".key.graph.x2"}


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FORETELL_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    graph_cache.put("key", a_graph(), {})
    assert graph_cache.get("key") is None


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file where the folder should be")
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "occupied" / "cache"))
    graph_cache.put("key", a_graph(), {})
    assert graph_cache.get("key") is None


def test_what_is_put_is_found_again(store: Path, file: Path) -> None:
    key = graph_cache.key("a:b", {})
    assert graph_cache.get(key) is None
    graph_cache.put(key, a_graph(), read(file))
    assert graph_cache.get(key) == a_graph()


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_an_entry_lasts_as_long_as_the_files_it_came_from(store: Path, file: Path, change: str) -> None:
    graph_cache.put("key", a_graph(), read(file, file.parent / "neighbour.py"))
    neighbour = file.parent / "neighbour.py"
    neighbour.unlink() if change == "deleted" else neighbour.write_text("WIDTH = 9\n")
    assert graph_cache.get("key") is None


@pytest.mark.parametrize("damaged", ["key.graph", "key.json"])
@pytest.mark.parametrize("damage", [b"", b"not what was written", None])
def test_a_damaged_entry_is_as_good_as_none_and_is_replaced(
    store: Path, file: Path, damaged: str, damage: bytes | None
) -> None:
    graph_cache.put("key", a_graph(), read(file))
    path = store / damaged
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    assert graph_cache.get("key") is None
    graph_cache.put("key", a_graph(), read(file))
    assert graph_cache.get("key") == a_graph()


def test_a_list_of_files_that_is_none_is_no_entry(store: Path, file: Path) -> None:
    graph_cache.put("key", a_graph(), read(file))
    (store / "key.json").write_text(json.dumps(["not", "a", "mapping"]))
    assert graph_cache.get("key") is None


def test_no_partial_file_is_left(store: Path, file: Path) -> None:
    graph_cache.put("key", a_graph(), read(file))
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


def test_the_key_holds_whether_torch_compiles(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"{file}:linear"
    before = graph_cache.key(source, {})
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert graph_cache.key(source, {}) != before


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
    monkeypatch.setattr(graph_cache, "_MAX_BYTES", 1)
    graph_cache.put("old", a_graph(), read(file))
    os.utime(store / "old.graph", (0, 0))
    graph_cache.put("new", a_graph(), read(file))
    assert {path.stem for path in store.iterdir()} == {"new"}
