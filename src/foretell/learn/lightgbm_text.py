"""LightGBM's text of a model → the arrays that are kept of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from foretell.cost.trees import MISSING, Trees
from foretell.errors import ModelError

_CATEGORY, _DEFAULT_LEFT = 1, 2  # bits of a split's decision type; the next two say what is missing
_NONE, _ZERO, _NAN = 0, 1, 2
_WORD: Final = 32  # categories in an integer of a set

Number = tuple[int, str]  # a test of numbers: its column, and what becomes of missing ones
Split = tuple[Number | None, float, frozenset[int]]  # its test and threshold, or the set of categories that go left


def trees_of(text: str) -> Trees:
    """Trees of numbers with one category, which is the last column."""
    header, *blocks = text.split("\nTree=")
    last = int(_fields(header)["max_feature_idx"])
    nodes = [node for block in blocks for node in _nodes(_fields(block.split("\n\n")[0]), last)]
    splits = [node for node in nodes if not isinstance(node, float)]
    edges: dict[Number, set[float]] = {}
    sets: dict[frozenset[int], int] = {}
    for test, threshold, members in splits:
        if test is None:
            sets.setdefault(members, len(sets))
        else:
            edges.setdefault(test, set()).add(threshold)
    tests = {test: number for number, test in enumerate(sorted(edges), start=1)}
    rising = {test: {edge: place for place, edge in enumerate(sorted(edges[test]))} for test in tests}
    table = np.zeros((len(sets), 8 * -(-max((max(s, default=0) + 1 for s in sets), default=0) // 8)), np.uint8)
    for row, members in zip(table, sets, strict=True):
        row[list(members)] = 1
    return Trees(
        test=np.array(
            [
                0 if isinstance(node, float) else len(tests) + 1 + sets[node[2]] if node[0] is None else tests[node[0]]
                for node in nodes
            ],
            np.uint32,
        ),
        cut=np.array([0 if test is None else rising[test][edge] for test, edge, _ in splits], np.uint32),
        value=np.array([node for node in nodes if isinstance(node, float)], np.float32),
        column=np.array([column for column, _ in tests], np.uint32),
        missing=np.array([MISSING.index(missing) for _, missing in tests], np.uint8),
        edges=np.array([edge for test in tests for edge in rising[test]], np.float64),
        edge_counts=np.array([len(rising[test]) for test in tests], np.uint32),
        sets=np.packbits(table, axis=1),
    )


def _nodes(tree: Mapping[str, str], category: int) -> Iterator[Split | float]:
    """Splits and leaves' values, from the root on, left before right."""
    values = [float(v) for v in tree["leaf_value"].split()]
    if tree.get("is_linear", "0") != "0":
        raise ModelError("trees with linear leaves are not supported. Fit with linear_tree=False.")
    if len(values) == 1:
        yield values[0]
        return
    left, right, columns, kinds = (
        [int(v) for v in tree[name].split()] for name in ("left_child", "right_child", "split_feature", "decision_type")
    )
    thresholds = [float(v) for v in tree["threshold"].split()]
    words, ends = ([int(v) for v in tree.get(name, "").split()] for name in ("cat_threshold", "cat_boundaries"))
    waiting = [0]
    while waiting:
        node = waiting.pop()
        if node < 0:
            yield values[~node]
            continue
        waiting += [right[node], left[node]]
        if kinds[node] & _CATEGORY:
            if columns[node] != category:
                raise ModelError(f"column {columns[node]} is a category; only the last, {category}, can be.")
            which = int(thresholds[node])
            bits = sum(word << _WORD * i for i, word in enumerate(words[ends[which] : ends[which + 1]]))
            yield None, 0.0, frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)
        else:
            yield (columns[node], _missing(kinds[node])), thresholds[node], frozenset()


def _missing(kind: int) -> str:
    missing = kind >> 2 & 3
    if missing == _ZERO:
        raise ModelError("trees that take zeros as missing are not supported. Fit with zero_as_missing=False.")
    return "zero" if missing == _NONE else "left" if kind & _DEFAULT_LEFT else "right"


def _fields(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
