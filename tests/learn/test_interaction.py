"""The interaction network on a made-up device whose neighbours matter in a way we know."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

pytest.importorskip("torch_geometric")

from foretell.cost.interaction import outline
from foretell.cost.roofline import price_ops
from foretell.graph import Graph
from foretell.hardware import device
from foretell.learn import graph_network as networks
from foretell.learn import interaction as learn
from foretell.learn.interaction import Example, folds, show, train_interaction
from tests.learn.test_holdout import network

H200 = device("h200")


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[int, int], Graph]:
    return {(width, batch): network(width, batch) for width in (256, 512, 1024) for batch in (256, 2048, 16384)}


def example(index: int, source: str, graph: Graph) -> tuple[Example, learn.Floats]:
    """Ops take twice the roofline by themselves, and less the more of what they read is in the cache."""
    from foretell.cost.features import describe

    step = outline(graph, price_ops(graph, H200), H200)
    signatures = [graph.ops[place].signature for place in step.firsts]
    alone = 2e-6 + 2 * step.least
    took = alone * np.exp(0.2 - 0.4 * step.cached)
    made = Example(
        index=index, source=source, step=step, names=[s.name for s in signatures],
        descriptions=[describe(s, H200, tf32=False) for s in signatures], took=took, whole=float(took @ step.count),
    )  # fmt: skip
    return made, alone


@pytest.fixture(scope="module")
def shown(graphs: dict[tuple[int, int], Graph]) -> list[tuple[Example, learn.Floats]]:
    return [example(i, f"net{width}", graph) for i, ((width, _), graph) in enumerate(graphs.items())]


def off(example: Example, seconds: learn.Floats) -> float:
    return abs(math.log(float(seconds @ example.step.count) / example.whole))


def test_it_learns_what_the_cache_does(shown: list[tuple[Example, learn.Floats]]) -> None:
    seen = [(e, s) for e, s in shown if e.source != "net512"]
    trained = train_interaction([e for e, _ in seen], {e.index: s for e, s in seen}, H200, seed=0, epochs=150)
    before, after = [], []
    for e, alone in shown:
        if e.source == "net512":
            before.append(off(e, alone))
            after.append(off(e, alone * np.exp(trained.correct(e.step, alone, e.families, H200))))
    assert np.mean(after) < 0.5 * np.mean(before)


def test_numpy_says_what_torch_says(shown: list[tuple[Example, learn.Floats]]) -> None:
    e, alone = shown[0]
    families = tuple(sorted(set(e.families)))
    step = show(e, alone, families, H200, weight=1.0)
    networks.seeded(0)
    torch_one = networks.Corrector([step])
    networks.train(torch_one, [step], seed=0, epochs=5)
    numpy_one = learn.Interaction(families=families, weights=networks.weights(torch_one))
    said = numpy_one.correct(e.step, alone, e.families, H200)
    assert np.abs(said).max() > 1e-4
    assert said == pytest.approx(networks.says(torch_one, [step]), abs=1e-5)


def test_untrained_it_says_nothing(shown: list[tuple[Example, learn.Floats]]) -> None:
    e, alone = shown[0]
    step = show(e, alone, tuple(sorted(set(e.families))), H200, weight=1.0)
    assert (networks.says(networks.Corrector([step]), [step]) == 0).all()


def test_the_same_seed_trains_the_same_network(shown: list[tuple[Example, learn.Floats]]) -> None:
    said = {e.index: s for e, s in shown}
    first, second, other = (
        train_interaction([e for e, _ in shown], said, H200, seed=seed, epochs=3).weights["encode.weight"]
        for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_ops_are_found_in_the_table_again(
    graphs: dict[tuple[int, int], Graph], shown: list[tuple[Example, learn.Floats]]
) -> None:
    e, _ = shown[0]
    order = np.random.default_rng(0).permutation(len(e.names)).tolist()[1:]  # another order, and one is missing
    table = learn.OpTable(
        names=[e.names[i] for i in order], descriptions=[e.descriptions[i] for i in order],
        seconds=np.array([float(i) for i in order]), count=np.ones(len(order), np.int64),
        step=np.zeros(len(order), np.int64), share=np.ones(len(order)),
    )  # fmt: skip
    took = learn._took(e.names, e.descriptions, table, range(len(order)))
    assert np.isnan(took).sum() == 1
    for i, seconds in enumerate(took.tolist()):
        if not math.isnan(seconds):
            assert e.descriptions[int(seconds)] == e.descriptions[i]
            assert e.names[int(seconds)] == e.names[i]


def test_a_group_is_in_one_fold_and_folds_are_even() -> None:
    groups = {i: f"group {int(math.sqrt(i))}" for i in range(400)}
    dealt = folds(groups, 5)
    assert set(dealt) == set(groups.values())
    sizes = np.bincount([dealt[g] for g in groups.values()])
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 39  # the largest group


def test_a_whole_graph_network_knows_large_from_small(shown: list[tuple[Example, learn.Floats]]) -> None:
    from foretell_bench.research.rivals import _plainly

    families = sorted({family for e, _ in shown for family in e.families})
    steps = [_plainly(e, families, 1.0) for e, _ in shown]
    networks.seeded(0)
    whole = networks.WholeStep(steps)
    networks.train(whole, steps, seed=0, epochs=80)
    said = networks.says(whole, steps)
    assert np.corrcoef(said, [s.whole for s in steps])[0, 1] > 0.9
    assert dataclasses.replace(steps[0], weight=2.0).totals.shape == (4,)
