"""Fits which algorithm cuDNN takes for a convolution, from sweeps: a few decision trees an op and precision, which vote.

Each measured workspace is first explained by an algorithm whose formula gives that many bytes; the trees then learn
when each is chosen. Real training steps are never fitted.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import KFold
from sklearn.tree import DecisionTreeClassifier

from foretell.cost import convolution
from foretell.cost.convolution import ALGORITHMS, Problem, features, may_run
from foretell.graph import Input, Layout, Signature, Value
from foretell_bench.checkout import DATA
from foretell_bench.measuring.memory.collect import lines

SWEEPS: Final = (DATA / "h200_memory_sweep.jsonl.gz", DATA / "h200_memory_strange.jsonl.gz")
INSIDE: Final = DATA / "h200_memory_inside.jsonl.gz"
FITTED: Final = Path(convolution.__file__).with_suffix(".json")
MIB: Final = 2**20
NAMES: Final = list(ALGORITHMS)
TREES: Final = {"fp32": 7, "others": 3}
# The most that a workspace weighs, in bytes of its tensors: the largest are rare, and cost most where they are not chosen.
_MAX_WEIGHT_IN_TENSORS: Final = 4
OPS: Final = ("forward", "input", "weight")
PRECISIONS: Final = {"fp32": "fp32", "tf32": "tf32", "bf16": "half", "fp16": "half"}
SPLIT: Final = 48 * MIB  # partial sums of a reduction split over blocks: at most this
_OTHER_WAY: Final = {"forward": "input", "input": "forward", "weight": "weight"}
Examples = dict[str, list[tuple[Problem, int]]]  # op and precision → (what was run, bytes measured)


def problem(row: dict[str, Any]) -> Problem:
    x, y, w = row["x"], row["y"], row["w"]
    if row["transposed"]:
        x, y = y, x
    return Problem(
        precision=PRECISIONS[row["dtype"]], channels_last=row["channels_last"], batch=x[0], channels=x[1], filters=y[1],
        groups=row["groups"], input=tuple(x[2:]), output=tuple(y[2:]), kernel=tuple(w[2:]), stride=row["stride"],
        padding=row["padding"], dilation=row["dilation"],
    )  # fmt: skip


def from_sweep(rows: Iterable[dict[str, Any]]) -> Examples:
    found: Examples = defaultdict(list)
    for row in rows:
        if row["op"] == "convolution":
            p = problem(row)
            for op in OPS:
                measured = row[_OTHER_WAY[op] if row["transposed"] else op][0]
                found[f"{op} {p.precision}"].append((p, measured))
    return found


def from_steps(rows: Iterable[dict[str, Any]]) -> Examples:
    """Backward is measured whole: it tells of the weight's gradient, or where that cannot explain it, of the input's."""
    found: Examples = defaultdict(list)
    for row in rows:
        s = signature(row)
        if "convolution" not in s.target:
            continue
        tf32, transposed = row["precision"] == "tf32", bool(s.argument("transposed"))
        backward = s.name == "aten.convolution_backward"
        g, x, w = s.inputs[:3] if backward else (s.outputs[0], *s.inputs[:2])
        p = convolution.problem(s, x, w, g, tf32=tf32)
        measured = max(
            0, row["taken"] - convolution.copied_to(p.channels_last, *(s.inputs[:3] if backward else s.inputs[:2]))
        )
        if not backward:
            found[f"{'input' if transposed else 'forward'} {p.precision}"].append((p, measured))
            continue
        mask = s.argument("output_mask")
        assert isinstance(mask, tuple)
        to_input = "forward" if transposed else "input"
        if not mask[1]:
            found[f"{to_input} {p.precision}"].append((p, measured))
        elif not mask[0] or _remainder(p, "weight", measured) <= MIB:
            found[f"weight {p.precision}"].append((p, measured))
        elif _remainder(p, to_input, measured + w.nbytes) <= MIB:
            found[f"{to_input} {p.precision}"].append((p, measured + w.nbytes))
    return found


def signature(row: dict[str, Any]) -> Signature:
    inputs, outputs = (
        tuple(Layout(tuple(a), tuple(b), dtype) for a, b, dtype in row[name]) for name in ("inputs", "outputs")
    )
    return Signature(row["target"], inputs, outputs, tuple((name, _value(v)) for name, v in row["arguments"]))


def _value(value: Any) -> Value:
    if isinstance(value, dict):
        return Input(value["input"])
    return tuple(_value(v) for v in value) if isinstance(value, list) else value


def _remainder(p: Problem, op: str, measured: int) -> float:
    return abs(measured - ALGORITHMS[explain(p, op, measured)](p, op))


def explain(p: Problem, op: str, measured: int) -> str:
    """The algorithm whose formula comes closest; small remainders are partial sums."""
    best, name = float("inf"), "none"
    for candidate, formula in ALGORITHMS.items():
        if not applies(candidate, p):
            continue
        remainder = measured - formula(p, op)
        slack = max(1.1 * MIB, 0.005 * measured)
        if -0.002 * measured - 4096 <= remainder <= slack:
            remainder = 0
        elif remainder < 0:
            remainder = -4 * remainder
        if remainder < best * 0.999:
            best, name = remainder, candidate
    return name


def applies(candidate: str, p: Problem) -> bool:
    if "widened" in candidate or "of all" in candidate:
        return 1 < p.groups < p.channels
    if "fft" in candidate or "winograd" in candidate:
        return may_run(candidate, p) and candidate.startswith("transposed") == p.channels_last
    return True


def fit(found: list[tuple[Problem, int]], op: str) -> list[dict[str, Any]]:
    """fp32 has more algorithms than the others, and workspaces a thousand times the images."""
    table = np.array([list(features(p).values()) for p, _ in found]).astype(np.float32)
    labels = np.array([NAMES.index(explain(p, op, measured)) for p, measured in found])
    weights = np.array(
        [(p.x + p.w + p.y + min(m, _MAX_WEIGHT_IN_TENSORS * (p.x + p.w + p.y))) ** 0.35 for p, m in found]
    )
    count = TREES["fp32" if found[0][0].precision == "fp32" else "others"]
    forest = RandomForestClassifier(count, criterion="entropy", max_features=0.6, random_state=0)
    forest.fit(table, labels, sample_weight=weights / weights.mean())
    return [_tree(tree, forest.classes_, table, found, op) for tree in forest.estimators_]


def _tree(
    tree: DecisionTreeClassifier, classes: Any, table: Any, found: list[tuple[Problem, int]], op: str
) -> dict[str, Any]:
    t, leaves = tree.tree_, tree.apply(table)
    chosen = classes[t.value[:, 0].argmax(axis=1)]
    remainders: dict[int, list[float]] = defaultdict(list)
    for (p, measured), leaf in zip(found, leaves, strict=True):
        remainders[leaf].append(measured - ALGORITHMS[NAMES[chosen[leaf]]](p, op))
    extra = np.zeros(t.node_count, dtype=int)
    for leaf, those in remainders.items():
        extra[leaf] = max(0, min(SPLIT, int(np.median(those)))) // MIB * MIB
    used = sorted({int(c) for c, f in zip(chosen, t.feature, strict=True) if f < 0})
    return {
        "feature": [int(f) if f >= 0 else -1 for f in t.feature],
        "threshold": [float(f"{v:.6g}") if f >= 0 else 0 for f, v in zip(t.feature, t.threshold, strict=True)],
        "left": [int(v) for v in t.children_left], "right": [int(v) for v in t.children_right],
        "algorithms": [NAMES[i] for i in used],
        "algorithm": [used.index(int(c)) if f < 0 else 0 for c, f in zip(chosen, t.feature, strict=True)],
        "extra": [int(e) for e in extra],
    }  # fmt: skip


def predict(trees: list[dict[str, Any]], p: Problem, op: str) -> float:
    with patch.object(convolution, "_trees", lambda: {f"{op} {p.precision}": trees}):
        convolution.chosen.cache_clear()
        name, extra = convolution.chosen(p, op)
    return ALGORITHMS[name](p, op) + extra


def check(found: Examples) -> None:
    left_out: dict[tuple[str, Problem], float] = {}
    for name, rows in found.items():
        op = name.split()[0]
        for train, test in KFold(5, shuffle=True, random_state=0).split(rows):
            tree = fit([rows[i] for i in train], op)
            left_out |= {(name, rows[i][0]): predict(tree, rows[i][0], op) for i in test}
    report(found, lambda name, op, p: left_out[name, p])


def report(found: Examples, predicted: Callable[[str, str, Problem], float]) -> None:
    """How far off, in parts of the tensors that the convolution touches."""
    print(f"{'':16}{'shapes':>7}{'explained':>11}{'mean off':>10}{'median':>8}{'off > 10 %':>12}{'bias':>8}")
    for name, rows in found.items():
        op = name.split()[0]
        explained = [_remainder(p, op, m) <= max(2 * MIB, 0.02 * m) for p, m in rows]
        errors = np.array([(predicted(name, op, p) - m) / max(p.x + p.w + p.y, 4 * MIB) for p, m in rows]).clip(-5, 5)
        off = abs(errors)
        shares = (f"{np.mean(explained):11.1%}{off.mean():10.1%}{np.median(off):8.1%}"
                  f"{(off > 0.1).mean():12.1%}{errors.mean():8.1%}")  # fmt: skip
        print(f"{name:16}{len(rows):7}{shares}")


def run(check_only: bool = False) -> None:
    """Fit, and write the trees; or print errors on shapes left out and on the ops of real steps."""
    found = from_sweep(row for sweep in SWEEPS for row in lines(sweep) if "error" not in row)
    if check_only:
        print("shapes left out of the sweep, five folds")
        check(found)
    fitted = {name: fit(rows, name.split()[0]) for name, rows in found.items()}
    if check_only:
        print("ops of real training steps, fitted on the sweep")
        report(from_steps(lines(INSIDE)), lambda name, op, p: predict(fitted[name], p, op))
        return
    FITTED.write_text(
        json.dumps({"features": list(features(next(iter(found.values()))[0][0])), **fitted}, separators=(",", ":"))
        + "\n"
    )
    trees = [tree for those in fitted.values() for tree in those]
    used = Counter(name for tree in trees for name in tree["algorithms"])
    nodes = sum(len(tree["feature"]) for tree in trees)
    print(f"{nodes} nodes, {FITTED.stat().st_size / 1000:.0f} kB; trees that use each: {dict(used)}")
