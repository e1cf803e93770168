"""The interaction network without torch: how it sees a step, and that it leaves the sum alone when it predicts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foretell.cost.interaction import FILE, MAX_CORRECTION, PLAIN, Interaction, node_features, outline
from foretell.cost.model import CostModel, load_model
from foretell.cost.roofline import price_ops
from foretell.errors import ModelError
from foretell.graph import Graph
from foretell.hardware import device
from tests.report.examples import small_graph

H200 = device("h200")
FAMILIES = ("copy", "elementwise", "foreach", "matmul", "norm", "norm_backward", "reduction")
WIDTH = 8


def random_network(seed: int, *, head: float) -> Interaction:
    draw = np.random.default_rng(seed)
    columns = len(PLAIN) + len(FAMILIES)
    shapes: dict[str, tuple[int, ...]] = {"encode.weight": (WIDTH, columns), "encode.bias": (WIDTH,)}
    for number in range(2):
        for part in ("own", "into", "onto", "whole"):
            shapes[f"rounds.{number}.{part}.weight"] = (WIDTH, WIDTH)
        shapes[f"rounds.{number}.own.bias"] = (WIDTH,)
    weights = {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"mean": np.zeros(columns, np.float32), "scale": np.full(columns, 5, np.float32)}
    weights |= {
        "head.weight": head * draw.normal(0, 1, (1, WIDTH)).astype(np.float32),
        "head.bias": np.zeros(1, np.float32),
    }
    return Interaction(families=FAMILIES, weights=weights)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph()[0]


def with_network(network: Interaction | None) -> CostModel:
    return dataclasses.replace(load_model(), interaction=network)


def test_a_network_that_says_nothing_leaves_the_sum_exactly(graph: Graph) -> None:
    silent = with_network(random_network(0, head=0.0)).price(graph, H200).prices
    plain = with_network(None).price(graph, H200).prices
    assert silent == plain
    disbelieved = dataclasses.replace(random_network(0, head=5.0), strength=0.0)
    assert with_network(disbelieved).price(graph, H200).prices == plain


def test_what_it_predicts_is_bounded_and_changes_only_known_devices(graph: Graph) -> None:
    loud, plain = with_network(random_network(0, head=5.0)), with_network(None)
    ratios = {
        a.seconds / b.seconds
        for a, b in zip(loud.price(graph, H200).prices, plain.price(graph, H200).prices, strict=True)
        if b.work.kernel
    }
    assert len(ratios) > 1
    assert all(np.exp(-MAX_CORRECTION) * (1 - 1e-9) <= r <= np.exp(MAX_CORRECTION) * (1 + 1e-9) for r in ratios)
    other = device("a100-80g-sxm")
    assert loud.price(graph, other).prices == plain.price(graph, other).prices


def test_ops_that_are_alike_are_one_node(graph: Graph) -> None:
    prices = price_ops(graph, H200)
    step = outline(graph, H200)
    launching = [(op, p) for op, p in zip(graph.ops, prices, strict=True) if p.work.kernel]
    assert len(step) == len({op.signature for op, _ in launching})
    assert step.count.sum() == sum(op.times for op, _ in launching)
    assert step.phases.sum(axis=1) == pytest.approx(np.ones(len(step)))
    assert ((step.cached >= 0) & (step.cached <= 1)).all()
    assert ((step.position >= 0) & (step.position < 1)).all()
    assert float(step.least @ step.count) == pytest.approx(sum(p.seconds * op.times for op, p in launching))


def test_edges_lead_from_what_wrote_to_what_reads(graph: Graph) -> None:
    step = outline(graph, H200)
    for ends, onto in ((step.takes, False), (step.makes, True)):
        shares = np.bincount(ends, weights=step.shares(onto=onto), minlength=len(step))
        assert shares[np.unique(ends)] == pytest.approx(1.0)
    assert len(step.makes) > 0


def test_a_small_cache_holds_less(graph: Graph) -> None:
    large, small = (outline(graph, dataclasses.replace(H200, l2_bytes=size)) for size in (2**40, 1))
    assert large.cached.sum() > small.cached.sum()
    assert small.cached.max() <= 1e-3


def test_features_have_the_columns_that_are_named(graph: Graph) -> None:
    step = outline(graph, H200)
    table = node_features(step, np.maximum(step.least, 1e-6), H200)
    assert table.shape == (len(step), len(PLAIN))
    assert np.isfinite(table).all()
    assert table[:, PLAIN.index("share")].sum() == pytest.approx(1.0)


def test_a_network_is_a_file(graph: Graph, tmp_path: Path) -> None:
    network = dataclasses.replace(random_network(1, head=1.0), strength=0.25)
    network.save(tmp_path)
    again = Interaction.load(tmp_path / FILE)
    assert (again.families, again.strength) == (network.families, network.strength)
    first, second = (with_network(n).price(graph, H200).prices for n in (network, again))
    assert first == second


@pytest.mark.parametrize("spoil", [lambda p: p.write_bytes(b"nonsense"), lambda p: p.unlink(missing_ok=True)])
def test_a_broken_file_says_so(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    random_network(1, head=1.0).save(tmp_path)
    spoil(tmp_path / FILE)
    with pytest.raises(ModelError, match="foretell fit"):
        Interaction.load(tmp_path / FILE)


def test_a_step_is_a_vector(graph: Graph) -> None:
    model = with_network(random_network(2, head=1.0))
    vector = model.embedding(graph, H200)
    assert vector.shape == (WIDTH,)
    assert np.isfinite(vector).all()
    assert model.embedding(graph, H200) == pytest.approx(vector)
    half = dataclasses.replace(graph, ops=graph.ops[: len(graph.ops) // 2])
    assert model.embedding(half, H200) != pytest.approx(vector)
    with pytest.raises(ModelError, match="no interaction network"):
        with_network(None).embedding(graph, H200)
