"""The whole suite of laws: seven steps, every device of the catalog, every precision. `python -m tests.laws.whole` (`make laws`).

It works side by side, goes on where it was stopped, and prints what was found of each law; about 90,000 forecasts. With
`--devices 8` as many are drawn, by `--seed`, and compared with each other alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from foretell.cost.model import load_model
from foretell.graph import Graph
from foretell.graph.rescale import extend
from foretell.hardware import devices
from foretell.laws.answers import Answers
from foretell.laws.scope import Scope, Step
from foretell.laws.suite import LAWS, Checked, Report, check
from tests.laws import steps

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "out" / "laws"
# Laws that ask for the same answers are checked together; those of single answers, over all of them.
TOGETHER = (
    ("batches",),
    ("better-facts",),
    ("dominance", "precision-order", "precision-without-units", "half-without-units", "halves-alike"),
    ("hosts", "repeated", "one-is-single", "replicas", "more-is-no-surer", "written-out", "arithmetic-conserved"),
    ("shards-take-less", "overlap", "recomputing", "schedules", "fewer-in-flight"),
)
Task = tuple[Path, str, tuple[str, ...], tuple[str, ...]]


def graph_file(folder: Path, kind: str, precision: str, size: int) -> Path:
    return folder / f"{kind}-{precision}-{size}.graph"


def _capture(task: tuple[Path, str, str, int]) -> None:
    folder, kind, precision, size = task
    path = graph_file(folder, kind, precision, size)
    if not path.is_file():
        half = path.with_suffix(f".{os.getpid()}")
        steps.captured(kind, precision, size).save(half)
        half.rename(path)


def _saved_step(folder: Path, kind: str) -> Step:
    def make(precision: str, batch: int) -> Graph:
        if batch in steps.SIZES:
            return Graph.load(graph_file(folder, kind, precision, batch))
        small, large = (Graph.load(graph_file(folder, kind, precision, size)) for size in steps.SIZES)
        return extend(small, large, sizes=steps.SIZES, to=batch)

    return replace(steps.step(kind), make=make, _graphs={})


def _check(task: Task) -> Report:
    folder, kind, names, drawn = task
    step, every = _saved_step(folder, kind), [one for one in devices() if not drawn or one.name in drawn]
    answers = Answers([step], load_model(), folder / f"{kind}-{names[0]}.jsonl")
    chosen = [law for law in LAWS.values() if law.of_one or law.name in names]
    return check(Scope(steps=[step], devices=every, others=every), answers, chosen)


def merged(reports: Iterable[Report]) -> Report:
    found: dict[str, Checked] = {}
    answers = 0
    for report in reports:
        answers += report.answers
        for each in report.laws:
            before = found.get(each.law.name, Checked(law=each.law))
            worst = sorted([*before.worst, *each.worst], key=lambda compared: -compared.beyond)[:20]
            found[each.law.name] = replace(
                each, checked=before.checked + each.checked, broken=before.broken + each.broken, worst=worst
            )
    return Report(laws=[found[name] for name in LAWS if name in found], answers=answers)


def run(
    workers: int, folder: Path = FOLDER, kinds: Sequence[str] = tuple(steps.KINDS), drawn: tuple[str, ...] = ()
) -> Report:
    """Check everything, or what is on devices of some names alone.

    What an earlier run has in the folder is not forecast again while the engine is the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    captures = [(folder, kind, precision, size) for kind in kinds for precision in CAPTURED for size in steps.SIZES]
    tasks: list[Task] = [(folder, kind, names, drawn) for names in TOGETHER for kind in kinds]
    start, found = time.monotonic(), list[Report]()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, _ in enumerate(pool.imap_unordered(_capture, captures), 1):
            print(f"{time.monotonic() - start:.0f} s: captured {number} of {len(captures)}", flush=True)
        for report in pool.imap_unordered(_check, tasks):
            found.append(report)
            answers, broken = sum(r.answers for r in found), sum(len(r.broken) for r in found)
            took = time.monotonic() - start
            print(f"{took:.0f} s: {len(found)} of {len(tasks)} parts, {answers:,} answers, {broken} broken", flush=True)
    return merged(found)


CAPTURED = ("amp-bf16", "fp32", "bf16", "fp16", "amp-fp16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--kinds", default=",".join(steps.KINDS))
    parser.add_argument("--devices", type=int, default=0, help="so many, drawn by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    names = [one.name for one in devices()]
    drawn = random.Random(chosen.seed).sample(names, chosen.devices)
    found = run(chosen.workers, chosen.folder, chosen.kinds.split(","), tuple(drawn))
    (chosen.folder / "report.json").write_text(json.dumps(found.to_dict(), indent=1))
    for each in found.laws:
        print(f"{each.law.name:26}{each.checked:10,} checked {each.broken:8,} broken")
        for compared in each.worst[:3]:
            print(f"    {compared.where}: {compared.number:.5g} > {compared.limit:.5g} ({compared.beyond:+.1%})")
    print(f"{found.answers:,} answers")
    raise SystemExit(0 if found.kept else 3)


if __name__ == "__main__":
    main()
