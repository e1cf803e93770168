"""Configurations of trainers with changed and damaged contents; what is read becomes a plan."""

from __future__ import annotations

import json
import random
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from foretell.sources.configs import configuration_of
from foretell.sources.configs.files import arguments
from tests.fuzz.mutate import change, damaged
from tests.fuzz.targets.catalog import written

EXAMPLES = Path(__file__).parents[3] / "examples" / "configs"
BOMBS = (b"a: [" * 50_000, b"a: &a [1]\nb: &b [*a, *a]\n", b"{" * 100_000, b"--x " * 60_000, b"", b"- \n" * 80_000)


@cache
def bases() -> list[tuple[str, bytes, str]]:
    found = []
    for path in sorted(EXAMPLES.iterdir()):
        data = path.read_text()
        read: Any = {".json": json.loads, ".toml": tomllib.loads, ".sh": arguments}.get(path.suffix, yaml.safe_load)(
            data
        )
        found.append((path.suffix, data.encode(), json.dumps(read)))
    return found


def make(rng: random.Random) -> bytes:
    """The ending of a file's name, and after it what the file holds."""
    kind, (suffix, data, entries) = rng.random(), rng.choice(bases())
    if kind < 0.03:
        data = rng.choice(BOMBS)
    elif kind < 0.3:
        data = damaged(rng, data)
    else:
        changed = json.loads(entries)
        for _ in range(rng.choice((1, 1, 2, 4))):
            change(rng, changed)
        if suffix == ".toml":
            data = "\n".join(written(changed)).encode("utf-8", "surrogateescape")
        elif suffix == ".sh":
            words = [
                word for name, value in changed.items() for word in (f"--{name}", "" if value is True else str(value))
            ]
            data = " ".join(words).encode("utf-8", "replace")
        else:
            data = json.dumps(changed).encode("utf-8", "surrogatepass")  # JSON is YAML too
    return suffix.encode() + b"\n" + data


def use(data: bytes, rng: random.Random) -> None:
    suffix, _, content = data.partition(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix.decode()}"
        path.write_bytes(content)
        if (found := configuration_of(str(path))) is not None:
            plan = found.template().plan_for(16, nodes=2)
            assert plan.devices == 16
            assert all(caveat.text for caveat in found.caveats)
