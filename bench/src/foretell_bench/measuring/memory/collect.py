"""Packs what `measure` and `sweep` left in a folder into bench/data: peaks, limits, the sweep, and op temporaries."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from foretell.cost.workspace import formula
from foretell.graph import Graph, Input, Layout, Value
from foretell.graph.operators import names_of
from foretell.sources.former_names import stored_source
from foretell_bench.checkout import DATA

BLOCK: Final = 512


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return [json.loads(line) for line in file]


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    else:
        path.write_text(text)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def portable(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its source as data files know it."""
    return {**row, "source": stored_source(row["source"])}


def inside(graph: Graph, measured: list[list[int]]) -> Iterator[tuple[int, int]]:
    """(op, bytes taken and given back inside it)."""
    born: Counter[int] = Counter()
    for s in graph.storages:
        if s.born >= 0 and s.role != "host":
            born[s.born] += -(-s.nbytes // BLOCK) * BLOCK
    for position, (before, highest, _) in enumerate(measured):
        yield position, highest - before - born[position]


def facts(folder: Path, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What distinct ops with a formula took, once an architecture and precision."""
    operators = {*formula.functions, *names_of("convolution"), *names_of("convolution_backward")}
    seen = set()
    for row in rows:
        path = folder / f"{row['key']}.graph"
        if not path.exists():
            continue
        graph = Graph.load(path)
        measured = json.loads((folder / f"{row['key']}.inside.json").read_text())
        for position, taken in inside(graph, measured):
            s = graph.ops[position].signature
            precision = graph.precision.arithmetic
            key = (row["source"], precision, s)
            if s.name not in operators or len(s.inputs) > 16 or key in seen:
                continue
            seen.add(key)
            yield {
                "source": row["source"], "precision": precision, "target": s.target, "inputs": [_layout(x) for x in s.inputs],
                "outputs": [_layout(x) for x in s.outputs], "arguments": [[name, _plain(v)] for name, v in s.arguments], "taken": taken,
            }  # fmt: skip


def _layout(x: Layout) -> list[Any]:
    return [x.shape, x.strides, x.dtype]


def _plain(value: Value) -> Any:
    if isinstance(value, Input):
        return {"input": value.index}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def run(folder: Path, device: str = "h200") -> None:
    steps, unseen = (
        [portable(row) for row in lines(folder / f"{part}.jsonl") if "error" not in row] for part in ("steps", "unseen")
    )
    DATA.mkdir(exist_ok=True)
    name = f"{device}_memory"
    write(DATA / f"{name}_inside.jsonl.gz", facts(folder, steps))
    write(DATA / f"{name}_steps.jsonl", steps)
    write(DATA / f"{name}_unseen.jsonl", unseen)
    write(DATA / f"{name}_limits.jsonl", map(portable, lines(folder / "limits.jsonl")))
    write(DATA / f"{name}_sweep.jsonl.gz", (row for row in lines(folder / "sweep.jsonl") if "error" not in row))
