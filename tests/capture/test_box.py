"""Scripts run in a box: 48 ways to write leave this machine as it is, no address is reached, and no process outlives them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from foretell.capture import box
from foretell.errors import InputError
from foretell.supervisor import Child, ChildEnded
from tests.capture.ways_to_write import ABOUT_FILES, WAYS, prepared, state

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="boxes are of Linux")
PATIENCE = 240.0


def boxed(kind: str, do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `do` returns in a box of this kind; skipped where the kernel gives none."""
    monkeypatch.setenv(box.VARIABLE, kind)

    def serve(link: Connection) -> None:
        found = box.enter()
        link.send_bytes(json.dumps([found, do() if found == kind else None]).encode())

    with Child.forked(serve) as child:
        found, answer = json.loads(child.receive(PATIENCE))
    if found != kind:
        pytest.skip(f"this kernel has no {kind} for us")
    return answer


def try_all(folder: Path, names: list[str], *, about: bool) -> list[str]:
    """The ways that changed their folder, as it is seen here."""
    changed = []
    for name in names:
        place = folder / name.replace("'", "").replace(">", "to")
        before = state(place, about=about)
        with contextlib.suppress(OSError, RuntimeError, subprocess.CalledProcessError, sqlite_error()):
            (WAYS | ABOUT_FILES)[name](place)
        if state(place, about=about) != before:
            changed.append(name)
    return changed


def sqlite_error() -> type[Exception]:
    import sqlite3

    return sqlite3.Error


def folders(parent: Path, names: list[str]) -> Path:
    for name in names:
        prepared(parent / name.replace("'", "").replace(">", "to"))
    return parent


def test_writes_lie_over_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*WAYS, *ABOUT_FILES]
    assert len(names) >= 41
    folder = folders(tmp_path / "victims", names)
    before = state(folder, about=True)
    changed = boxed("namespaces", lambda: try_all(folder, names, about=True), monkeypatch)
    assert state(folder, about=True) == before, "as it was"
    assert sorted(set(names) - set(changed)) == [], "in the box each of them has written"


def test_landlock_refuses_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(WAYS)
    folder, free = folders(tmp_path / "victims", names), tmp_path / "free"
    free.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(free))
    before = state(folder, about=False)

    def tried() -> list[str]:
        (free / "file").write_text("its own")
        return try_all(folder, names, about=False)

    assert boxed("landlock", tried, monkeypatch) == []
    assert state(folder, about=False) == before
    assert (free / "file").read_text() == "its own"


@pytest.mark.parametrize("kind", ["namespaces", "landlock"])
def test_no_address_is_reached(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()

        def reached() -> list[str]:
            found = []
            with contextlib.suppress(OSError):
                socket.create_connection(place, 5).close()
                found.append("socket")
            if shutil.which("curl"):
                line = [
                    "curl",
                    "--silent",
                    "--connect-timeout",
                    "5",
                    "--max-time",
                    "5",
                    f"telnet://{place[0]}:{place[1]}",
                ]
                if subprocess.run(line, stdin=subprocess.DEVNULL, check=False).returncode == 0:
                    found.append("curl")
            return found

        assert boxed(kind, reached, monkeypatch) == []


def test_no_process_outlives_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"31{os.getpid()}"

    def started() -> int:
        return subprocess.Popen(["sleep", mark], start_new_session=True).pid

    boxed("namespaces", started, monkeypatch)
    deadline = time.monotonic() + PATIENCE
    while mark in running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mark not in running()


def running() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(line for line in lines if line.startswith("sleep\0"))


def test_a_crash_in_the_box_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(box.VARIABLE, "namespaces")

    def serve(link: Connection) -> None:
        box.enter()
        os.kill(os.getpid(), signal.SIGKILL)

    with Child.forked(serve) as child, pytest.raises(ChildEnded, match="SIGKILL"):
        child.receive(PATIENCE)


def test_the_system_can_be_read_and_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked() -> list[bool]:
        devices = not any(name.startswith(("sd", "vd", "nvme", "mem", "kmsg")) for name in os.listdir("/dev"))
        try:
            Path("/proc/sys/kernel/hostname").write_text("changed")
        except OSError:
            return [devices, os.path.isdir("/usr/lib"), len(Path("/proc/self/status").read_text()) > 0]
        return []

    assert boxed("namespaces", looked, monkeypatch) == [True, True, True]


def test_an_unknown_box_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(box.VARIABLE, "paper")
    with pytest.raises(InputError, match="namespaces"):
        box.enter()
