"""The supervisor of child processes: answers, deaths, and that nothing is left of a child, whatever it or its caller does."""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from foretell.learn.workers import each
from foretell.supervisor import Child, ChildEnded

LONG = 1000.0  # seconds that no test waits for


def session(leader: int) -> list[int]:
    """Processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *numbers = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it has just ended
        if int(numbers[2]) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def is_empty(leader: int) -> bool:
    """Within a time that is far too long."""
    deadline = time.monotonic() + 300
    while (alive := session(leader)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive


def start_helper() -> None:
    """Another process, which keeps all that it inherits."""
    subprocess.Popen(["sleep", str(LONG)], close_fds=False)


def echo(link: Connection, *arguments: str) -> None:
    while True:
        link.send_bytes(" ".join(arguments).encode() + link.recv_bytes())


def answer_and_hang(link: Connection) -> None:
    """What a new interpreter is asked to do."""
    atexit.register(time.sleep, LONG)
    threading.Thread(target=time.sleep, args=(LONG,)).start()
    start_helper()
    print(sys.argv[1:])
    link.send_bytes(b"here")


@pytest.mark.parametrize("start", [lambda: Child.forked(echo), lambda: Child.fresh("tests.test_supervisor:echo", "a ")])
def test_a_child_answers(start: Callable[[], Child]) -> None:
    with start() as child:
        for question in (b"1", b"x" * 1_000_000):
            child.send(question)
            assert child.receive(60).endswith(question)
    assert is_empty(child._pid)


def test_an_answer_counts_though_the_child_does_not_end() -> None:
    with Child.fresh("tests.test_supervisor:answer_and_hang") as child:
        assert child.receive(60) == b"here"
        assert session(child._pid)
        child.close(0.1)
        assert is_empty(child._pid)


def tidy_up_later(link: Connection, path: str) -> None:
    atexit.register(Path(path).touch)
    link.send_bytes(b"done")


def test_one_that_ends_in_its_own_way_tidies_up(tmp_path: Path) -> None:
    with Child.fresh("tests.test_supervisor:tidy_up_later", str(tmp_path / "tidy")) as child:
        child.receive(60)
        child.close(60)
    assert (tmp_path / "tidy").exists()


def die_with_helper(link: Connection) -> None:
    start_helper()
    print("goodbye", flush=True)
    os._exit(3)


@pytest.mark.parametrize(
    ("serve", "how"),
    [
        (die_with_helper, "ended with exit code 3. Its last words:\ngoodbye"),
        (lambda link: os.kill(os.getpid(), signal.SIGUSR1), "was ended by SIGUSR1"),
        (lambda link: os.kill(os.getppid(), signal.SIGKILL), "was ended"),
        (lambda link: link.close(), "ended with exit code 0"),
        (lambda link: sys.exit(5), "ended with exit code 5"),
        (lambda link: print(1 // 0), "ZeroDivisionError"),
    ],
)
def test_a_child_that_ends_without_an_answer(serve: Callable[[Connection], None], how: str) -> None:
    with Child.forked(serve) as child:
        with pytest.raises(ChildEnded) as lost:
            child.receive(60)
        assert how in str(lost.value)
        assert is_empty(child._pid)


def test_one_that_does_not_answer_in_time() -> None:
    with Child.forked(lambda link: time.sleep(LONG)) as child, pytest.raises(TimeoutError):
        child.receive(0.05)
    assert is_empty(child._pid)


def test_endless_output_is_no_answer_either() -> None:
    def serve(link: Connection) -> None:
        while True:
            os.write(1, b"\xff\0" * 10_000)

    with Child.forked(serve) as child, pytest.raises(TimeoutError):
        child.receive(0.2)
    assert len(child._printed.text()) < 3000


def test_the_beginning_and_the_end_of_what_is_printed_are_kept() -> None:
    def serve(link: Connection) -> None:
        os.write(1, b"first" + b"\xff" * 3_000_000 + b"last")
        os._exit(1)

    with (
        Child.forked(serve) as child,
        pytest.raises(ChildEnded, match=r"(?s)first.*2,998,009 bytes left out.*last") as lost,
    ):
        child.receive(60)
    assert len(str(lost.value)) < 3000


def test_memory_is_bounded() -> None:
    child = Child.forked(lambda link: link.send_bytes(bytes(2**30)), memory=2**29)
    with child, pytest.raises(ChildEnded, match="MemoryError"):
        child.receive(60)


def test_nothing_of_the_callers_runs_in_a_fork(tmp_path: Path) -> None:
    atexit.register(wish := (lambda: (tmp_path / "ran").touch()))
    try:
        with Child.forked(lambda link: link.send_bytes(b"done")) as child:
            child.receive(60)
            child.close(60)
    finally:
        atexit.unregister(wish)
    assert not (tmp_path / "ran").exists()


def test_another_thread_may_end_it() -> None:
    child = Child.forked(lambda link: time.sleep(LONG))
    threading.Timer(0.1, child.kill).start()
    with pytest.raises(ChildEnded, match="was ended"):
        child.receive(60)
    child.close()


def test_a_daemon_may_have_one() -> None:
    """As the workers of a multiprocessing.Pool are, which may have no children by multiprocessing itself."""

    def ask(link: Connection) -> None:
        with Child.forked(echo) as child:
            child.send(b"from a daemon")
            link.send_bytes(child.receive(60))

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=ask, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(60)
    assert ours.recv_bytes() == b"from a daemon"
    process.join(60)


def spin(link: Connection) -> None:
    start_helper()
    link.send_bytes(b"up")
    while True:
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_child_ends_with_its_caller_however_that_ends(number: signal.Signals) -> None:
    def call(link: Connection) -> None:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        with Child.forked(spin) as child:
            child.receive(60)
            link.send(child._pid)
            child.receive()

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    caller = fork.Process(target=call, args=(theirs,))
    caller.start()
    assert ours.poll(60)
    leader = ours.recv()
    assert len(session(leader)) == 3  # guard, worker and helper
    os.kill(caller.pid or 0, number)
    caller.join(60)
    assert is_empty(leader)


def test_the_first_process_of_a_container_is_left_no_zombies() -> None:
    """It inherits processes whose parent has ended, and nobody else asks how they ended."""

    def call(link: Connection) -> None:
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: it inherits as the first process does
        with Child.forked(spin) as child:
            child.receive(300)
        link.send(Path(f"/proc/self/task/{os.getpid()}/children").read_text())

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    caller = fork.Process(target=call, args=(theirs,))
    caller.start()
    assert ours.poll(300)
    assert ours.recv() == ""
    caller.join(300)


def hang(pids: Path, number: int) -> None:
    (pids / str(os.getpid())).touch()
    time.sleep(LONG)


def test_workers_of_a_pool_end_with_their_parent(tmp_path: Path) -> None:
    def fit() -> None:
        list(each(hang, tmp_path, [1, 2], workers=2))

    parent = multiprocessing.get_context("fork").Process(target=fit)
    parent.start()
    deadline = time.monotonic() + 60
    while not (workers := [int(path.name) for path in tmp_path.iterdir()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert workers
    parent.kill()
    parent.join(60)
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, workers))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
