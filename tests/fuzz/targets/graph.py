"""Graph files: damaged, lying and built to explode; what is read is forecast, inspected and drawn."""

from __future__ import annotations

import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import rich

import foretell
from foretell import Graph
from foretell.graph.operators import names_of
from foretell.report.html import write_html
from foretell.report.inspection import inspection, inspection_dict
from foretell.report.terminal import forecast_panel
from tests.fuzz.answers import check_finite, check_forecast
from tests.fuzz.harness import Nonsense
from tests.fuzz.mutate import NUMBERS, VALUES, change, damaged

WEIGHT = 5
BASES = sorted((Path(__file__).parents[1] / "bases").glob("*.graph"))
OPERATORS = [
    name
    for family in ("matmul", "convolution", "convolution_backward", "attention", "attention_backward", "rnn", "norm", "norm_backward",
                   "reduction", "index", "pooling", "copy", "foreach", "elementwise")
    for name in names_of(family)  # type: ignore[arg-type]
]  # fmt: skip
QUESTIONS = (
    ("h200", None), ("h200", None), ("2xh100-sxm", "dp=2"), ("2xa100-40g-sxm", "tp=2"), ("2xh200", "tp=2,sequence_parallel=true"),
    ("2xh200", "pp=2,grad_accumulation=4"), ("2xh200", "dp=2,zero=3"), ("2xh200", "cp=2"), ("2xh200", "dp=2,ep=2"),
    ("4xv100-16g-sxm", "dp=2,tp=2,zero=1"), ("h200", "dp=1,checkpointing=full"), ("2xt4", "dp=2,zero=2,checkpointing=selective"),
    ("4xh200", "pp=2,tp=2,schedule=zero-bubble,grad_accumulation=4"), ("gaudi2", None), ("2xh200", "dp=2,data_parallel=dp"),
)  # fmt: skip


@cache
def parts_of(path: Path) -> tuple[dict[str, bytes], dict[str, list[int]]]:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    columns = {n: np.cumsum(np.load(io.BytesIO(d))).tolist() for n, d in parts.items() if n.endswith(".npy")}
    return parts, columns


def packed(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def column(values: list[int], dtype: Any = np.int64) -> bytes:
    buffer = io.BytesIO()
    with np.errstate(all="ignore"):
        array = np.array([v % 2**64 for v in values], dtype=np.uint64).astype(np.int64)
        np.save(buffer, np.diff(array, prepend=0).astype(dtype))
    return buffer.getvalue()


def make(rng: random.Random) -> bytes:
    base = rng.choice(BASES)
    kind = rng.random()
    if kind < 0.1:
        return damaged(rng, base.read_bytes())
    parts, columns = parts_of(base)
    parts = dict(parts)
    if kind < 0.35:
        _change_columns(rng, parts, columns)
    elif kind < 0.93:
        header = json.loads(parts["header.json"])
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            (_lie if kind < 0.7 else change)(rng, header)
        parts["header.json"] = json.dumps(header).encode("utf-8", "surrogatepass")
    elif kind < 0.96:
        name = rng.choice(list(parts))
        parts[name] = damaged(rng, parts[name])
    else:
        _explode(rng, parts)
    return packed(parts)


def _change_columns(rng: random.Random, parts: dict[str, bytes], columns: dict[str, list[int]]) -> None:
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(list(columns))
        values, dtype = list(columns[name]), np.int64
        match rng.randrange(8):
            case 0 if values:
                del values[rng.randrange(len(values))]
            case 1:
                values.insert(rng.randint(0, len(values)), rng.choice(NUMBERS))
            case 2:
                rng.shuffle(values)
            case 3:
                dtype = rng.choice((np.int32, np.float64, np.uint8))
            case 4 if values:
                del values[rng.randrange(len(values)) :]
            case _ if values:
                for _ in range(rng.choice((1, 1, 4))):
                    at = rng.randrange(len(values))
                    near = values[at] + rng.choice((-2, -1, 1, 2))
                    values[at] = rng.choice((near, near, values[rng.randrange(len(values))], rng.choice(NUMBERS)))
        parts[name] = column(values, dtype)


def _lie(rng: random.Random, header: dict[str, Any]) -> None:
    """Changes of signatures that leave the columns right: another operator, another shape of what all of them share."""
    signature, layout = rng.choice(header["signatures"]), rng.choice(header["layouts"])
    match rng.randrange(7):
        case 0:
            signature[0] = f"{rng.choice(OPERATORS)}.default"
        case 1:
            signature[0] = rng.choice(header["signatures"])[0]
        case 2 if layout[0]:
            del layout[0][-1], layout[1][-1]
        case 3:
            layout[0].append(rng.choice((0, 1, 1, 2, 5)))
            layout[1].append(rng.choice((0, 1, 1, 7)))
        case 4 if layout[0]:
            side = rng.randrange(len(layout[0]))
            layout[rng.randrange(2)][side] = rng.choice((0, 0, 1, 1, 2, 3, 7))
        case 5 if signature[3]:
            argument = rng.choice(signature[3])
            argument[1] = deepcopy(rng.choice((*VALUES, rng.choice(signature[3])[1])))
        case 6 if signature[3]:
            del signature[3][rng.randrange(len(signature[3]))]


BOMBS: dict[str, Callable[[], bytes]] = {
    "modules deep": lambda: b'["' + b"a." * 100_000 + b'"]',
    "modules long": lambda: b'["' + b"m" * 2_000_000 + b'"]',
    "layouts wide": lambda: b"[[[" + b"1," * 500_000 + b'1],[1],"float32"]]',
    "provenance many": lambda: b"[" + b"[]," * 2_500_000 + b"[]]",
    "signatures arguments": lambda: b'[["aten.mm.default",[],[],[' + b'["x",1],' * 500_000 + b'["x",1]],[]]]',
    "caveats deep": lambda: b"[" * 500_000,
    "name long": lambda: b'"' + b"n" * 2_000_000 + b'"',
}


@cache
def bomb(name: str) -> bytes:
    return BOMBS[name]()


def _explode(rng: random.Random, parts: dict[str, bytes]) -> None:
    """Small files that ask for much memory or time."""
    if rng.random() < 0.2:
        parts["zeros.npy"] = b"\0" * 20_000_000
        parts["op_times.npy"] = column([1] * 300_000)
        return
    header, name = json.loads(parts["header.json"]), rng.choice(list(BOMBS))
    header[name.split()[0]] = "BOMB"
    parts["header.json"] = json.dumps(header).encode().replace(b'"BOMB"', bomb(name))


def prepare() -> None:
    foretell.forecast(Graph.load(BASES[0]), "h200")


def use(data: bytes, rng: random.Random) -> None:
    graph = Graph.from_bytes(data, "a stranger's graph")
    if rng.random() < 0.1 and Graph.from_bytes(graph.to_bytes()).content_hash != graph.content_hash:
        raise Nonsense("a graph that was read changes when it is written")
    cluster, plan = rng.choice(QUESTIONS)
    answer = foretell.forecast(graph, cluster, plan, model=rng.choice(("roofline", "h200-2026.11")))
    check_forecast(answer)
    if rng.random() < 0.1:
        _show(answer)


def _show(answer: foretell.Forecast) -> None:
    check_finite(inspection_dict(answer, top=20, depth=None))
    rich.print(forecast_panel(answer), inspection(answer, top=20, depth=None, width=80), file=io.StringIO())
    json.loads(answer.to_json())
    with tempfile.TemporaryDirectory() as folder:
        write_html([answer], Path(folder) / "a.html")
        answer.timeline.to_perfetto(Path(folder) / "a.json")
