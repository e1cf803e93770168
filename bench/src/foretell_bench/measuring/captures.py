"""Which named architectures can be captured: one training step of every name, batch 2, AdamW.

Each name is captured in a child forked from a parent that has imported the libraries, under a time limit. Results
are JSON lines, written as they come; names already in the file are skipped, so an interrupted run goes on where it
stopped.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_high
from typing import Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from foretell.errors import RequirementNotMet

LIBRARIES: Final = ("timm", "torchvision", "hf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one name."""

    name: str
    ok: bool
    seconds: float
    ops: int | None = None
    error: str | None = None


def capture_one(source: str) -> Outcome:
    """Capture a source in this process, which is spoilt by it."""
    from foretell.capture.trace import trace
    from foretell.sources.resolve import load_workload

    start = time.perf_counter()
    try:
        graph = trace(load_workload(source, {"batch": "2", "optimizer": "adamw"}))
        return Outcome(name=source, ok=True, seconds=_since(start), ops=len(graph.ops))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}"[:200]
        return Outcome(name=source, ok=False, seconds=_since(start), error=text)


def capture_in_child(source: str, limit: float) -> Outcome:
    """Capture in a forked child that may crash, hang or grow without harm."""
    start = time.perf_counter()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(int(limit))
        with open(os.devnull, "w") as nowhere:  # libraries chat while they build models
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        with os.fdopen(writer, "w") as pipe:
            json.dump(asdict(capture_one(source)), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if text:
        return Outcome(**json.loads(text))
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    why = f"over the limit of {limit:g} s" if killed == signal.SIGALRM else f"the child ended with status {status}"
    return Outcome(name=source, ok=False, seconds=_since(start), error=why)


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 2)


def all_names(library: str) -> list[str]:
    from foretell.sources import named as zoo

    return [f"{library}/{name}" for name in zoo.library(library).names()]


def read_results(path: Path) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    rows = (Outcome(**json.loads(line)) for line in path.read_text().splitlines() if line)
    return {row.name: row for row in rows}


def write_results(path: Path, results: dict[str, Outcome]) -> None:
    """Rewrite the file sorted, one line a name."""
    path.write_text("".join(_line(results[name]) for name in sorted(results)))


def _line(outcome: Outcome) -> str:
    shown = {key: value for key, value in asdict(outcome).items() if value is not None}
    return json.dumps(shown, separators=(",", ":")) + "\n"


def captured(sources: list[str], jobs: int, limit: float) -> Iterator[Outcome]:
    if jobs == 1:
        yield from (capture_in_child(source, limit) for source in sources)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_pool_task, [(source, limit) for source in sources])


def _pool_task(task: tuple[str, float]) -> Outcome:
    return capture_in_child(*task)


def summary(results: dict[str, Outcome]) -> Table:
    table = Table(title="Capture coverage")
    for column in ("library", "names", "captured", "share", "median ops", "median s", "slowest"):
        table.add_column(column, justify="left" if column in ("library", "slowest") else "right")
    for library in LIBRARIES:
        rows = [row for row in results.values() if row.name.startswith(f"{library}/")]
        good = [row for row in rows if row.ok]
        if not good:
            continue
        slowest = max(good, key=lambda row: row.seconds)
        table.add_row(
            library, str(len(rows)), str(len(good)), f"{len(good) / len(rows):.1%}",
            f"{median_high([row.ops or 0 for row in good]):,}", f"{median_high([row.seconds for row in good])}",
            f"{slowest.name} {slowest.seconds} s",
        )  # fmt: skip
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which names are captured, and how."""

    libraries: Sequence[str] = LIBRARIES
    sample: int | None = None  # as many names of each library, drawn at random
    seed: int = 0
    jobs: int = 1
    limit: float = 180.0  # seconds that a name may take
    retry: bool = False  # try again what failed before


def run(out: Path, options: Options) -> None:
    sources: list[str] = []
    for library in options.libraries:
        offered = all_names(library)
        sources += random.Random(options.seed).sample(offered, options.sample) if options.sample else offered
    results = read_results(out)
    todo = [s for s in sources if s not in results or (options.retry and not results[s].ok)]
    for module in ("foretell.sources.resolve", "foretell.capture.trace"):  # imported once, for all the children
        importlib.import_module(module)
    console = Console()
    out.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=console) as progress, out.open("a") as file:
        bar = progress.add_task("capturing", total=len(todo))
        for outcome in captured(todo, options.jobs, options.limit):
            results[outcome.name] = outcome
            file.write(_line(outcome))
            file.flush()
            progress.update(bar, advance=1, description=outcome.name)
            if not outcome.ok:
                progress.console.print(f"[red]{outcome.name}[/red] {outcome.error}", highlight=False)
    write_results(out, results)
    chosen = {source: results[source] for source in sources}
    console.print(summary(chosen))
    if failed := [row.name for row in chosen.values() if not row.ok]:
        raise RequirementNotMet(f"{len(failed)} of {len(chosen)} names were not captured.")
