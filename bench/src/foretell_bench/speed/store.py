"""A million rows in a store: how long appending, merging and querying take on this machine, and what they weigh.

The rows are those of a campaign: 1,000 steps of 1,000 ops each, every step with its memory events and a series, and 50
graphs. They are appended in 100 calls, as many writers would, merged to one segment a table, and queried before and
after. Times are of one run; each query opens the store anew, so every byte it reads is checked against its name.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from foretell.graph import Graph, Layout, Op, Signature, Storage, Tensor
from foretell.measure.record import AllocationRow, GraphRow, OpRow, Record, SeriesRow, StepRow
from foretell.store.lines import RecordFile
from foretell.store.store import Store

OPS_A_STEP: Final = 1000
APPENDS: Final = 100
GRAPHS: Final = 50
QUERIES: Final = {
    "count the ops": "SELECT count(*) FROM ops",
    "device time by operator": "SELECT target, sum(device_seconds) FROM ops GROUP BY target ORDER BY 2 DESC",
    "operators by device and precision": """
        SELECT s.device, s.precision, o.target, count(*), median(o.device_seconds)
        FROM ops o JOIN steps s ON o.step = s.id WHERE s.outcome = 'ok' GROUP BY ALL""",
    "time by kernel": """
        SELECT kernel, sum(seconds) FROM (SELECT unnest(kernels) AS kernel, unnest(kernel_seconds) AS seconds FROM ops)
        GROUP BY kernel ORDER BY 2 DESC LIMIT 20""",
}


@cache
def graph(number: int) -> GraphRow:
    """A graph of as many ops, some hundred of which differ."""
    layouts = [Layout((32, 8 * (i + 1)), (8 * (i + 1), 1), "float32") for i in range(100 + number)]
    following = [*layouts[1:], layouts[0]]
    signatures = [
        Signature(f"aten.op_{i % 40}.default", (x,), (y,))
        for i, (x, y) in enumerate(zip(layouts, following, strict=True))
    ]
    ops = tuple(
        Op(signatures[i % len(signatures)], "forward", f"layer.{i // 10}", (i,), (i + 1,)) for i in range(OPS_A_STEP)
    )
    tensors = tuple(Tensor(layouts[i % len(layouts)], i) for i in range(OPS_A_STEP + 1))
    # Tensor i is made by the op before and read by op i, as far as there are ops.
    lives = [("input" if i == 0 else "temporary", i - 1, min(i, OPS_A_STEP - 1)) for i in range(len(tensors))]
    storages = tuple(Storage(t.layout.nbytes, *life) for t, life in zip(tensors, lives, strict=True))
    made = Graph(name=f"timm/model_{number}", ops=ops, tensors=tensors, storages=storages)
    return GraphRow(hash=made.content_hash, name=made.name, file=made.to_bytes(packed=False))


def made(number: int, chance: random.Random) -> Record:
    """A step like those of a campaign: times are noise, names repeat."""
    targets = [f"aten.op_{i}.default" for i in range(40)]
    kernels = [f"void at::native::vectorized_elementwise_kernel<4, at::native::functor_{i}>" for i in range(120)]
    ops = []
    for position in range(OPS_A_STEP):
        seconds = chance.lognormvariate(-11, 1)
        launched = tuple(chance.choices(kernels, k=chance.choice((0, 1, 1, 1, 2))))
        ops.append(
            OpRow(
                op=position, target=chance.choice(targets), phase="forward" if position % 3 == 0 else "backward",
                device_seconds=seconds if launched else None, dispatch_seconds=chance.lognormvariate(-12, 1),
                issue_seconds=chance.lognormvariate(-12, 1) if launched else None, kernels=launched,
                kernel_seconds=tuple(seconds / len(launched) for _ in launched),
            )
        )  # fmt: skip
    captured = graph(number % GRAPHS)
    step = StepRow(
        point=f"{number:016x}", kind="step", source=f"timm/model_{number % GRAPHS}", settings='{"batch":"32"}',
        precision=("fp32", "amp-bf16")[number % 2], graph=captured.hash, repetitions=30, step_seconds=chance.random(),
        device="h200", date=f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z", occasion=f"o{number // 200}",
    )  # fmt: skip
    times = tuple(i * 0.01 for i in range(200))
    events = 2 * OPS_A_STEP
    return Record(
        step=step,
        ops=tuple(ops),
        graph=captured,
        series=(
            SeriesRow(
                resource="device",
                counter="nvml",
                unit="fraction",
                seconds=times,
                values=tuple(chance.random() for _ in times),
            ),
        ),
        allocations=AllocationRow(
            action=("alloc", "free_completed") * OPS_A_STEP,
            address=tuple(chance.randrange(2**36) * 512 for _ in range(events)),
            bytes=tuple(chance.randrange(2**16) * 512 for _ in range(events)),
        ),
    )


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _queried(path: Path, sql: str) -> object:
    return Store(path).query(sql)


def segments(path: Path) -> int:
    return sum(1 for _ in path.rglob("*.parquet"))


def bench(rows: int, folder: Path) -> dict[str, Any]:
    chance = random.Random(1)
    records = [made(number, chance) for number in range(max(rows // OPS_A_STEP, 1))]
    path, size = folder / "store", max(len(records) // APPENDS, 1)
    store = Store(path)
    batches = [records[start : start + size] for start in range(0, len(records), size)]
    seconds: dict[str, float] = {"append": sum(timed(partial(store.append, batch)) for batch in batches)}
    before = {"segments": segments(path), "bytes": store.size()}
    for name, sql in QUERIES.items():
        seconds[f"{name}, before merging"] = timed(partial(_queried, path, sql))
    seconds["merge"] = timed(lambda: Store(path).merge())
    after = {"segments": segments(path), "bytes": store.size()}
    for name, sql in QUERIES.items():
        seconds[name] = timed(partial(_queried, path, sql))
    one = records[len(records) // 2].step.point
    seconds["one record by its point"] = timed(lambda: list(Store(path).records(f"point = '{one}'")))
    seconds["all back as Python objects"] = timed(lambda: sum(1 for _ in Store(path).records()))
    seconds["append again, nothing new"] = timed(lambda: Store(path).append(records))
    seconds["append one record"] = timed(lambda: store.append([made(len(records), chance)]))
    lines = RecordFile(folder / "records.jsonl")
    seconds["one line to a record file"] = timed(lambda: lines.append(records[:1]))
    return {
        "rows": len(records) * OPS_A_STEP, "appends": len(batches), "cores": os.cpu_count(), "seconds": seconds,
        "before": before, "after": after, "bytes_a_row": after["bytes"] / (len(records) * OPS_A_STEP),
    }  # fmt: skip


def run(rows: int = 1_000_000, as_json: bool = False) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = bench(rows, Path(folder))
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['rows']:,} rows of ops in {result['appends']} appends, {result['cores']} cores\n")
    for name, seconds in result["seconds"].items():
        print(f"{name:<52}{seconds:>9.3f} s")
    for when in ("before", "after"):
        print(
            f"{'segments, bytes ' + when + ' merging':<52}{result[when]['segments']:>5}  {result[when]['bytes']:>13,} B"
        )
    print(f"{'bytes a row, all tables':<52}{result['bytes_a_row']:>9.1f} B")
