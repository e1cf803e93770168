"""Small files that people write beside their training: agreed limits, lengths of sequences, a service's settings."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any, Final

from foretell.forecasting.lengths import Lengths
from foretell.planner.agreed import check, read_agreement
from foretell.serve.settings import gathered
from tests.fuzz.mutate import VALUES, change, damaged
from tests.fuzz.targets.catalog import written
from tests.fuzz.targets.graph import BASES

QUICK_WEIGHT = 0.5
AGREED: Final = {
    "steps": [
        {"name": "net", "source": "{graph}", "on": "2xh200", "plan": "dp=2", "step_time": "120 ms", "memory": "60 GiB", "cost": 0.01},
        {"source": "{graph}", "on": "h200", "set": None, "step_time": 0.5},
    ],
    "tolerance": 0.05,
}  # fmt: skip
SERVICE: Final = {
    "host": "::1", "port": 8760, "database": "sqlite:///a.sqlite", "workers": 2, "seconds": 30.0, "rate": 50, "team_jobs": 7,
}  # fmt: skip
LENGTHS: Final = ("60,600", "200,300", "512", "4096,1")


def make(rng: random.Random) -> bytes:
    """Which file it is, and after it what it holds."""
    kind = rng.choice(("agreed", "agreed", "settings", "lengths"))
    if kind == "lengths":
        rows = [
            rng.choice((*LENGTHS, f"{rng.choice(VALUES)},{rng.choice(VALUES)}")) for _ in range(rng.choice((1, 3, 9)))
        ]
        text = "\n".join(rows).encode("utf-8", "surrogatepass")
    else:
        base: dict[str, Any] = json.loads(json.dumps(AGREED if kind == "agreed" else SERVICE))
        for _ in range(rng.choice((1, 1, 2, 4))):
            change(rng, base)
        text = (json.dumps(base) if kind == "agreed" else "\n".join(written(base))).encode("utf-8", "surrogatepass")
    return kind.encode() + b"\n" + (damaged(rng, text) if rng.random() < 0.15 else text)


def use(data: bytes, rng: random.Random) -> None:
    kind, _, content = data.partition(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content.replace(b"{graph}", str(BASES[0]).encode()))
        match kind:
            case b"agreed":
                assert all(one.forecast > 0 for one in check(read_agreement(path), model="roofline"))
            case b"settings":
                assert gathered({}, {}, path).workers >= 1
            case _:
                padded = Lengths.read(path).batches(rng.choice((1, 8, 64)))
                assert padded == sorted(padded)
                assert padded[0] >= 1
