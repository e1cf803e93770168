"""The capturing child: runs user code in a process of its own and hands back a graph file or an error.

A SOURCE is imported by the child itself. A Workload made in the caller's process reaches it by fork, or by
cloudpickle where fork is unsafe (no fork on the platform, or a CUDA context in the parent).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretell import errors
from foretell.errors import CaptureError, ForetellError, InputError, WorkloadError
from foretell.graph import Graph
from foretell.workload import Workload


def capture_source(source: str, settings: Mapping[str, str]) -> tuple[Graph, list[str]]:
    """The graph of a SOURCE, and the files of the user's that were read for it."""
    with tempfile.TemporaryDirectory(prefix="foretell-") as folder:
        request = {"source": source, "settings": dict(settings)}
        _run_fresh(Path(folder), json.dumps(request), source)
        return _answer(Path(folder), source)


def capture_workload(workload: Workload) -> Graph:
    limit = _limit_seconds()
    with tempfile.TemporaryDirectory(prefix="foretell-") as folder:
        if _may_fork():
            _load_what_every_capture_needs()
            process = multiprocessing.get_context("fork").Process(target=_serve, args=(Path(folder), lambda: workload))
            process.start()
            process.join(limit)
            if process.is_alive():
                process.kill()
                process.join()
                raise CaptureError(_too_long(workload.name))
        else:
            import cloudpickle

            (Path(folder) / "workload").write_bytes(cloudpickle.dumps(workload))
            _run_fresh(Path(folder), json.dumps({"workload": str(Path(folder) / "workload")}), workload.name)
        return _answer(Path(folder), workload.name)[0]


def _may_fork() -> bool:
    if sys.platform != "linux":
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


def _load_what_every_capture_needs() -> None:
    """Fake tensors pull in torch._dynamo, which takes seconds to import: here it is done once, and forks inherit it."""
    import torch._dynamo  # noqa: F401

    import foretell.capture.fallback  # noqa: F401


def _run_fresh(folder: Path, request: str, what: str) -> None:
    """Run this module in a new interpreter; what user code prints is kept out of ours."""
    command = [sys.executable, "-m", "foretell.capture.child", str(folder)]
    try:
        ended = subprocess.run(
            command, input=request, text=True, capture_output=True, timeout=_limit_seconds(), check=False
        )
    except subprocess.TimeoutExpired:
        raise CaptureError(_too_long(what)) from None
    (folder / "stderr").write_text(ended.stderr[-4000:])


def _limit_seconds() -> float:
    text = os.environ.get("FORETELL_CAPTURE_LIMIT", "1800")
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"FORETELL_CAPTURE_LIMIT must be a number of seconds, got {text!r}. Unset it for 1800."
        ) from None


def _too_long(what: str) -> str:
    return (
        f"capturing {what} took longer than {_limit_seconds():g} s and was stopped. "
        "Set FORETELL_CAPTURE_LIMIT to more seconds, or try a smaller batch to see where it hangs."
    )


def _answer(folder: Path, what: str) -> tuple[Graph, list[str]]:
    if (folder / "error.json").exists():
        error = json.loads((folder / "error.json").read_text())
        raise getattr(errors, error["type"], CaptureError)(error["text"])
    if not (folder / "done.json").exists():
        written = (folder / "stderr").read_text().strip() if (folder / "stderr").exists() else ""
        raise CaptureError(
            f"the process that captured {what} ended without an answer (out of memory, or a crash in native code). "
            + (f"Its last words:\n{written[-1500:]}" if written else "Try a smaller batch, or watch its memory.")
        )
    return Graph.load(folder / "answer.graph"), json.loads((folder / "done.json").read_text())


def _serve(folder: Path, get_workload: Callable[[], Workload]) -> None:
    """In the child: record the workload, and leave a graph or an error in the folder."""
    from foretell.capture.fallback import trace_or_run

    before = set(sys.modules)
    try:
        graph = trace_or_run(get_workload())
        graph.save(folder / "answer.graph")
        (folder / "done.json").write_text(json.dumps(_user_files(before)))
    except (Exception, SystemExit) as error:
        ours = isinstance(error, ForetellError)
        kind, text = (type(error), str(error)) if ours else (WorkloadError, explain(error))
        (folder / "error.json").write_text(json.dumps({"type": kind.__name__, "text": text}))


def explain(error: BaseException) -> str:
    """A failure in the user's code, with the traceback trimmed to the user's own frames."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
    lines = "".join(traceback.format_list(frames[-6:])).rstrip()
    message = str(error).strip().split("\n\n")[0][:1000]
    where = f"\nIn your code:\n{lines}" if lines else ""
    return (
        f"the workload failed in its own code with {type(error).__name__}: {message}{where}\n"
        "Run the same step on the CPU with plain PyTorch to debug it, then ask again."
    )


def _is_library(filename: str) -> bool:
    own = str(Path(__file__).resolve().parents[1]) + os.sep
    return filename.startswith(("<", own)) or "site-packages" in filename or f"{os.sep}lib{os.sep}python3" in filename


def _user_files(before: set[str]) -> list[str]:
    """Source files outside any library that the workload's import brought in."""
    files = {getattr(sys.modules[name], "__file__", None) for name in set(sys.modules) - before}
    return sorted(str(Path(f).resolve()) for f in files if f and f.endswith(".py") and not _is_library(f))


def _main() -> None:
    folder = Path(sys.argv[1])
    request: dict[str, Any] = json.load(sys.stdin)

    def get_workload() -> Workload:
        if "workload" in request:
            import cloudpickle

            workload: Workload = cloudpickle.loads(Path(request["workload"]).read_bytes())
            return workload
        from foretell.sources.resolve import load_workload

        return load_workload(request["source"], request["settings"])

    _serve(folder, get_workload)


if __name__ == "__main__":
    _main()
