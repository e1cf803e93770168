"""How well any number of measured products could predict others of the same device: a floor for `foretell adapt`.

For each device of the public `gemm`: by how much products differ whose first factors differ by one row, and the mean error on
products of other weights once 50 to all of those measured corrected the shipped model: by one factor, or by trees over the
product's sizes, its time and how much of that its arithmetic and traffic take. Blind weights are left out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingRegressor

from foretell.cost.generations import bound
from foretell.cost.model import load_model
from foretell.cost.transfer import transferred
from foretell.errors import InputError
from foretell.hardware import Device, device, recognise
from foretell.learn.transfer.published_ops import product
from foretell.store.importers import public_file, read_public
from foretell_bench.sources.settings import is_blind

Floats = npt.NDArray[np.float64]
Product = tuple[int, int, int]
_NUMBERS: Final = (50, 200, 800)  # of products that correct the model
_DRAWS: Final = 4
_MAX_PRODUCTS: Final = 3000  # of a device
_SHORTEST_SECONDS: Final = 20e-6
_FEWEST_ROWS: Final = 16


def products(table: Any) -> dict[str, dict[Product, float]]:
    found: dict[str, dict[Product, float]] = {}
    known = {name: recognise(name) for name in set(table["device"].to_pylist())}
    columns = (table[name].to_pylist() for name in ("device", "dtype", "m", "n", "k", "seconds"))
    for name, dtype, m, n, k, seconds in zip(*columns, strict=True):
        if dtype == "bfloat16" and m >= _FEWEST_ROWS and (on := known[name]) is not None:
            found.setdefault(on.name, {})[m, n, k] = seconds
    return found


def row_differences(those: dict[Product, float]) -> Floats:
    """By how much products differ from those of one row more, as logarithms."""
    pairs = [
        (s, those[m + 1, n, k]) for (m, n, k), s in those.items() if s >= _SHORTEST_SECONDS and (m + 1, n, k) in those
    ]
    return np.array([abs(np.log(one / other)) for one, other in pairs])


def described(shapes: list[Product], on: Device) -> tuple[Floats, Floats]:
    """What the shipped model predicts, and numbers that describe each product."""
    model, signatures = load_model(), [product(*shape) for shape in shapes]
    assert model.operators is not None
    seconds, _ = transferred(signatures, device(model.device), model.operators, on, model.generations, tf32=False)
    share = np.array([bound(s, on, model.generations.attained, tf32=False) for s in signatures]) / seconds
    return seconds, np.column_stack([share**2, np.log(seconds), np.log(shapes)])


def is_tested(shape: Product) -> bool:
    return hashlib.sha256(f"{shape[1]}×{shape[2]}".encode()).digest()[0] % 3 == 0


def run(folder: Path) -> None:
    if (path := public_file(folder, "gemm")) is None:
        raise InputError(f"{folder} has no file of matrix products. Give the folder of public measurements.")
    for name, those in products(read_public(path).table).items():
        apart = row_differences(those)
        print(
            f"{name}: one row more differs by {apart.mean():.1%} in the mean, {np.median(apart):.1%} in the middle"
            if len(apart)
            else name
        )
        shapes = [s for s, seconds in those.items() if seconds >= _SHORTEST_SECONDS and not is_blind(f"{s[1]}×{s[2]}")]
        shapes = [shapes[i] for i in np.random.default_rng(0).permutation(len(shapes))[:_MAX_PRODUCTS]]
        tested = np.array([is_tested(shape) for shape in shapes])
        predicted, numbers = described(shapes, device(name))
        off = np.log([those[s] for s in shapes]) - np.log(predicted)

        def error(correction: Floats, off: Floats = off, tested: npt.NDArray[np.bool_] = tested) -> float:
            return float(np.abs(np.expm1(correction - off[tested])).mean())

        print(f"   as it is {error(np.zeros(tested.sum())):.1%}")
        pool = np.flatnonzero(~tested)
        for number in (*(n for n in _NUMBERS if n < len(pool)), len(pool)):
            ways: dict[str, list[float]] = {"a factor": [], "trees": []}
            for seed in range(_DRAWS):
                chosen = np.random.default_rng(seed).choice(pool, number, replace=False)
                trees = HistGradientBoostingRegressor(
                    max_iter=200, learning_rate=0.05, min_samples_leaf=max(5, number // 40)
                )
                ways["a factor"].append(error(np.full(tested.sum(), np.median(off[chosen]))))
                ways["trees"].append(error(trees.fit(numbers[chosen], off[chosen]).predict(numbers[tested])))
            print(
                f"   {number} others:",
                ", ".join(f"{way} {np.mean(errors):.1%}" for way, errors in ways.items()),
                flush=True,
            )
