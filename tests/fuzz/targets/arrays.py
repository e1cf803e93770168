"""The arrays beside a profile: what is left of steps and of single ops, with changed numbers, shapes and names."""

from __future__ import annotations

import contextlib
import random
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

import foretell
from foretell import Graph, Profile
from foretell.profile.operators import Operators
from foretell.profile.residuals import Residuals
from tests.fuzz.answers import check_forecast
from tests.fuzz.mutate import damaged

QUICK_WEIGHT = 0.5
GRAPH = Path(__file__).parents[1] / "bases" / "experts.graph"
FLOATS = (0.0, -1.0, 1e30, -1e30, 1e308, float("nan"), float("inf"), 1e-320, 800.0, -800.0)
TEXTS = (
    b"[]",
    b"",
    b"{}",
    b'["nosuch"]',
    b"[" * 100_000,
    b"[1, 2]",
    b'"x"',
    b"\xff\xfe",
    b"[null]",
    b'["seconds", "seconds"]',
)
NAMES = ("columns", "names", "0.columns", "1.columns")


@cache
def base() -> dict[str, bytes]:
    """The files of a profile with both."""
    ops = Residuals(
        columns=("seconds", "flops"), scales=(1.0, 2.0), points=((0.5, 1.0), (2.0, 3.0)), weights=(0.1, -0.1)
    )
    steps = Residuals(columns=("kernel",), scales=(1.0,), points=((0.0,),), weights=(0.1,), slopes=(0.1,), offset=0.05)
    with tempfile.TemporaryDirectory() as folder:
        operators = Operators(curves={"matmul": ops, "aten.add": ops})
        Profile(name="ours", residuals=steps, operators=operators).save(Path(folder) / "a.toml")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def make(rng: random.Random) -> bytes:
    """The name of the file that is changed, and after it what it holds."""
    name = rng.choice([name for name in sorted(base()) if not name.endswith(".toml")])
    if rng.random() < 0.15:
        return name.encode() + b"\n" + damaged(rng, base()[name])
    arrays = dict(load(base()[name]))
    for _ in range(rng.choice((1, 1, 2))):
        _change(rng, arrays)
    return name.encode() + b"\n" + save(arrays)


def _change(rng: random.Random, arrays: dict[str, np.ndarray]) -> None:
    name = rng.choice(sorted(arrays))
    array = arrays[name].copy()
    match rng.randrange(7):
        case 0:
            del arrays[name]
        case 1:
            arrays[name] = array[: rng.randrange(len(array) + 1)] if array.ndim else array
        case 2:
            arrays[name] = array.reshape(-1, 1)
        case 3:
            arrays[rng.choice((f"7.{name}", f"x.{name}", "..", name.partition(".")[2] or "0"))] = array
        case 4:
            arrays[name] = array.astype(rng.choice((np.float16, np.int8, np.uint8, np.float64)))
        case _ if name in NAMES:
            arrays[name] = np.frombuffer(rng.choice(TEXTS), dtype=np.uint8)
        case _ if array.size:
            with contextlib.suppress(ValueError, OverflowError):  # no such whole number
                array.flat[rng.randrange(array.size)] = rng.choice(FLOATS)
            arrays[name] = array


def prepare() -> None:
    use(b"none\n", random.Random(0))


def use(data: bytes, rng: random.Random) -> None:
    name, _, content = data.partition(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        for file, kept in (base() | {name.decode(): content}).items():
            (Path(folder) / file).write_bytes(kept)
        profile = Profile.load(Path(folder) / "a.toml")
    check_forecast(foretell.forecast(Graph.load(GRAPH), "2xh200", model="roofline", profile=profile))
