"""Compares captured steps with the ops CUDA really ran: every recorded step of a dataset, op by op.

`recorded` reads the dataset and needs the store's libraries; `compare` captures, and needs the versions of torch and of the
model zoos that the dataset was measured with: captures of another version run other ops; `show` prints the figures. Views and
other ops without work for the device are not compared. Steps that run different ops each time (experts, dropped layers) are
left out, as are those of one point measured again.
"""

from __future__ import annotations

import collections
import difflib
import functools
import gzip
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any, Final

from foretell.graph import Graph, Signature

RANDOM: Final = "recorded alone"  # the mark of steps whose ops differ from run to run


def ops_of(graph: Graph) -> list[str]:
    """Every op that launches work as text: its operator, then types and shapes of what it makes."""
    launches = graph.calls.each(lambda call: call.launches)
    working = [op for op, launched in zip(graph.ops, launches, strict=True) if launched]
    return [_text(op.signature) for op in working for _ in range(op.times)]


@functools.cache
def _text(signature: Signature) -> str:
    return " ".join(
        [signature.target, *(f"{made.dtype}{list(made.shape)}".replace(" ", "") for made in signature.outputs)]
    )


def operators(ops: list[str]) -> list[str]:
    return [op.partition(" ")[0] for op in ops]


def recorded(folder: Path, out: Path) -> None:
    from foretell.store.store import Store

    store = Store(folder)
    steps = {row.point: row for row in store.steps("kind = 'step'") if row.graph and RANDOM not in row.marks}
    graphs = store.graphs({row.graph for row in steps.values() if row.graph})
    table: dict[str, int] = {}
    rows = []
    for row in steps.values():
        ops = [table.setdefault(name, len(table)) for name in ops_of(graphs[row.graph or ""])]
        rows.append({"source": row.source, "settings": json.loads(row.settings or "{}"), "ops": ops})
    with gzip.open(out, "wt") as file:
        json.dump({"names": list(table), "steps": rows}, file)
    print(f"{len(rows)} steps, {sum(len(row['ops']) for row in rows):,} ops")


def difference(measured: list[str], captured: list[str]) -> list[tuple[str, str]]:
    """What stands for what where they are not the same."""
    matcher = difflib.SequenceMatcher(None, measured, captured, autojunk=False)
    changed = [places for tag, *places in matcher.get_opcodes() if tag != "equal"]
    return [(" ".join(measured[a:b][:12]), " ".join(captured[x:y][:12])) for a, b, x, y in changed]


def in_order(measured: list[str], captured: list[str]) -> int:
    """The longest common subsequence, by bits that stand for places of the measured ones (Hyyrö, 2004)."""
    places: dict[str, int] = collections.defaultdict(int)
    for i, op in enumerate(measured):
        places[op] |= 1 << i
    every = left = (1 << len(measured)) - 1
    for op in captured:
        found = left & places[op]
        left = ((left + found) | (left - found)) & every
    return len(measured) - left.bit_count()


def compared(question: tuple[dict[str, Any], list[str]]) -> dict[str, Any]:
    from foretell.capture import capture
    from foretell.sources.resolve import load_workload

    row, names = question
    measured = [names[op] for op in row["ops"]]
    answer = {"source": row["source"], "settings": row["settings"], "recorded": len(measured)}
    try:
        captured = ops_of(capture(load_workload(row["source"], row["settings"])))  # zoos stay loaded
    except Exception as error:
        return {**answer, "error": f"{type(error).__name__}: {error}"[:300]}
    alike = in_order(measured, captured)
    measured, captured = operators(measured), operators(captured)
    tally = collections.Counter(difference(measured, captured))
    return {
        **answer,
        "captured": len(captured),
        "same": in_order(measured, captured),
        "alike": alike,
        "others": [[*pair, n] for pair, n in tally.most_common(20)],
    }


def compare(file: Path, out: Path, seconds: float, workers: int) -> None:
    until = time.monotonic() + seconds
    with gzip.open(file, "rt") as text:
        known = json.load(text)
    rows = sorted(known["steps"], key=lambda row: -len(row["ops"]))
    answers = []
    with multiprocessing.Pool(workers) as pool:
        for answer in pool.imap_unordered(compared, [(row, known["names"]) for row in rows]):
            answers.append(answer)
            if time.monotonic() > until:
                print(f"stopped after {seconds:.0f} s")
                pool.terminate()
                break
    (out / "sequences.json").write_text(json.dumps(answers))
    show(answers)


def show(answers: list[dict[str, Any]]) -> None:
    done = [answer for answer in answers if "same" in answer]
    total = sum(max(answer["recorded"], answer["captured"]) for answer in done)
    same = sum(answer["same"] for answer in done)
    whole = sum(answer["same"] == answer["recorded"] == answer["captured"] for answer in done)
    alike = sum(answer["alike"] for answer in done)
    print(
        f"{len(done)} of {len(answers)} steps captured; of {total:,} ops {same / total:.2%} are of the operator recorded, in its "
        f"order, {alike / total:.2%} with the types and shapes of what it makes; {whole} steps are the same from end to end"
    )
    for answer in answers:
        if "error" in answer:
            print("  ", answer["source"], answer["settings"], answer["error"][:200])
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    where: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for answer in done:
        for measured, captured, n in answer["others"]:
            tally[measured, captured] += n * max(len(measured.split()), len(captured.split()))
            where[measured, captured].add(answer["source"])
    for (measured, captured), n in tally.most_common(40):
        print(
            f"{n:7}  {measured[:150]!r} captured as {captured[:150]!r} in {len(where[measured, captured])}: "
            f"{', '.join(sorted(where[measured, captured])[:3])}"
        )


def show_file(file: Path) -> None:
    show(json.loads(file.read_text()))
