"""The interaction network on a made-up device whose neighbours matter in a way we know."""

from __future__ import annotations

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
from foretell.learn.dataset import Measured, op_table
from foretell.learn.interaction import Example, folds, sample, train_interaction
from foretell.measure.record import StepRow
from tests.learn.uncertainty.test_left_out import network

H200 = device("h200")


@pytest.fixture(scope="module")
def graphs() -> dict[tuple[int, int], Graph]:
    return {(width, batch): network(width, batch) for width in (256, 512, 1024) for batch in (256, 2048, 16384)}


def example(index: int, source: str, graph: Graph) -> tuple[Example, learn.Floats]:
    """Ops take twice the roofline by themselves, and less the more of what they read is in the cache."""
    from foretell.cost.features import describe

    step = outline(graph, H200)
    signatures = step.signatures
    alone = 2e-6 + 2 * step.least
    measured = alone * np.exp(0.2 - 0.4 * step.cached)
    made = Example(
        index=index, source=source, step=step, names=[s.name for s in signatures],
        descriptions=[describe(s, H200, tf32=False) for s in signatures], measured=measured, whole=float(measured @ step.count),
    )  # fmt: skip
    return made, alone


@pytest.fixture(scope="module")
def examples(graphs: dict[tuple[int, int], Graph]) -> list[tuple[Example, learn.Floats]]:
    return [example(i, f"net{width}", graph) for i, ((width, _), graph) in enumerate(graphs.items())]


def error(example: Example, seconds: learn.Floats) -> float:
    return abs(math.log(float(seconds @ example.step.count) / example.whole))


@pytest.mark.nightly
def test_it_learns_what_the_cache_does(examples: list[tuple[Example, learn.Floats]]) -> None:
    seen = [(e, s) for e, s in examples if e.source != "net512"]
    trained = train_interaction([e for e, _ in seen], {e.index: s for e, s in seen}, H200, seed=0, epochs=150)
    before, after = [], []
    for e, alone in examples:
        if e.source == "net512":
            before.append(error(e, alone))
            after.append(error(e, alone * np.exp(trained.correct(e.step, alone, e.families, H200))))
    assert np.mean(after) < 0.5 * np.mean(before)


@pytest.mark.nightly
def test_numpy_predicts_what_torch_predicts(examples: list[tuple[Example, learn.Floats]]) -> None:
    e, alone = examples[0]
    families = tuple(sorted(set(e.families)))
    step = sample(e, alone, families, H200, weight=1.0)
    networks.seeded(0)
    torch_one = networks.Corrector([step])
    networks.train(torch_one, [step], seed=0, epochs=5)
    numpy_one = learn.Interaction(families=families, weights=networks.weights(torch_one))
    predicted = numpy_one.correct(e.step, alone, e.families, H200)
    assert np.abs(predicted).max() > 1e-4
    assert predicted == pytest.approx(networks.predictions(torch_one, [step]), abs=1e-5)


def test_untrained_it_corrects_nothing(examples: list[tuple[Example, learn.Floats]]) -> None:
    e, alone = examples[0]
    step = sample(e, alone, tuple(sorted(set(e.families))), H200, weight=1.0)
    assert (networks.predictions(networks.Corrector([step]), [step]) == 0).all()


def test_the_same_seed_trains_the_same_network(examples: list[tuple[Example, learn.Floats]]) -> None:
    predicted = {e.index: s for e, s in examples}
    first, second, other = (
        train_interaction([e for e, _ in examples], predicted, H200, seed=seed, epochs=3).weights["encode.weight"]
        for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_ops_are_found_in_the_table_again(graphs: dict[tuple[int, int], Graph]) -> None:
    graph = next(iter(graphs.values()))
    kernels = [p.work.kernel for p in price_ops(graph, H200)]
    times = [float(i + 1) for i in range(len(graph.ops))]
    missing = graph.ops[kernels.index(True)].signature
    launched = [k and op.signature != missing for k, op in zip(kernels, graph.ops, strict=True)]
    step = StepRow(point="p", kind="step", source="net", settings="{}", graph="g", device_seconds=1.0)
    table = op_table([(0, graph, times, launched)], H200)
    measured = Measured(device=H200, steps=[step], graphs={"g": graph}, ops=table)
    [found] = learn.examples(measured, [0])
    for signature, seconds in zip(found.step.signatures, found.measured.tolist(), strict=True):
        own = [t for op, t in zip(graph.ops, times, strict=True) if op.signature == signature]
        assert math.isnan(seconds) if signature == missing else seconds == pytest.approx(np.mean(own))


def test_a_group_is_in_one_fold_and_folds_are_even() -> None:
    groups = {i: f"group {int(math.sqrt(i))}" for i in range(400)}
    dealt = folds(groups, 5)
    assert set(dealt) == set(groups.values())
    sizes = np.bincount([dealt[g] for g in groups.values()])
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 39  # the largest group


def test_a_whole_graph_network_knows_large_from_small(examples: list[tuple[Example, learn.Floats]]) -> None:
    from foretell_bench.research.whole_step import WholeStep, sample_by_sizes

    families = sorted({family for e, _ in examples for family in e.families})
    steps = [sample_by_sizes(e, families, 1.0) for e, _ in examples]
    networks.seeded(0)
    whole = WholeStep(steps)
    networks.train(whole, steps, seed=0, epochs=80)
    predicted = networks.predictions(whole, steps)
    assert np.corrcoef(predicted, [s.whole.item() for s in steps])[0, 1] > 0.9
    assert steps[0].totals.shape == (1, 4)
