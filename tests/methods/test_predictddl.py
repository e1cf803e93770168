"""PredictDDL: the hypernetwork reads, travels, writes and has learned; the system keeps a predictor per dataset type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from foretell_bench.methods.predictddl_operators import PredictDDLOperators
from foretell_bench.research.ghn import together
from foretell_bench.research.ghn.cost import OTHER, read_operators, renamed
from foretell_bench.research.ghn.generator import CLASSES, PICTURES, sample
from foretell_bench.research.ghn.hypernetwork import Hypernetwork, load
from foretell_bench.research.ghn.run import random_weights, run
from foretell_bench.research.ghn.train import Training, digits, judge, pictures, train
from foretell_bench.research.ghn.traversal import encode, network_of
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.capture import capture
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.methods.conformance import check, made_up
from foretell.methods.predictddl.ghn.architecture import KINDS, Node, paths, waves
from foretell.methods.predictddl.ghn.encoder import TRAINED, looked_up
from foretell.methods.predictddl.ghn.vocabulary import read
from foretell.methods.predictddl.method import PredictDDL, Predictor
from foretell.methods.predictddl.regressors import FORMS, choose, fit
from foretell.methods.protocol import STEP_TIME, Example, Query
from foretell.plans import Plan
from foretell.workload import Workload


def network(widths: Sequence[int], kernel: int = 3) -> Graph:
    """A small residual CNN as a captured training step."""

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            into = (3, *widths)
            self.convolutions = torch.nn.ModuleList(
                torch.nn.Conv2d(a, b, kernel, padding=kernel // 2) for a, b in zip(into, widths, strict=False)
            )
            self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(w) for w in widths)
            self.last = torch.nn.Linear(widths[-1], 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                y = torch.relu(norm(convolution(x)))
                x = x + y if x.shape == y.shape else y
            return self.last(x.mean(dim=(2, 3)))

    return capture(
        Workload(
            name=f"small-{'-'.join(map(str, widths))}-{kernel}", model=Small, samples=4,
            batch=lambda: {"x": torch.randn(4, 3, 16, 16), "y": torch.randint(10, (4,))},
            loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    shapes = [(8,), (8, 8), (16, 16, 16), (8, 32), (32, 32), (64, 64, 64)]
    return {f"small/{shape}": network(shape) for shape in shapes}


@pytest.fixture(scope="module")
def examples(graphs: dict[str, Graph]) -> list[Example]:
    """Times that follow from the work and the devices, so that a method can learn them."""
    found = []
    for name, graph in graphs.items():
        for device in ("rtx-2080-ti", "titan-xp"):
            for count in (1, 2, 4):
                query = Query(architecture=name, plan=Plan(dp=count), cluster=Cluster.parse(f"1x{count}x{device}"),
                              graph=graph, batch=4.0 * count, dataset="images")  # fmt: skip
                seconds = 1e-3 * len(graph.ops) * (1.5 if device == "titan-xp" else 1.0) * (1 + 0.1 * count)
                found.append(Example(query=query, measured={STEP_TIME: seconds}, cost=seconds))
    return found


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a hypernetwork as its training begins: the system does not depend on how far that went."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("ghn") / "untrained.safetensors"
    torch.manual_seed(0)
    save_file(Hypernetwork().state_dict(), path)
    return path


# What travels in the graph.


def a_dag(seed: int, count: int) -> tuple[Node, ...]:
    random = Random(seed)
    return tuple(
        Node(kind="sum" if i else "input", inputs=tuple(sorted(set(random.choices(range(i), k=2)))) if i else ())
        for i in range(count)
    )


@given(st.integers(0, 10_000), st.integers(2, 25))
@settings(max_examples=30, deadline=None)
def test_a_node_hears_only_of_nodes_updated_before_it_and_of_all_upstream(seed: int, count: int) -> None:
    dag = a_dag(seed, count)
    upstream: list[set[int]] = []
    for node in dag:
        upstream.append(set(node.inputs).union(*(upstream[i] for i in node.inputs)))
    forward, backward = waves([paths(dag)])
    for traversal, wanted in (
        (forward, upstream),
        (backward, [{i for i in range(count) if j in upstream[i]} for j in range(count)]),
    ):
        done: set[int] = set()
        for wave in traversal:
            heard = Counter[int]()
            for message, place in zip(wave.message, wave.place, strict=True):
                assert int(message) % count in done
                heard[int(wave.nodes[place])] += 1
            for node in wave.nodes.tolist():
                assert heard[node] == len(wanted[node])
            done |= set(wave.nodes.tolist())
        assert done == set(range(count))


def test_virtual_edges_divide_by_the_distance_and_end_at_the_reach() -> None:
    chain = tuple(Node(kind="sum" if i else "input", inputs=(i - 1,) if i else ()) for i in range(6))
    found = paths(chain, reach=3)
    assert found.distance.max() == 3
    last = waves([found])[0][-1]
    assert last.weight.tolist() == pytest.approx([1 / 3, 1 / 2, 1.0])
    assert last.message.tolist() == [2 + 6, 3 + 6, 4]  # the near one goes by the plain edge


def test_batching_networks_changes_nothing() -> None:
    batch = [sample(3), sample(4), sample(5)]
    encoder = Hypernetwork().encoder.eval()
    with torch.no_grad():
        together = encoder.embed(batch)
        alone = torch.cat([encoder.embed([a]) for a in batch])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_gradients_through_the_traversal_are_right() -> None:
    torch.manual_seed(0)
    graph = Hypernetwork().encoder.graph.double()
    traversals = waves([paths(a_dag(1, 6))])
    traversals = tuple([_doubled(w) for w in t] for t in traversals)
    states = torch.randn(6, 32, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: graph(s, traversals)[:, :2], (states,), fast_mode=True)


def _doubled(wave: object) -> object:
    from dataclasses import replace

    return replace(wave, weight=wave.weight.astype(np.float64))  # type: ignore[type-var, attr-defined]


# What is sampled, written and learned.


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(40))
def test_a_sampled_network_runs_with_written_weights(number: int) -> None:
    architecture = sample(number)
    torch.manual_seed(0)
    weights = Hypernetwork()([architecture])[0]
    fresh = random_weights(architecture, 0)
    assert {i: tuple(w.shape) for i, w in weights.items()} == {i: tuple(w.shape) for i, w in fresh.items()}
    scores = run(architecture, weights, torch.randn(3, 1, 8, 8))
    assert scores.shape == (3, CLASSES)
    assert torch.isfinite(scores).all()
    assert sample(number) == architecture


def test_the_sampler_knows_every_kind() -> None:
    assert {node.kind for number in range(200) for node in sample(number)} == set(KINDS)


def test_written_parameters_are_normalised_by_their_operator() -> None:
    torch.manual_seed(0)
    architecture = sample(1)
    weights = Hypernetwork()([architecture])[0]
    for number, weight in weights.items():
        if architecture[number].kind in ("bn", "ln"):
            assert ((weight > 0) & (weight < 2)).all()
        elif architecture[number].kind == "bias":
            assert (weight.abs() < 1).all()


def test_training_repeats_itself_also_where_it_was_interrupted(tmp_path: Path) -> None:
    straight = train(steps=2, seed=1)
    first = Training(steps=2, seed=1)
    assert not first.run(seconds=0.0)
    first._advance()
    first.save(tmp_path / "begun")
    second = Training(steps=2, seed=7)
    second.load(tmp_path / "begun")
    assert second.run()
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.network.parameters(), strict=True))


@pytest.mark.nightly
def test_the_shipped_hypernetwork_writes_weights_that_classify() -> None:
    assert TRAINED.stat().st_size < 1_000_000
    found = judge(load(), networks=40)
    assert found.generated > 0.5
    assert found.random < 0.12


def test_no_digit_is_learned_on_and_judged_by() -> None:
    data = digits()
    assert len(data.images) + len(data.test_images) == 1797
    assert 0.2 < len(data.test_images) / 1797 < 0.3


def test_missing_weights_say_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"python -m foretell_bench\.research\.ghn\.train"):
        load(tmp_path / "none.safetensors")


# How captured steps are read.


@pytest.mark.nightly
def test_a_captured_network_in_fifteen_kinds(graphs: dict[str, Graph]) -> None:
    found = read(graphs["small/(8, 8)"])
    kinds = Counter(node.kind for node in found)
    assert kinds == {"input": 1, "conv": 3, "bias": 5, "bn": 2, "sum": 1, "glob_avg": 1}
    assert [node.shape for node in found if node.kind == "conv"] == [(8, 3, 3, 3), (8, 8, 3, 3), (10, 8, 1, 1)]
    joined = next(node for node in found if node.kind == "sum")
    assert len(joined.inputs) == 2


def test_operators_are_read_with_their_work(graphs: dict[str, Graph]) -> None:
    found = read_operators(graphs["small/(8, 8)"])
    convolutions = [node for node in found if node.kind == "aten.convolution"]
    assert len(convolutions) == 2
    assert all(node.work[0] > 0 for node in convolutions)
    assert {node.kind for node in renamed(found, frozenset({"aten.convolution"}))} == {"aten.convolution", OTHER}


@pytest.mark.nightly
def test_embeddings_tell_networks_apart(graphs: dict[str, Graph], weights: Path) -> None:
    from foretell.methods.predictddl.method import Embedder

    embedder = Embedder(weights)
    a, b, same = embedder.embed([graphs["small/(8,)"], graphs["small/(32, 32)"], graphs["small/(8,)"]])
    assert a.shape == (32,)
    assert np.array_equal(a, same)
    assert np.abs(a - b).max() > 1e-3


# The regressors and the system.


@pytest.mark.parametrize("form", FORMS)
def test_each_form_answers_as_scikit_learn_does(form: str) -> None:
    from sklearn.linear_model import Ridge
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler
    from sklearn.svm import SVR

    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 4)) * [1, 10, 0.1, 1]
    y = x @ [1.0, 0.05, 0.0, -0.5] + 0.1 * x[:, 0] ** 2
    theirs = {
        "linear": [Ridge(alpha=2.0)], "polynomial": [PolynomialFeatures(2, include_bias=False), Ridge(alpha=2.0)],
        "svr": [SVR(C=2.0, epsilon=0.01, gamma=1 / 4)],
        "mlp": [MLPRegressor(hidden_layer_sizes=(32,), alpha=2.0, solver="lbfgs", max_iter=100, random_state=0)],
    }[form]  # fmt: skip
    middle = y[:50].mean() if form == "mlp" else 0.0
    wanted = make_pipeline(StandardScaler(), *theirs).fit(x[:50], y[:50] - middle).predict(x[50:]) + middle
    assert fit(x[:50], y[:50], form, 2.0).predict(x[50:]) == pytest.approx(wanted, abs=1e-6)


def test_validation_chooses_the_polynomial_where_there_is_a_product() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 3))
    y = x[:, 0] * x[:, 1]
    found = choose(x, y, [str(i % 10) for i in range(300)])
    assert found.form != "linear"
    assert found.validated < 0.3


def test_an_unseen_network_is_answered_without_a_run(examples: list[Example], weights: Path) -> None:
    seen = [e for e in examples if e.query.architecture != "small/(32, 32)"]
    unseen = [e for e in examples if e.query.architecture == "small/(32, 32)"]
    predicted = PredictDDL(weights=weights).fit(seen).predict([e.query for e in unseen])
    for prediction, example in zip(predicted, unseen, strict=True):
        assert prediction.values[STEP_TIME] == pytest.approx(example.measured[STEP_TIME], rel=0.5)


def test_the_variant_learns_too_and_repeats_itself(examples: list[Example]) -> None:
    queries = [e.query for e in examples]
    first, again = (PredictDDLOperators(epochs=20).fit(examples).predict(queries) for _ in range(2))
    assert first == again
    errors = [abs(p.values[STEP_TIME] / e.measured[STEP_TIME] - 1) for p, e in zip(first, examples, strict=True)]
    assert float(np.mean(errors)) < 0.2


def test_predictors_are_kept_by_type_and_found_again(examples: list[Example], weights: Path, tmp_path: Path) -> None:
    forms = ("linear", "svr")
    fitted = PredictDDL(folder=tmp_path, forms=forms, weights=weights).fit(examples)
    assert len(list(tmp_path.glob("images-*.safetensors"))) == 1
    query = examples[0].query
    other = PredictDDL(folder=tmp_path, weights=weights)
    assert other.predict([query]) == fitted.predict([query])
    unknown = Query(architecture="x", plan=query.plan, cluster=query.cluster, graph=query.graph, dataset="../sounds")
    answer = other.predict([unknown])[0]
    assert not answer.values
    assert "sounds" in answer.why


def test_a_request_of_an_untrained_type_starts_training_once(
    examples: list[Example], weights: Path, tmp_path: Path
) -> None:
    asked: list[str] = []

    def history(dataset: str) -> list[Example]:
        asked.append(dataset)
        return examples if dataset == "images" else []

    method = PredictDDL(folder=tmp_path, history=history, forms=("linear",), weights=weights)
    assert method.predict([examples[0].query] * 2)[0].values
    assert asked == ["images"]
    PredictDDL(folder=tmp_path, history=history, weights=weights).predict([examples[0].query])
    assert asked == ["images"]


def test_a_broken_predictor_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="no predictor"):
        Predictor.load(path)


MADE = {
    "paper": lambda weights: PredictDDL(forms=("linear", "svr"), weights=weights),
    "variant": lambda weights: PredictDDLOperators(epochs=4),
}


@pytest.mark.parametrize("which", MADE)
def test_it_conforms(which: str, weights: Path) -> None:
    assert check(lambda: MADE[which](weights))


@pytest.mark.parametrize("which", MADE)
def test_it_says_why_it_has_no_answer(which: str, examples: list[Example], weights: Path) -> None:
    method = MADE[which](weights).fit(examples)
    query = examples[0].query
    blind = Query(architecture="x", plan=query.plan, cluster=query.cluster, dataset="images")
    silent = method.predict([blind])[0]
    assert not silent.values
    assert "which network" in silent.why
    with pytest.raises(InputError, match="graphs"):
        method.fit([Example(query=blind, measured={STEP_TIME: 1.0})])


# Variants.


def test_shapes_can_be_looked_up_side_by_side() -> None:
    """As GHN-2 has it: a channel count that has no entry shares the nearest one's."""
    assert looked_up((64, 64, 3, 3)) == looked_up((66, 62, 3, 3))
    assert looked_up((64, 64, 3, 3)) != looked_up((128, 64, 3, 3))
    assert looked_up((5000,)) == looked_up((1024,))
    torch.manual_seed(0)
    looking = Hypernetwork(width=16, shapes="lookup")
    architecture = sample(3)
    weights = looking([architecture])[0]
    assert all(weights[i].shape == torch.Size(architecture[i].shape) for i in weights)


def test_what_was_looked_up_is_loaded_as_it_was_made(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    made = Hypernetwork(width=16, shapes="lookup").eval()
    save_file(made.state_dict(), tmp_path / "ghn.safetensors")
    architecture = sample(5)
    assert torch.allclose(
        load(tmp_path / "ghn.safetensors").encoder.embed([architecture]), made.encoder.embed([architecture])
    )


def test_networks_for_pictures_are_wide() -> None:
    widest = max(max(node.shape, default=0) for seed in range(60) for node in sample(seed, PICTURES))
    assert widest >= 1024
    found = pictures(80)
    assert found.images.shape[1:] == (3, 32, 32)
    assert set(found.labels.tolist()) == set(range(CLASSES))


def test_a_sum_of_states_tells_how_much_there_is_and_a_mean_does_not() -> None:
    encoder = load().encoder
    architecture = sample(3)
    mean, total, counted = (encoder.embed([architecture], pooling=p)[0] for p in ("mean", "sum", "log-count"))
    assert torch.allclose(total, mean * len(architecture), rtol=1e-4)
    assert torch.allclose(counted[:-1], mean)
    assert counted[-1].item() == pytest.approx(np.log2(len(architecture)))


def test_what_a_regressor_is_given_can_be_chosen() -> None:
    examples = made_up()
    widths = {}
    for reads in ("both", "embedding", "work"):
        method = PredictDDL(forms=("linear",), reads=reads).fit(examples)  # type: ignore[arg-type]
        widths[reads] = method._features([examples[0].query]).shape[1]
        assert method.predict([examples[0].query])[0].values
    assert widths["both"] - widths["work"] == 32  # the embedding
    assert widths["both"] - widths["embedding"] == 4  # operations, bytes of parameters and activations, ops
    assert PredictDDL(reads="embedding", trained=False).name == "PredictDDL, embedding only, random weights"
    with pytest.raises(InputError, match="reads='all' is not possible"):
        PredictDDL(reads="all")  # type: ignore[arg-type]


def test_the_nearest_network_is_itself() -> None:
    examples = made_up()
    method = PredictDDL(forms=("linear",)).fit(examples)
    (name, alike), *others = method.nearest(examples[0].query, count=4)
    assert alike == pytest.approx(1.0)
    assert all(other <= alike + 1e-9 for _, other in others)
    assert name in {e.query.architecture for e in examples}


def test_one_predictor_serves_all_types_of_data_where_they_are_pooled() -> None:
    examples = made_up()
    mixed = [replace(e, query=replace(e.query, dataset=f"kind {i % 2}")) for i, e in enumerate(examples)]
    method = PredictDDL(forms=("linear",), pooled=True).fit(mixed)
    assert len(method.checker_.at_hand) == 1
    assert method.predict([replace(mixed[0].query, dataset="a third")])[0].values


@pytest.mark.parametrize("number", [3, 11])
def test_the_traversal_with_its_gradient_written_out_is_the_encoders(number: int) -> None:
    encoder, architecture = Hypernetwork(16, "lookup").encoder, sample(number, PICTURES)
    wanted = torch.randn(len(architecture), 16)
    found = []
    for states in (lambda: encoder([architecture]), lambda: encode(encoder, network_of(architecture))):
        encoder.zero_grad()
        (states() * wanted).sum().backward()
        found.append([states().detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)])
    assert len(found[0]) == len(list(encoder.parameters())) + 1
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_processes_that_train_together_share_parameters_and_go_on(tmp_path: Path) -> None:
    copy, shared = together.begin(tmp_path, 16, seconds=100.0, budget=100.0)
    before = shared.parameters.clone()
    together.work(tmp_path, 0, "digits", 16, "cpu", seconds=1.0)
    steps = shared["step"]
    assert steps >= 1
    assert not torch.equal(shared.parameters, before)
    shared.learn(torch.full_like(before, torch.nan), 1.0, 1)  # a network that overflows teaches nothing
    assert shared["step"] == steps
    assert bool(torch.isfinite(shared.parameters).all())
    _, again = together.begin(tmp_path, 16, seconds=1.0, budget=1.0)
    assert again["step"] == steps
    assert torch.equal(again.parameters, shared.parameters)
    assert again["budget"] == 100.0
    copy.take(again.parameters)
    flat = torch.cat([p.detach().reshape(-1) for p in copy.network.parameters()])
    assert torch.equal(flat.sort().values, again.parameters.sort().values)


def test_a_quick_trial_means_one_call_and_more_networks_in_a_step(tmp_path: Path) -> None:
    _, shared = together.begin(tmp_path, 16, seconds=500.0, budget=800.0)
    together.choose(shared, rate=80.0, seconds=500.0, steps=50_000)
    assert (shared["budget"], shared["networks"]) == (800.0, 1.0)
    together.choose(shared, rate=350.0, seconds=500.0, steps=50_000)
    assert (shared["budget"], shared["networks"]) == (500.0, 3.0)
    assert together.rate_at(0.0) < together.rate_at(0.05) > together.rate_at(0.5) > together.rate_at(1.0) > 0
