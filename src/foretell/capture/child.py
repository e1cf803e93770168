"""The capturing child: runs user code in a process of its own and hands back a graph or an error.

A SOURCE is imported by the child itself. A Workload made in the caller's process reaches it by fork, or by
cloudpickle where fork is unsafe (no fork on the platform, or a CUDA context in the parent).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from foretell import errors
from foretell.capture import box
from foretell.capture.compiled import COMPILES
from foretell.capture.explain import explain, is_ours, own_failure, words_of
from foretell.capture.reads import Reads
from foretell.errors import CaptureError, ForetellError, InputError, WorkloadError
from foretell.graph import Graph
from foretell.sources.scripts import Script
from foretell.supervisor import Child, ChildEnded, end_with_parent
from foretell.units import Bytes, Seconds, parse_bytes
from foretell.workload import Workload

_GRACE: Final[Seconds] = 2.0  # to end in, once it has answered
_LOOK: Final[Seconds] = 0.2  # how soon is seen that a run has crashed
_PROGRESS: Final = b"\n"  # no answer begins so
AS_WRITTEN: Final = {"TORCH_COMPILE_DISABLE": "1"}  # torch's own: code that calls torch.compile runs as it is written


Output = Callable[[bytes], None] | None
Report = Callable[[str], None]


def capture_source(
    source: str, settings: Mapping[str, str], output: Output = None, compiled: bool = True
) -> tuple[Graph, dict[str, str]]:
    """The graph of a SOURCE, and the files of the user's that were read for it, each with its digest."""
    request = {"source": source, "settings": dict(settings), "compiled": compiled}
    return _ask(_new_interpreter, json.dumps(request).encode(), source, output)


def capture_script(
    script: Script, output: Output = None, report: Report = lambda text: None
) -> tuple[Graph, dict[str, str]]:
    """As `capture_source`, of a training script; `report` hears where it is.

    Where it fails, or its process ends, once something was compiled, it is run again as it is written.
    """
    heard: list[str] = []

    def hear(where: str) -> None:
        heard.append(where)
        report(where)

    def run(known: Mapping[str, Any]) -> tuple[Graph, dict[str, str]]:
        request = json.dumps({"script": script.to_dict(), "known": known}).encode()
        return _ask(_new_interpreter, request, script.path, output, hear)

    try:
        return run({})
    except ForetellError:
        if COMPILES not in heard:
            raise
    return run({COMPILES: "with its kernels the script did not come to its third step"})


def capture_workload(workload: Workload, output: Output = None, compiled: bool = True) -> tuple[Graph, dict[str, str]]:
    """As `capture_source`, of a Workload that is made already."""
    if _may_fork():
        _load_what_every_capture_needs()

        def serve(link: Connection) -> None:
            _serve(_Side(link), lambda: _trace_workload(lambda: workload, compiled))

        return _ask(lambda: Child.forked(serve, memory=_most_memory()), b"", workload.name, output)
    import cloudpickle

    return _ask(_new_interpreter, cloudpickle.dumps((workload, compiled)), workload.name, output)


def _new_interpreter() -> Child:
    return Child.fresh("foretell.capture.child:answer", memory=_most_memory())


def _may_fork() -> bool:
    if sys.platform != "linux":
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


def _load_what_every_capture_needs() -> None:
    """Fake tensors pull in torch._dynamo, which takes seconds to import: here it is done once, and forks inherit it."""
    import torch._dynamo  # noqa: F401

    import foretell.capture.fallback  # noqa: F401


def _load_what_every_script_needs() -> None:
    """Before it is boxed: what Python compiles of a module that it loads in there is forgotten with the box."""
    _load_what_every_capture_needs()
    import foretell.capture.script.run  # noqa: F401


def _ask(
    start: Callable[[], Child], request: bytes, what: str, output: Output = None, report: Report = lambda text: None
) -> tuple[Graph, dict[str, str]]:
    """Start a child and wait for its answer; what user code prints is kept out of ours."""
    limit = _most_seconds()
    where = ""
    with start() as child:
        child.on_output = output
        try:
            if request:
                child.send(request)
            deadline = time.monotonic() + limit
            while (answer := child.receive(max(deadline - time.monotonic(), 0.0))).startswith(_PROGRESS):
                where = answer.removeprefix(_PROGRESS).decode()
                report(where)
        except TimeoutError:
            came = f" It came to {where}." if where else ""
            raise CaptureError(
                f"capturing {what} took longer than {limit:g} s and was stopped.{came} "
                "Set FORETELL_CAPTURE_LIMIT to more seconds, or try a smaller batch to see where it hangs."
            ) from None
        except ChildEnded as error:
            raise CaptureError(
                f"the process that captured {what} ended without an answer (out of memory, or a crash in native code): "
                f"it {error.how}." + (error.words or " Try a smaller batch, or watch its memory.")
            ) from None
        child.close(_GRACE)
        printed = child.printed
    head, _, graph = answer.partition(b"\n")
    answer_head = json.loads(head)
    if "error" in answer_head:
        words = f"\nIt printed:\n{printed}" if printed and answer_head.get("by") == "script" else ""
        raise getattr(errors, answer_head["error"])(answer_head["text"] + words)
    return Graph.from_bytes(graph, f"the graph of {what}"), answer_head["read"]


def _most_seconds() -> Seconds:
    text = os.environ.get("FORETELL_CAPTURE_LIMIT", "1800")
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise InputError(f"FORETELL_CAPTURE_LIMIT must be a number of seconds above 0, got {text!r}. Unset it for 1800.")


def _most_memory() -> Bytes | None:
    """That a capture may allocate: all the host has, unless the user says so. Shapes need none of it."""
    if text := os.environ.get("FORETELL_CAPTURE_MEMORY"):
        try:
            memory = parse_bytes(text)
        except InputError as error:
            raise InputError(f"FORETELL_CAPTURE_MEMORY: {error}") from None
        if memory < 1:
            raise InputError(
                f"FORETELL_CAPTURE_MEMORY: it must be above 0, got {text!r}. Unset it for all the host has."
            )
        return memory
    if sys.platform != "linux":
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# The child's side


def answer(link: Connection) -> None:
    """In a new interpreter: record the one workload that is asked for."""
    request = link.recv_bytes()
    entries = json.loads(request) if request.startswith(b"{") else {}
    if "script" in entries:
        _load_what_every_script_needs()
        box.enter()
        _run_script(Script.from_dict(entries["script"]), link, entries["known"])
        return

    def trace() -> Graph:
        if not entries:
            import cloudpickle

            workload, compiled = cloudpickle.loads(request)
            return _trace_workload(lambda: workload, compiled)
        from foretell.sources.resolve import load_workload

        return _trace_workload(lambda: load_workload(entries["source"], entries["settings"]), entries["compiled"])

    _serve(_Side(link), trace)


class _Side:
    """The child's end of the socket: any number of reports, and one answer, whichever thread has it first."""

    def __init__(self, link: Connection) -> None:
        self._link, self._lock, self._answered = link, threading.Lock(), False

    def report(self, text: str) -> None:
        with self._lock:
            if not self._answered:
                self._link.send_bytes(_PROGRESS + text.encode(errors="replace"))

    def answer(self, head: dict[str, Any], graph: bytes = b"") -> None:
        with self._lock:
            if not self._answered:
                self._answered = True
                self._link.send_bytes(json.dumps(head).encode() + b"\n" + graph)

    def refuse(self, text: str) -> None:
        self.answer({"error": WorkloadError.__name__, "text": text, "by": "script"})
        os._exit(0)


def _run_script(script: Script, link: Connection, known: dict[str, Any]) -> None:
    """Returns in a fork that has answered; this process itself ends as that one does.

    The script is run again where it contradicts what a stand-in was taken to be, with what that use has shown: each run is a
    fork of a process that has loaded what every run needs, and that knows nothing of the run before.
    """
    while True:
        reader, writer = multiprocessing.Pipe(duplex=False)
        if not (run := os.fork()):
            end_with_parent()
            side = _Side(link)
            _serve(side, lambda: _trace_script(script, side, known, writer), by="script")  # noqa: B023
            return
        writer.close()
        ended = (0, 0)
        while not reader.poll(_LOOK) and not ended[0]:  # a run that crashes may leave children that keep the pipe open
            ended = os.waitpid(run, os.WNOHANG)
        shown = b""
        with contextlib.suppress(EOFError):
            shown = reader.recv_bytes() if reader.poll() else b""
        ended = ended if ended[0] else os.waitpid(run, 0)
        if not shown:
            _end_as(os.waitstatus_to_exitcode(ended[1]))
        known = json.loads(shown)


def _end_as(code: int) -> NoReturn:
    """End with that exit code, or by that signal."""
    if code < 0:
        with contextlib.suppress(OSError):  # of one that cannot be caught
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _trace_script(script: Script, side: _Side, known: Mapping[str, Any], writer: Connection) -> Graph:
    from foretell.capture.script.guesses import Contradicted, Guesses
    from foretell.capture.script.run import trace_script

    guesses = Guesses(known)

    def again(shown: Mapping[str, Any]) -> NoReturn:
        writer.send_bytes(json.dumps(guesses.after(shown)).encode())
        os._exit(0)

    try:
        return trace_script(script, side.report, side.refuse, guesses, again)
    except Contradicted as error:
        again(error.shown)


def _trace_workload(get_workload: Callable[[], Workload], compiled: bool) -> Graph:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a compiled step would have other kernels where a GPU is seen
    import torch

    from foretell.capture.as_gpu import devices
    from foretell.capture.compiled import wishes
    from foretell.capture.fallback import trace_or_run

    wishes.take_over()
    devices.mean_here()
    if not compiled:
        os.environ.update(AS_WRITTEN)
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller of a fork was in
        workload = get_workload()
        return trace_or_run(workload if compiled else replace(workload, compile=False))


def _serve(side: _Side, get_graph: Callable[[], Graph], by: str = "workload") -> None:
    """Record a step, and send a graph or an error: a line of JSON, and the graph's file."""
    reads, graph, own = Reads(), b"", os.getpid()
    answer_head: dict[str, Any]
    try:
        graph = get_graph().to_bytes(packed=False)
        answer_head = {"read": dict(reads.found)}  # other threads may still read
    except ForetellError as error:
        ours = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        answer_head = {"error": ours.__name__, "text": words_of(error)}
    except BaseException as error:  # of the user's, whatever it may be, or of ours
        if is_ours(error):
            answer_head = {"error": CaptureError.__name__, "text": own_failure(error, by)}
        else:
            answer_head = {"error": WorkloadError.__name__, "text": explain(error, by)}
    answer_head["by"] = by
    if os.getpid() != own:
        os._exit(0)  # a fork that user code has made and let go on: nobody waits for it
    side.answer(answer_head, graph)
