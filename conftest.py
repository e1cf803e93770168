"""What all tests share: nothing of the person testing, and no new interpreter where a fork of this one will do.

Loading torch takes seconds. A test process loads it once; captures of a SOURCE and `foretell` commands then run in forks
of it. `new_interpreter` is for tests of the real thing.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side; and OpenMP's threads do not survive a fork

import contextlib
import importlib
import multiprocessing
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from foretell import cli
from foretell.capture import child
from foretell.cost.model import load_model
from foretell.graph import Graph
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell.sources.resolve import load_workload
from foretell.supervisor import Child
from foretell.workload import Workload

settings.register_profile("busy", deadline=None)  # others may use this machine
settings.load_profile("busy")

_NEW_INTERPRETER = child._new_interpreter
_SLOW = Path(__file__).parent / "tests" / "slow.txt"  # what `make quick` leaves out, beside what is marked
_LIMIT = 0.1  # seconds that a quick test may take


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-slow", action="store_true", help=f"Write what takes more than {_LIMIT} s to {_SLOW}.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(_SLOW.read_text(encoding="utf-8").splitlines())
    for item in items:
        if _function(item.nodeid) in slow or item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--write-slow"):
        took: Counter[str] = Counter()
        for report in (r for outcome in terminalreporter.stats.values() for r in outcome if hasattr(r, "duration")):
            took[report.nodeid] += report.duration
        slow = {_function(name) for name, seconds in took.items() if seconds > _LIMIT}
        _SLOW.write_text("".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")


def _function(name: str) -> str:
    return name.partition("[")[0]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the session: the workers of a parallel run have folders side by side."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(autouse=True)
def _nothing_of_the_person_testing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared_folder: Path) -> None:
    """No catalog, store, cache or setting of theirs; graphs are cached for the session."""
    for name in [name for name in os.environ if name.startswith(("FORETELL_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FORETELL_CACHE", str(shared_folder / "graphs"))
    monkeypatch.setattr(child, "_new_interpreter", _capture_forked)


@pytest.fixture
def new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SOURCE is captured as it is for users: by a process that starts anew."""
    monkeypatch.setattr(child, "_new_interpreter", _NEW_INTERPRETER)


def _capture_forked() -> Child:
    def serve(link: Connection) -> None:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
        child.answer(link)

    _load_what_forks_need()
    return Child.forked(serve, memory=child._most_memory())


def _run_forked(
    do: Callable[[], object], *, cwd: Path | None = None, timeout: float = 1500
) -> subprocess.CompletedProcess[str]:
    """Call a function in a fork of this process; the exit code is None where it had to be stopped."""
    _load_what_forks_need()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = multiprocessing.get_context("fork").Process(
            target=_forked, args=(do, out.fileno(), err.fileno(), cwd)
        )
        process.start()
        process.join(timeout)
        if stopped := process.is_alive():
            process.kill()
            process.join()
        for stream in (out, err):
            stream.seek(0)
        code = None if stopped else process.exitcode
        return subprocess.CompletedProcess((), code, out.read(), err.read())  # type: ignore[arg-type]


@cache
def _load_what_forks_need() -> None:
    """Once, here: each would load them for itself."""
    child._load_what_every_script_needs()
    make_torchvision_importable()
    for name in (
        "foretell.forecasting",
        "foretell.report",
        "timm",
        "torchvision",
        "duckdb",
        "lightgbm",
        "rich.console",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    load_model()


def _forked(do: Callable[[], object], out: int, err: int, cwd: Path | None) -> None:
    for number, to in ((1, out), (2, err)):
        os.dup2(to, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if cwd is not None:
        os.chdir(cwd)
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        do()
    except SystemExit:
        raise  # its code is the process's
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


@pytest.fixture
def run_forked() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_forked(do, cwd=folder)` calls a function in a fork of this process."""
    return _run_forked


@pytest.fixture
def run_foretell() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_foretell("devices", "--json", cwd=folder)`: a command in a process of its own, which need not load torch."""

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        def command() -> None:
            sys.argv = ["foretell", *arguments]
            cli.main()

        return _run_forked(command, cwd=cwd)

    return run


@pytest.fixture
def user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A catalog of the user's own, with a place for each kind of file."""
    folder = tmp_path / "catalog"
    for kind in ("devices", "links", "hosts", "instances"):
        (folder / kind).mkdir(parents=True)
    monkeypatch.setenv("FORETELL_CATALOG", str(folder))
    return folder


@pytest.fixture
def capture_in_child() -> Callable[..., Graph]:
    """`capture_in_child(workload)` or `capture_in_child("timm/resnet18", batch="2")`."""

    def run(source: str | Workload, **settings: str) -> Graph:
        workload = source if isinstance(source, Workload) else load_workload(source, settings)
        return child.capture_workload(workload)[0]

    return run
