"""Boosted trees as arrays: what prediction needs of them, walked in NumPy by all rows through all trees at once.

Nodes lie in the order in which a tree is read from its root, left before right, so that a sequence of splits and leaves
is its own shape and no file can lead a walk astray. A split asks one of the tests: how a number of the row compares
with an edge, or whether its category is in a set. Rows are first turned into codes, the places of their numbers among the
edges of each test, so a walk compares small integers and decides exactly as the numbers themselves would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint16]
Array = npt.NDArray[Any]
MISSING: Final = ("zero", "left", "right")  # what a test takes a missing number for, or where it sends it
_ROWS_AT_ONCE: Final = 64  # what is walked together stays in a core's cache
_LEVELS_AT_ONCE: Final = 2  # between looks at which walks have come to a leaf
_ENDED: Final = 0.2  # the share of them that is worth a removal
_CODES: Final = 1 << 16
_MOST_NODES: Final = 1_000_000  # which bound what a walk can take, however deep trees are
_MOST_TREES: Final = 100_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Trees:
    """Trees over rows of numbers whose last is a category; a row's prediction is the sum of its leaves' values."""

    test: Array  # of each node: 0 for a leaf, else the number of its test, from 1
    cut: Array  # of each split: the edge that a number must not exceed to go left; 0 for a set
    value: Array  # of each leaf
    column: Array  # of each test of numbers; those of sets follow
    missing: Array  # of each test of numbers: a place in MISSING
    edges: Array  # of the tests of numbers, one after another, each rising
    edge_counts: Array
    sets: Array  # of each set, a bit for each category: whether it goes left

    def __post_init__(self) -> None:
        """Whether a walk can go wrong; the arrays may come from a file."""
        for field in fields(self):
            array, kind = getattr(self, field.name), "f" if field.name in ("value", "edges") else "u"
            if array.dtype.kind != kind or array.ndim != (2 if field.name == "sets" else 1):
                raise ValueError(f"{field.name} is {array.ndim}-dimensional {array.dtype}")
        if len(self.test) > _MOST_NODES:
            raise ValueError(f"{len(self.test):,} nodes, more than {_MOST_NODES:,}")
        numbers, splits = len(self.column), int(np.count_nonzero(self.test))
        counts = self.edge_counts.clip(0, _CODES).astype(np.int64)
        if not (len(self.missing) == len(counts) == numbers and counts.sum() == len(self.edges) and np.all(counts)):
            raise ValueError("tests and their edges disagree")
        if len(self.cut) != splits or len(self.value) != len(self.test) - splits:
            raise ValueError("nodes, splits and leaves disagree")
        if np.any(self.missing >= len(MISSING)) or np.any(self.test > self.tests) or self.tests >= _CODES:
            raise ValueError("a test that is not there")
        limits = np.concatenate([counts, np.ones(len(self.sets), np.int64)])
        if np.any(self.cut >= limits[self.test[self.test > 0].astype(np.int64) - 1]) or counts.max(initial=0) >= _CODES:
            raise ValueError("an edge that is not there")
        rising = np.diff(self.edges) > 0
        rising[np.cumsum(counts)[:-1] - 1] = True  # from one test to the next
        if not np.all(rising) or np.any(np.isnan(self.edges)) or not np.all(np.isfinite(self.value)):
            raise ValueError("edges that do not rise, or values that are no numbers")
        heights = self._heights
        if len(heights) > 1 and heights[-1] >= heights[:-1].min():
            raise ValueError("a tree that is cut short")
        if -heights.min() > _MOST_TREES:
            raise ValueError(f"more than {_MOST_TREES:,} trees")

    @property
    def tests(self) -> int:
        return len(self.column) + len(self.sets)

    def predict(self, table: Floats) -> Floats:
        """The sum of the leaves that each row of numbers, its category last, comes to."""
        parts = [self._walk(self._codes(table[i : i + _ROWS_AT_ONCE])) for i in range(0, len(table), _ROWS_AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _codes(self, table: Floats) -> Codes:
        """The place of each row among the edges of each test; in a set or not is 0 or 1."""
        codes = np.empty((len(table), max(self.tests, 1)), np.uint16)
        for place, (column, missing, edges) in enumerate(self._numbers):
            numbers = table[:, column]
            if missing != "right":  # where they are sorted to
                numbers = np.where(np.isnan(numbers), 0.0 if missing == "zero" else -np.inf, numbers)
            codes[:, place] = edges.searchsorted(numbers)
        if len(self.sets):
            category, known = table[:, -1], len(self._outside) - 1
            inside = (category >= 0) & (category < known)
            codes[:, len(self._numbers) :] = self._outside[np.where(inside, category, known).astype(np.int64)]
        return codes

    def _walk(self, codes: Codes) -> Floats:
        """All rows through all trees, level by level; those that have come to a leaf stay there until they are removed."""
        rows, width = codes.shape
        flat, total = codes.ravel(), np.zeros(rows)
        node, start = np.tile(self._roots, rows), np.repeat(np.arange(0, rows * width, width), len(self._roots))
        while node.size:
            for _ in range(_LEVELS_AT_ONCE):
                step = self._steps.take(node)
                test = step & 0xFFFF
                test += start
                step >>= 16
                goes_right = flat.take(test) >= step & 0xFFFF
                step >>= 16
                step *= goes_right
                step += 1
                node += step
            ended = self._values.take(node)
            at_leaf = ended == ended  # not NaN
            done = np.flatnonzero(at_leaf)
            if done.size >= _ENDED * node.size:
                total += np.bincount(start.take(done) // width, ended.take(done), rows)
                left = np.flatnonzero(~at_leaf)
                node, start = node.take(left), start.take(left)
        return total

    @cached_property
    def _numbers(self) -> list[tuple[int, str, Floats]]:
        edges = np.split(self.edges, np.cumsum(self.edge_counts, dtype=np.int64)[:-1]) if len(self.column) else []
        return [(int(c), MISSING[m], e) for c, m, e in zip(self.column, self.missing, edges, strict=True)]

    @cached_property
    def _outside(self) -> npt.NDArray[np.bool_]:
        """By category, the sets it is not in; the last row is that of a category nobody knew."""
        return np.vstack([np.unpackbits(self.sets.astype(np.uint8), axis=1).T == 0, np.ones(len(self.sets), np.bool_)])

    @property
    def _heights(self) -> Ints:
        """How many subtrees wait to be read at each node, and after the last."""
        return np.concatenate([[0], np.cumsum(np.where(self.test > 0, 1, -1))])

    @cached_property
    def _roots(self) -> Ints:
        heights = self._heights[:-1]
        return np.flatnonzero(np.diff(np.minimum.accumulate(heights), prepend=1) < 0)

    @cached_property
    def _values(self) -> Floats:
        """Of each node; NaN for a split."""
        values = np.full(len(self.test), np.nan)
        values[self.test == 0] = self.value
        return values

    @cached_property
    def _steps(self) -> Ints:
        """Of each node, in one integer: how far right is beyond left, which is next; the code that goes right; the test.

        A right branch begins where as many subtrees wait as at its split, for the first time since. A leaf is a split whose
        right branch, which everyone takes, is itself.
        """
        nodes, split = len(self.test), self.test > 0
        heights = self._heights[:-1]
        narrow = np.result_type(np.min_scalar_type(heights.min(initial=0)), np.min_scalar_type(heights.max(initial=0)))
        order = np.argsort(heights.astype(narrow), kind="stable")  # a radix sort, where they are narrow
        beyond = np.zeros(nodes, np.int64)
        beyond[order[:-1]] = order[1:]
        jump = np.where(split, beyond - np.arange(nodes) - 1, -1)
        code = np.zeros(nodes, np.int64)
        code[split] = self.cut.astype(np.int64) + 1
        return jump << 32 | code << 16 | np.maximum(self.test.astype(np.int64) - 1, 0)

    def arrays(self, family: str) -> Iterator[tuple[str, Array]]:
        """What a file keeps, each as narrow as its numbers allow."""
        for field in fields(self):
            array = getattr(self, field.name)
            if array.dtype.kind == "u":
                array = array.astype(np.min_scalar_type(int(array.max(initial=0))))
            yield f"{family}.{field.name}", array

    @classmethod
    def read(cls, arrays: Mapping[str, Array], family: str) -> Trees:
        return cls(**{field.name: arrays[f"{family}.{field.name}"] for field in fields(cls)})
