"""Tables of step times for `foretell adapt --from`: CSV with changed cells; what is read makes steps."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from foretell.learn.adapt.table import read_steps
from tests.fuzz.mutate import VALUES, damaged

ROWS = (
    ("source", "settings", "cluster", "plan", "seconds", "allocated", "reserved"),
    ("timm/resnet18", "batch=8 precision=fp32", "8xh200", "dp=8", "0.25", "1000000", ""),
    ("a.graph", "", "", "", "1.5", "", "2e9"),
)


def make(rng: random.Random) -> bytes:
    rows = [list(row) for row in ROWS]
    for _ in range(rng.choice((1, 2, 4))):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice(VALUES))
    data = "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")
    return damaged(rng, data) if rng.random() < 0.2 else data


def use(data: bytes, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.csv"
        path.write_bytes(data)
        for step in read_steps(path, device="h200"):
            assert step.seconds > 0
            assert step.network
