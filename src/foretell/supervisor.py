"""The one supervisor of child processes: starts one, waits for its answer, and leaves nothing of it behind.

    caller                        guard                              worker
      Child.fresh(…)     ───▶       a session of its own     ───▶      runs what may crash, hang, print or start others
      child.receive()    ◀─────────────────────────────────────────    sends messages over a socket of its own
                         ◀───       how the worker ended     ◀───
      child.kill()       ───▶       the session is killed

A message counts when it arrives: nobody waits for the worker's end, nor for whoever keeps its output open. The guard runs
no code but this, so nothing can hold it up: once its caller is gone, in whatever way, it kills the session, itself too.
Nothing is written to disk, so nothing can be left there.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final, NoReturn, Self

from foretell.errors import ForetellError
from foretell.units import Bytes, Seconds

_HEAD: Final[Bytes] = 500  # kept of what a worker prints first,
_TAIL: Final[Bytes] = 1500  # and last
_PIPE: Final[Bytes] = 2**16  # what the system keeps of it until it is read
_LOOK: Final[Seconds] = 0.2  # how soon a guard sees that its caller is gone
_PR_SET_PDEATHSIG: Final = 1

Serve = Callable[[Connection], None]
Start = Callable[[int, int, int], tuple[int, Callable[[], object]]]


class ChildEnded(ForetellError):
    """A worker that ended, and what it printed."""

    def __init__(self, how: str, words: str) -> None:
        super().__init__(f"{how}.{words}")
        self.how, self.words = how, words


class Child:
    """A worker as its caller sees it. `kill` may be called from another thread meanwhile."""

    def __init__(self, start: Start) -> None:
        self._link, link = multiprocessing.Pipe()
        self._status, status = multiprocessing.Pipe(duplex=False)
        self._output, output = multiprocessing.Pipe(duplex=False)
        with link, status, output:
            self._pid, self._reap = start(link.fileno(), status.fileno(), output.fileno())
        self._open = {self._link, self._status, self._output}
        self._printed = _Printed()
        self.on_output: Callable[[bytes], None] | None = None  # is given what the worker prints, as it comes
        self._ending = threading.Lock()
        self._ended = False

    @classmethod
    def fresh(cls, target: str, *arguments: str, memory: Bytes | None = None) -> Self:
        """A new interpreter, which calls `module:function` with its end of the socket and these arguments.

        `memory`: bytes that it may allocate.
        """

        def start(link: int, status: int, output: int) -> tuple[int, Callable[[], object]]:
            command = [str(os.getpid()), str(link), str(memory or 0), target, *arguments]
            process = subprocess.Popen(
                [sys.executable, "-m", "foretell.supervisor", *command],
                stdin=subprocess.DEVNULL,
                stdout=status,
                stderr=output,
                pass_fds=[link],
                start_new_session=True,
            )
            return process.pid, process.wait

        return cls(start)

    @classmethod
    def forked(cls, serve: Serve, *, memory: Bytes | None = None) -> Self:
        """A fork of this process, which calls `serve` with its end of the socket."""

        def start(link: int, status: int, output: int) -> tuple[int, Callable[[], object]]:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    stream.flush()  # or the fork would print it too
            caller = os.getpid()
            if not (pid := os.fork()):
                _in_fork(caller, link, status, output, memory, serve)
            return pid, lambda: os.waitpid(pid, 0)

        return cls(start)

    def send(self, message: bytes) -> None:
        self._printed = _Printed()  # what was printed before belongs to another question
        try:
            self._link.send_bytes(message)
        except OSError:
            raise self._end_of_worker() from None

    def receive(self, limit: Seconds = math.inf) -> bytes:
        """The next message; TimeoutError, or ChildEnded where there will be none."""
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            ready = wait(self._open, None if math.isinf(left) else max(left, 0.0))
            if self._output in ready:
                self._listen()
            if self._link in ready:
                try:
                    return self._link.recv_bytes()
                except (EOFError, OSError):  # it is about to end, or to go on without us
                    self._open.discard(self._link)
            elif self._status in ready:
                raise self._end_of_worker()
            if left <= 0:
                raise TimeoutError

    def kill(self) -> None:
        """End the worker and all it has started."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the caller may wait for all its children
                os.kill(self._pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):  # a fork may not have its session yet
                    os.killpg(self._pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
                self._reap()
                while True:  # the first process of a container inherits those whose parent has ended
                    os.waitpid(-self._pid, 0)

    def close(self, grace: Seconds = 0.0) -> None:
        """As `kill`; one that has answered may have a moment to end in its own way."""
        if grace and not self._ended:
            with contextlib.suppress(ChildEnded, TimeoutError):
                self.receive(grace)
        self.kill()
        for end in (self._link, self._status, self._output):
            end.close()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to be there no longer."""
        return self._ended or bool(wait([self._status], 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def printed(self) -> str:
        """The beginning and the end of what the worker has printed so far."""
        return self._printed.text()

    def _listen(self) -> None:
        if data := os.read(self._output.fileno(), _PIPE):
            self._printed.add(data)
            if self.on_output is not None:
                self.on_output(data)
        else:
            self._open.discard(self._output)

    def _end_of_worker(self) -> ChildEnded:
        """How the worker ended, and what it printed."""
        how = "was ended"
        if wait([self._status], _LOOK) and (code := os.read(self._status.fileno(), 16)):
            how = _how(int(code))
        self.kill()
        for _ in range(2):  # whatever fits into a pipe
            if self._output in self._open and wait([self._output], 0):
                self._listen()
        words = self._printed.text()
        return ChildEnded(how, f" Its last words:\n{words}" if words else "")


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    memory = ", as the system does when the host's memory is full" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{memory}"


class _Printed:
    """The beginning and the end of what was printed."""

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._bytes = 0

    def add(self, data: bytes) -> None:
        room = _HEAD - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-_TAIL:]
        self._bytes += len(data)

    def text(self) -> str:
        left_out = self._bytes - len(self._head) - len(self._tail)
        between = f"\n… {left_out:,} bytes left out …\n".encode() if left_out else b""
        return (self._head + between + self._tail).decode(errors="replace").strip()


# The child's side


def main() -> None:
    """In a new interpreter: `python -m foretell.supervisor CALLER LINK MEMORY MODULE:FUNCTION [ARGUMENT…]`."""
    caller, link, memory, target, *arguments = sys.argv[1:]
    sys.argv[1:] = []  # they are none of the business of the code that follows
    _become_worker(int(caller), int(memory))
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)(Connection(int(link)), *arguments)
    atexit._run_exitfuncs()  # user code may have something to tidy up;
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # but to take all modules down, one by one, is a second for nothing


def _in_fork(caller: int, link: int, status: int, output: int, memory: Bytes | None, serve: Serve) -> NoReturn:
    code = 1
    try:
        os.setsid()
        with open(os.devnull, "rb") as nothing:
            for number, end in enumerate((nothing.fileno(), status, output)):
                os.dup2(end, number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # the caller's handlers are about the caller
        _become_worker(caller, memory or 0)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False, errors="replace") for n in (1, 2))
        serve(Connection(os.dup(link)))
        code = 0
    except SystemExit as wish:
        code = wish.code if isinstance(wish.code, int) else int(wish.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:  # nothing of the caller's runs here: neither its atexit nor what follows the fork
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _become_worker(caller: int, memory: Bytes) -> None:
    """Returns in the worker, a fork of this process, which itself becomes the guard."""
    if worker := os.fork():
        threading.Thread(target=_end_with, args=(caller,), daemon=True).start()
        status = os.waitpid(worker, 0)[1]
        with contextlib.suppress(OSError):
            os.write(1, str(os.waitstatus_to_exitcode(status)).encode())
            while True:
                signal.pause()  # until the session is killed, with what the worker left running in it
        os.killpg(os.getpgrp(), signal.SIGKILL)  # the caller does not listen any more
    os.dup2(2, 1)
    end_with_parent()  # where even the guard is killed
    if memory and sys.platform == "linux":
        bound_memory(memory)


def end_with_parent() -> None:
    """Let the system kill this process with the thread that has started it (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with(caller: int) -> None:
    while os.getppid() == caller:
        time.sleep(_LOOK)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def bound_memory(memory: Bytes) -> None:
    """Let this process allocate so much more than it has. Pages count when they are mapped, whether used or not."""
    import resource

    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = min(memory + int(fields["VmData"].split()[0]) * 1024, sys.maxsize)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


if __name__ == "__main__":
    main()
