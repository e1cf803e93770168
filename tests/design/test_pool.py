"""The pool of operators: every function makes a step that runs, and its candidates are ones that it takes."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.capture import capture
from foretell.capture.step import Step, prepare_model
from foretell.design.pool import operators as pool
from foretell.design.pool.operators import elements, layers
from foretell.design.pool.shapes import OPERATORS
from foretell.design.pool.shapes import candidates as drawn_candidates
from foretell.errors import ForetellError
from foretell.measure.record import Point
from foretell.sources.former_names import current_source
from foretell.sources.resolve import find_function, load_workload
from foretell.sources.settings import settings_of
from foretell.store.store import Store
from foretell.workload import Workload

ROOT = Path(__file__).parents[2]

SMALL: dict[str, list[dict[str, Any]]] = {
    "convolution": [
        *({"dims": dims, "batch": 2, "channels": 8, "filters": 8, "size": 9, **more}
          for dims in (1, 2, 3) for more in ({}, {"stride": 2}, {"transposed": True}, {"groups": 8, "kernel": 5})),
        {"batch": 2, "channels": 3, "filters": 4, "size": 16, "kernel": 4, "stride": 4, "padded": False,
         "input_gradient": False, "bias": True},
        {"batch": 2, "channels": 4, "filters": 8, "size": 9, "kernel": 3, "dilation": 2, "groups": 2, "channels_last": True,
         "precision": "bf16"},
        {"batch": 2, "channels": 4, "filters": 8, "size": 9, "kernel": 2, "transposed": True, "stride": 2},
        {"batch": 2, "channels": 4, "filters": 8, "size": 9, "kernel": 4, "stride": 2, "training": False},
    ],
    "linear": [{"rows": 4, "inputs": 8, "outputs": 6}, {"rows": 4, "inputs": 8, "outputs": 6, "training": False}],
    "matmul": [
        {"batch": batch, "m": 3, "n": 4, "k": 5, "first_transposed": a, "second_transposed": b}
        for batch, a, b in product((1, 2), (False, True), (False, True))
    ],
    "grouped_matmul": [{"groups": 3, "rows": 20, "inputs": 16, "outputs": 8, "skewed": skewed} for skewed in (False, True)],
    "attention": [
        {"batch": 2, "heads": 4, "kv_heads": 4, "queries": 6, "keys": 5, "head_dim": 8, "precision": "fp32", **more}
        for more in ({}, {"mask": "bool"}, {"mask": "float"}, {"backend": "math", "heads_inside": False}, {"training": False},
                     {"kv_heads": 2, "keys": 6, "causal": True}, {"dropout": 0.1, "backend": "math"})
    ],
    "recurrent": [
        {"cell": cell, "batch": 2, "seq": 3, "inputs": 4, "hidden": 5, "layers": 2, "bidirectional": both, "batch_first": both}
        for cell, both in product(("lstm", "gru", "rnn"), (False, True))
    ],
    "norm": [
        *({"kind": kind, "batch": 2, "channels": 8, "size": 3, "groups": 4, "training": training}
          for kind, training in product(("layer", "rms", "batch", "group", "instance"), (False, True))),
        {"kind": "batch", "batch": 2, "channels": 8, "size": 3, "precision": "amp-bf16", "channels_last": True},
        {"kind": "rms", "batch": 2, "channels": 8, "size": 3, "affine": False},
    ],
    "elementwise": [
        *({"op": op, "rows": 3, "columns": 4} for op in elements.UNARY),
        *({"op": op, "rows": 3, "columns": 4, "broadcast": shape}
          for op, shape in product((*elements.BINARY, *elements.MASKED), elements.BROADCASTS)),
    ],
    "cast": [{"rows": 3, "columns": 4, "source": a, "target": b} for a, b in (("fp32", "bf16"), ("fp16", "fp32"))],
    "copy": [
        *({"op": op, "batch": 2, "rows": 3, "columns": 4} for op in elements.MOVES),
        *({"op": "permute", "batch": 2, "rows": 3, "columns": 4, "order": order} for order in elements.ORDERS),
    ],
    "reduction": [
        {"op": op, "outer": 3, "size": 4, "inner": inner} for op, inner in product(elements.REDUCTIONS, (1, 2))
    ],
    "softmax": [
        {"rows": 3, "columns": 4},
        {"rows": 3, "columns": 4, "logarithm": True, "precision": "bf16"},
        {"rows": 3, "columns": 4, "in_fp32": True, "precision": "bf16"},
    ],
    "loss": [{"op": op, "rows": 3, "classes": 4, "pixels": pixels} for op, pixels in product(elements.LOSSES, (1, 5))],
    "embedding": [{"rows": 9, "width": 4, "picks": 5, "bag": bag} for bag in (1, 3)],
    "indexing": [{"op": op, "rows": 9, "width": 4, "picks": 5} for op in layers.INDEXED],
    "sorting": [{"op": op, "rows": 3, "columns": 7, "k": 2} for op in layers.SORTS],
    "pooling": [
        *({"op": op, "dims": dims, "batch": 2, "channels": 3, "size": 8, "kernel": kernel, "stride": 2}
          for op, dims, kernel in product(("max", "avg", "adaptive"), (1, 2, 3), (2, 3))),
        {"batch": 2, "channels": 3, "size": 8, "channels_last": True},
    ],
    "interpolation": [{"op": op, "batch": 2, "channels": 3, "size": 4, "target": 7} for op in layers.RESIZES],
    "optimizer": [
        *({"name": "adamw", "kind": kind, "width": 8, "layers": 2, "clip": True} for kind in layers.PARAMETERS),
        *({"name": name, "kind": "linear", "width": 8, "layers": 2} for name in layers.OPTIMIZERS if name != "none"),
    ],
}  # fmt: skip
CASES = [(name, settings) for name, cases in SMALL.items() for settings in cases]


def made(name: str, settings: dict[str, Any]) -> Workload:
    return load_workload(f"foretell.design.pool.operators:{name}", {n: str(v) for n, v in settings.items()})


def real_step(workload: Workload) -> Step:
    torch.manual_seed(0)
    return Step.of(workload, prepare_model(workload, workload.model()), workload.batch())


def test_every_operator_has_a_small_case() -> None:
    assert set(SMALL) == set(OPERATORS)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_step_runs_on_a_cpu(name: str, settings: dict[str, Any]) -> None:
    step = real_step(made(name, settings))
    step.run()
    step.run()


def test_the_gradient_is_the_one_given() -> None:
    """Nothing stands between the seeded gradient and the operator's backward."""
    workload = made("linear", {"rows": 4, "inputs": 8, "outputs": 6})
    step = real_step(workload)
    workload.loss(step.model, step.batch).backward()
    layer = step.model.layer
    assert isinstance(layer, torch.nn.Linear)
    [gradient] = step.batch["gradients"]
    torch.testing.assert_close(layer.weight.grad, gradient.T @ step.batch["x"])
    torch.testing.assert_close(layer.bias.grad, gradient.sum(0))


def test_an_update_is_the_optimizers_own() -> None:
    step = real_step(made("optimizer", {"name": "sgd", "kind": "linear", "width": 8, "layers": 1}))
    before = [p.detach().clone() for p in step.model.parameters()]
    step.run()
    for old, new, gradient in zip(before, step.model.parameters(), step.batch["gradients"], strict=True):
        torch.testing.assert_close(new.detach(), old - 0.1 * gradient)
        assert new.grad is None


# What a CPU has no kernel for is captured.


@pytest.mark.parametrize("backend", ["auto", "cudnn", "flash", "efficient", "math"])
def test_every_attention_backend_is_captured(backend: str) -> None:
    graph = capture(made("attention", {"batch": 2, "queries": 16, "keys": 16, "backend": backend}))
    assert any("scaled_dot_product" in op.signature.name or "bmm" in op.signature.name for op in graph.ops)


def ops_of(name: str, **settings: Any) -> Counter[str]:
    return Counter(op.signature.name for op in capture(made(name, settings)).ops)


def test_a_grouped_product_is_captured() -> None:
    assert ops_of("grouped_matmul", groups=4, rows=64, inputs=32, outputs=16)["aten._grouped_mm"] == 3


def test_a_convolution_runs_once_each_way_and_little_beside() -> None:
    ops = ops_of("convolution", batch=2, channels=8, filters=8, size=8, precision="bf16", channels_last=True)
    assert ops["aten.convolution"] == ops["aten.convolution_backward"] == 1
    on_one_number = Counter({"aten.new_zeros": 1, "aten.ones_like": 1, "aten.div": 2})
    assert set(ops - on_one_number) == {
        "aten.detach",
        "aten.convolution",
        "aten.convolution_backward",
        "aten._foreach_add_",
    }


def test_an_update_is_captured_as_the_optimizers() -> None:
    graph = capture(made("optimizer", {"name": "adamw-fused", "kind": "linear", "width": 8, "layers": 3}))
    assert [op.signature.name for op in graph.ops if op.phase == "optimizer"].count("aten._fused_adamw_") == 1
    assert all(op.signature.name.startswith(("aten.detach", "aten._f")) for op in graph.ops)


# Candidates.


@pytest.fixture(scope="module")
def candidates() -> list[Point]:
    return drawn_candidates(0)


def test_candidates_are_many_unique_and_for_operators(candidates: list[Point]) -> None:
    assert 5000 <= len(candidates) <= 7000
    assert len({point.key for point in candidates}) == len(candidates)
    assert {point.kind for point in candidates} == {"operators"}


def test_candidates_follow_from_the_seed(candidates: list[Point]) -> None:
    again, other = drawn_candidates(0), drawn_candidates(1)
    assert [p.key for p in again] == [p.key for p in candidates]
    assert len({p.key for p in other} & {p.key for p in candidates}) < len(candidates) / 10


def kind_of(point: Point) -> str:
    """The operator, and which kind of convolution."""
    name, settings = point.source.rpartition(":")[2], point.settings
    if settings.get("transposed") == "true":
        return "transposed convolution"
    if name != "convolution" or settings["groups"] == "1":
        return name
    return "depthwise convolution" if settings["groups"] == settings["channels"] else "grouped convolution"


def test_every_operator_and_kind_of_convolution_is_among_them_and_early_too(candidates: list[Point]) -> None:
    kinds = Counter(map(kind_of, candidates))
    assert set(kinds) == {*OPERATORS, *(f"{kind} convolution" for kind in ("depthwise", "grouped", "transposed"))}
    assert min(kinds.values()) >= 50
    assert set(map(kind_of, candidates[:1000])) == set(kinds)


def test_candidates_are_those_that_stores_hold(candidates: list[Point]) -> None:
    """Draws that change would make every measured point a stranger."""
    keys = "".join(point.key for point in candidates)
    assert hashlib.sha256(keys.encode()).hexdigest()[:16] == "41938f1d019ce311"


def test_points_of_the_store_keep_their_keys() -> None:
    """The store knows them by the names they had when they were measured."""
    seen = Counter[str]()
    for row in Store(ROOT / "bench" / "data" / "h200").steps():
        settings = json.loads(row.settings)
        for source in (row.source, current_source(row.source)):
            assert Point(source=source, settings=settings, kind=row.kind, plan=row.plan).key == row.point
        seen[current_source(row.source).rpartition(":")[0]] += 1
    assert seen["foretell.design.pool.operators"] > 1000
    assert seen["foretell_bench.bundles"] > 1000


def test_every_candidate_is_a_workload(candidates: list[Point]) -> None:
    for point in candidates:
        assert load_workload(point.source, point.settings).name == point.source.rpartition(":")[2]


def test_candidates_reach_every_precision_and_from_small_to_large(candidates: list[Point]) -> None:
    linear = [p.settings for p in candidates if p.source.endswith(":linear")]
    assert {s["precision"] for s in linear} == {"fp32", "tf32", "bf16", "fp16"}
    flops = sorted(6.0 * int(s["rows"]) * int(s["inputs"]) * int(s["outputs"]) for s in linear)
    assert flops[len(flops) // 20] < 1e9
    assert flops[-len(flops) // 10] > 1e11


# Settings.


@pytest.mark.parametrize("name", OPERATORS)
def test_every_setting_is_a_plain_value_with_a_default(name: str) -> None:
    for setting in settings_of(find_function(f"foretell.design.pool.operators:{name}")).values():
        assert isinstance(setting.default, int | float | str)
    assert inspect.getdoc(getattr(pool, name))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("convolution", {"groups": 3}, "groups=3 must divide"),
        ("convolution", {"kernel": 0}, "kernel must be from 1 to 63, got 0"),
        ("convolution", {"kernel": 9, "size": 4, "padded": False}, "larger than size=4"),
        ("convolution", {"dims": 3, "channels_last": True}, "channels_last needs dims=2"),
        ("attention", {"kv_heads": 3}, "kv_heads=3 must divide heads=8"),
        ("attention", {"backend": "flash", "mask": "bool"}, "no mask"),
        ("attention", {"backend": "quick"}, "Allowed"),
        ("elementwise", {"op": "glu"}, "Did you mean"),
        ("elementwise", {"op": "gelu", "broadcast": "row"}, "no second operand"),
        ("grouped_matmul", {"inputs": 12}, "multiples of 8"),
        ("norm", {"kind": "layer", "precision": "amp-bf16"}, "batch norm alone"),
        ("linear", {"rows": 0}, "rows must be from 1"),
        ("sorting", {"k": 5000}, "k must be from 1 to 1024"),
        ("optimizer", {"name": "adamx"}, "Did you mean"),
        ("cast", {"source": "bf16", "target": "bf16"}, "target='bf16'"),
    ],
)
def test_impossible_settings_are_refused(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ForetellError, match=says):
        made(name, settings)
