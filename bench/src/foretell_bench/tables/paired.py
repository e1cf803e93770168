"""What the folds of all methods come to: errors and ratios row by row, with intervals over what was left out together.

A row's error is its mean over seeds. A ratio is of two methods' mean errors over the rows that both answered with the same seeds;
its interval is of a bootstrap that draws groups (architectures, or clusters where there are few of those), not rows, as rows of
one group err together. A ratio of fewer than 30 rows is not given.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from foretell.methods.protocol import STEP_TIME, Example
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources.drawn import SOURCES, SourceRows, check
from foretell_bench.sources.drawn import read as read_rows
from foretell_bench.tables.folds import SEEDS, Fit, groups, line_of, read, run

Part = Literal["opened", "blind"]
Floats = npt.NDArray[np.float64]
FEW: Final = 30  # rows
DRAWS: Final = 2000
_INSIDE: Final = (5.0, 95.0)
_ROWS: Final = "rows"  # the key of a line that says what was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of a source, as results keep it."""

    group: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    value: float
    low: float
    high: float
    rows: int
    groups: int
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """All fits, and what was measured of the rows they predict: source → part → rows."""

    fits: Sequence[Fit]
    measured: Mapping[str, Mapping[Part, Sequence[Measured]]]

    def errors(self, source: str, method: str, part: Part, target: str = STEP_TIME) -> dict[tuple[int, int], float]:
        """(Row, seed) → its relative error."""
        rows, found = self.measured[source][part], {}
        for one in self.fits:
            if (one.source, one.method) == (source, method):
                for i, values in getattr(one, part).items():
                    if target in values and target in rows[i].values:
                        found[i, one.seed] = abs(values[target] / rows[i].values[target] - 1)
        return found

    def mean(self, source: str, method: str, part: Part, target: str = STEP_TIME) -> Range | None:
        found = self.errors(source, method, part, target)
        return self._range(source, part, found, None)

    def ratio(self, source: str, method: str, over: str, part: Part, target: str = STEP_TIME) -> Range | None:
        """Of mean errors on the same rows and seeds."""
        one, other = (self.errors(source, name, part, target) for name in (method, over))
        both = one.keys() & other.keys()
        if len({i for i, _ in both}) < FEW:
            return None
        return self._range(source, part, {at: one[at] for at in both}, {at: other[at] for at in both})

    def rmse_ratio(self, source: str, method: str, over: str, part: Part, target: str = STEP_TIME) -> Range | None:
        """Of the roots of the mean squares of errors in seconds."""
        rows = self.measured[source][part]
        one, other = (self.errors(source, name, part, target) for name in (method, over))
        both = one.keys() & other.keys()
        if len({i for i, _ in both}) < FEW:
            return None
        squares = ({at: (by[at] * rows[at[0]].values[target]) ** 2 for at in both} for by in (one, other))
        found = self._range(source, part, next(squares), next(squares))
        return found and replace(found, value=found.value**0.5, low=found.low**0.5, high=found.high**0.5)

    def _range(
        self, source: str, part: Part, found: Mapping[tuple[int, int], float], over: Mapping[tuple[int, int], float] | None
    ) -> Range | None:  # fmt: skip
        if not found:
            return None
        rows = self.measured[source][part]
        sums: dict[str, Floats] = defaultdict(lambda: np.zeros(2))
        per_row: dict[int, list[int]] = defaultdict(list)
        for i, seed in found:
            per_row[i].append(seed)
        for i, seeds in per_row.items():
            own = float(np.mean([found[i, seed] for seed in seeds]))
            other = 1.0 if over is None else float(np.mean([over[i, seed] for seed in seeds]))
            sums[rows[i].group] += (own, other)
        table = np.array([sums[name] for name in sorted(sums)])
        drawn = np.random.default_rng(0).integers(len(table), size=(DRAWS, len(table)))
        totals = table[drawn].sum(1)
        low, high = np.percentile(totals[:, 0] / totals[:, 1], _INSIDE)
        whole = table.sum(0)
        return Range(
            value=float(whole[0] / whole[1]), low=float(low), high=float(high), rows=len(per_row), groups=len(table),
            seeds=len({seed for _, seed in found}),
        )  # fmt: skip


def together(found: Sequence[Range]) -> str:
    """A geometric mean over sources."""
    return f"{geometric_mean([one.value for one in found]):.2f}" if found else ""


def pack(fits: Sequence[Fit], drawn: Sequence[SourceRows], to: Path) -> None:
    """Everything into one file: what was measured, then every fit."""
    _write(fits, {one.source: _rows_of(one) for one in drawn}, to)


def _write(fits: Sequence[Fit], measured: Mapping[str, Mapping[Part, Sequence[Measured]]], to: Path) -> None:
    lines = [
        json.dumps({_ROWS: source, **{part: [[r.group, r.values] for r in rows] for part, rows in own.items()}}, separators=(",", ":"))
        for source, own in sorted(measured.items())
    ]  # fmt: skip
    lines += [line_of(one) for one in sorted(fits, key=lambda one: one.task)]
    to.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def run_all(
    save: Path, data: Path | None, stores: Path, seals: Path, *, only: Sequence[str] = (), chosen: Sequence[str] = (),
    seeds: int = SEEDS, workers: int = 1, say: Say = quiet,
) -> None:  # fmt: skip
    """Every fit that the results do not have. One that is done is kept in a file beside them, so that a run can be stopped."""
    there = load(save) if save.exists() else Folds(fits=(), measured={})
    loaded: dict[str, SourceRows] = {}
    for source in chosen or SOURCES:
        say(f"reading {source}")
        loaded[source] = read_rows(source, data, stores, say)
        check(loaded[source], seals)
    going = save.with_suffix(".going")
    if not going.exists():
        going.write_text("".join(line_of(one) + "\n" for one in there.fits), encoding="utf-8")
    run(loaded, going, only=only, seeds=seeds, workers=workers, say=say)
    measured = {source: dict(rows) for source, rows in there.measured.items() if source not in loaded}
    _write(read(going), measured | {source: _rows_of(one) for source, one in loaded.items()}, save)
    going.unlink()


def _rows_of(drawn: SourceRows) -> dict[Part, Sequence[Measured]]:
    group = groups(drawn)

    def kept(rows: Sequence[Example]) -> list[Measured]:
        return [
            Measured(group=str(group(e)), values={t: float(f"{v:.6g}") for t, v in e.measured.items()}) for e in rows
        ]

    return {"opened": kept(drawn.opened), "blind": kept(drawn.blind)}


def load(path: Path) -> Folds:
    measured: dict[str, dict[Part, Sequence[Measured]]] = {}
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        one = json.loads(line)
        if _ROWS in one:
            parts: tuple[Part, ...] = ("opened", "blind")
            measured[one[_ROWS]] = {p: [Measured(group=g, values=v) for g, v in one[p]] for p in parts}
    return Folds(fits=read(path), measured=measured)
