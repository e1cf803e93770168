"""After ScaleDL: layers learn from timed ops, the network from whole steps, and the choice looks at shapes alone."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.graph import Graph, Layout, Op, Signature, Storage, Tensor
from foretell.hardware import Cluster
from foretell.hardware import device as known_device
from foretell.methods.conformance import check, perceptron
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Query
from foretell.methods.scaledl.features import FLOOR, Sheet, sheet_of
from foretell.methods.scaledl.layers import LayerModels, LayerSettings
from foretell.methods.scaledl.method import ScaleDL, choose, read, timed_layers
from foretell.methods.scaledl.network import NetworkSettings
from foretell.methods.scaledl.rates import divided
from foretell.plans import Plan
from foretell.precision import Precision

ALONE, H200 = Plan(), Cluster.parse("h200")
ISSUING = 8e-6  # what the made-up host pays for an op
SLOWED = 1.5  # a product that reads what an elementwise op wrote takes so much longer than one that reads a product's


def chain(tokens: int, widths: tuple[int, ...], bends: tuple[bool, ...], repeat: int = 1) -> Graph:
    """Products, some with an elementwise op behind them, and their gradients; the block may come several times."""
    ops: list[Op] = []
    tensors: list[Tensor] = []
    storages: list[Storage] = []

    def tensor(shape: tuple[int, ...], role: str) -> int:
        layout = Layout(shape, (shape[1], 1), "bfloat16")
        storages.append(Storage(layout.nbytes, role, -1, 10**6))
        tensors.append(Tensor(layout, len(storages) - 1))
        return len(tensors) - 1

    def run(target: str, phase: str, inputs: list[int], output: int) -> int:
        signature = Signature(target, tuple(tensors[i].layout for i in inputs), (tensors[output].layout,))
        ops.append(Op(signature, phase, "", tuple(inputs), (output,)))
        return output

    first = widths[0]
    flow, kept = tensor((tokens, first), "input"), []
    for _ in range(repeat):
        for width, bend in zip((*widths[1:], first), bends, strict=True):
            weight = tensor((tensors[flow].layout.shape[1], width), "parameter")
            kept.append((flow, weight))
            flow = run("aten.mm.default", "forward", [flow, weight], tensor((tokens, width), "activation"))
            if bend:
                flow = run("aten.relu.default", "forward", [flow], tensor((tokens, width), "activation"))
    back = flow
    for saved, weight in reversed(kept):
        gradient = tensor(tensors[weight].layout.shape, "gradient")
        run("aten.mm.default", "backward", [saved, back], gradient)
        back = run("aten.mm.default", "backward", [back, weight], tensor(tensors[saved].layout.shape, "temporary"))
    return Graph(
        name="chain",
        ops=tuple(ops),
        tensors=tuple(tensors),
        storages=tuple(storages),
        precision=Precision.parse("bf16"),
    )


def truth(graph: Graph, *, context: bool = True) -> list[float]:
    """Seconds of each op by a law that bends: small ops are slow, and neighbours matter."""
    device = known_device("h200")
    wrote: dict[int, str] = {}
    found = []
    for op in graph.ops:
        flops = 2 * math.prod(op.signature.inputs[0].shape) * op.signature.outputs[0].shape[-1] * (".mm" in op.target)
        size = sum(x.nbytes for x in (*op.signature.inputs, *op.signature.outputs))
        ideal = max(flops / device.peak("bf16"), size / device.bandwidth)
        seconds = 3e-6 + ideal * (1.3 + 2 / (1 + (ideal / 2e-5) ** 2))
        if context and ".mm" in op.target and wrote.get(op.inputs[0]) == "aten.relu.default":
            seconds *= SLOWED
        wrote[op.outputs[0]] = op.target
        found.append(seconds)
    return found


def example(graph: Graph, name: str, *, context: bool = True, whole: bool = True) -> Example:
    ops = truth(graph, context=context)
    device, host = sum(ops), ISSUING * len(ops)
    query = Query(architecture=name, plan=ALONE, cluster=H200, graph=graph, settings={"batch": "1"})
    measured = {DEVICE_TIME: device, STEP_TIME: max(device, host)} if whole else {}
    return Example(query=query, measured=measured, cost=0.5 + 20 * max(device, host), ops=ops)


def drawn(count: int, seed: int, **options: bool) -> list[Example]:
    draw = np.random.default_rng(seed)
    made = []
    for i in range(count):
        depth = int(draw.integers(2, 6))
        widths = tuple(int(w) for w in 2 ** draw.integers(6, 12, depth))
        graph = chain(int(2 ** draw.integers(5, 13)), widths, tuple(draw.uniform(size=depth) < 0.5))
        made.append(example(graph, f"net{seed}-{i}", **options))
    return made


def small(**network: object) -> ScaleDL:
    return ScaleDL(
        layers=LayerSettings(width=24, epochs=30, batch=64, rate=1e-2),
        network=NetworkSettings(**({"width": 16, "epochs": 15, "batch": 4, "rate": 1.5e-2} | network)),  # type: ignore[arg-type]
        parts=1,
    )


@pytest.fixture(scope="module")
def seen() -> list[Example]:
    return drawn(50, 0)


@pytest.fixture(scope="module")
def unseen() -> list[Example]:
    return drawn(30, 1)


@pytest.fixture(scope="module")
def fitted(seen: list[Example]) -> ScaleDL:
    return small().fit(seen)


@pytest.fixture(scope="module")
def additive(seen: list[Example], fitted: ScaleDL) -> ScaleDL:
    """The same layers, and no network."""
    method = small(rounds=0)
    method.layer_models_ = fitted.layer_models_
    return method.with_layers([read(e) for e in seen])


def error(method: ScaleDL, examples: list[Example], target: str) -> float:
    predicted = method.predict([e.query for e in examples])
    return float(
        np.mean([abs(p.values[target] / e.measured[target] - 1) for p, e in zip(predicted, examples, strict=True)])
    )


@pytest.mark.nightly
def test_without_the_network_it_is_the_sum_of_its_layers(additive: ScaleDL, unseen: list[Example]) -> None:
    models = additive.layer_models_
    assert models is not None
    for e, predicted in zip(unseen, additive.predict([e.query for e in unseen]), strict=True):
        sheet = sheet_of(e.query)
        total = models.seconds(sheet.layers)[sheet.layer] @ sheet.runs
        assert predicted.values[DEVICE_TIME] == pytest.approx(total, rel=1e-4)
        assert predicted.values[STEP_TIME] == pytest.approx(total, rel=1e-4)


@pytest.mark.nightly
def test_the_network_learns_what_layers_alone_cannot(unseen: list[Example], fitted: ScaleDL, additive: ScaleDL) -> None:
    """The same product takes half as long again behind an elementwise op, and small steps wait for the host."""
    assert error(fitted, unseen, DEVICE_TIME) < 0.75 * error(additive, unseen, DEVICE_TIME)
    assert error(fitted, unseen, STEP_TIME) < 0.25
    assert error(additive, unseen, STEP_TIME) > 2 * error(fitted, unseen, STEP_TIME)


def test_with_its_edges_cut_the_network_cannot_see_neighbours(seen: list[Example]) -> None:
    """Heads, sizes and training are the same: what is lost is what messages are worth."""
    pages = [read(e) for e in seen[:12]]
    cut, whole = (small(epochs=3, messages=messages).with_layers(pages) for messages in (False, True))
    behind = chain(256, (512, 512), (True, True))  # every product but the first reads what an elementwise op wrote
    alone = chain(256, (512, 512), (False, False))
    for method, differs in ((cut, False), (whole, True)):
        assert method.across_ is not None
        found = [_changes(method, graph) for graph in (behind, alone)]
        assert (abs(found[0] - found[1]) > 1e-3) is differs


def _changes(method: ScaleDL, graph: Graph) -> float:
    """What the network makes of the second product of a chain."""
    sheet = sheet_of(Query(architecture="x", plan=ALONE, cluster=H200, graph=graph))
    products = [i for i, op in enumerate(graph.ops) if op.phase == "forward" and ".mm" in op.target]
    assert method.across_ is not None
    assert method.across_.network_ is not None
    data = method.across_._data(every_op(graph, sheet), np.array([1e-5] * len(sheet.layers)))
    from torch_geometric.data import Batch

    changed, _ = method.across_.network_._heads(Batch.from_data_list([data]), Batch.from_data_list([data]).seconds)
    return float(changed[products[1]].detach())


def test_a_rank_runs_its_part_and_waits_for_its_collectives() -> None:
    graph = chain(256, (512, 1024), (True, False))

    def read_on(plan: str, cluster: str) -> Sheet:
        asked = Query(architecture="x", plan=Plan.parse(plan), cluster=Cluster.parse(cluster), graph=graph, batch=8.0)
        return sheet_of(asked)

    alone, several = read_on("dp=1", "h200"), read_on("dp=4", "4xh200")
    assert not alone.shares
    assert several.shares
    exchanges = [layer for layer in several.layers if layer.communicates]
    assert sum(layer.traffic for layer in exchanges) == graph.bytes_of("parameter")
    number = several.layers.index(exchanges[0])
    [node] = np.flatnonzero(several.layer == number).tolist()
    assert node in several.before[1]  # some op makes its data ready
    twice = read_on("dp=4,grad_accumulation=2", "4xh200")
    assert twice.times.sum() == 2 * several.times.sum()  # all ops here are of forward and backward passes
    assert [r for r, n in zip(twice.runs, twice.layer, strict=True) if twice.layers[n].communicates] == [1] * len(
        exchanges
    )
    slow = read_on("dp=4", "4x1xh200@eth-10g")
    assert slow.layers[number].roofline > 10 * exchanges[0].roofline


@pytest.mark.parametrize(("wrong", "strength"), [(0.0, 1.0), (math.log(2.0), 0.5), (5.0, 0.0)])
def test_the_network_is_no_stronger_than_holds_on_what_it_has_not_seen(
    monkeypatch: pytest.MonkeyPatch, wrong: float, strength: float
) -> None:
    """Of a network that changes every time by the same factor, as much stays as is right."""
    made = [read(e) for e in drawn(10, 3)]
    right = {id(p): np.nan_to_num(p.seconds, nan=1e-6) for p in made}

    class Doubles:
        strength = 1.0

        def predict(self, sheets: list[Sheet], seconds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            sums = np.array([s[sheet.layer] @ sheet.runs for s, sheet in zip(seconds, sheets, strict=True)])
            off = 0.5 * math.exp(self.strength * 2 * wrong) if wrong < 1 else math.exp(self.strength * wrong)
            return (sums * off if wrong else sums * 1.5 / (1 + self.strength / 2)), sums

    monkeypatch.setattr(ScaleDL, "_trained", lambda *_: Doubles())
    parts = {p.architecture: i % 5 for i, p in enumerate(made)}
    assert small()._strength(made, right, parts) == strength


def test_layers_bend_where_a_line_cannot() -> None:
    layers, seconds, weight = timed_layers([read(e) for e in drawn(50, 0, context=False)])
    others, wanted, _ = timed_layers([read(e) for e in drawn(20, 2, context=False)])
    errors = {}
    for shape in ("mlp", "linear"):
        settings = LayerSettings(shape=shape, width=24, epochs=30, batch=64, rate=1e-2)  # type: ignore[arg-type]
        predicted = LayerModels(settings).fit(layers, seconds, weight).seconds(others)
        errors[shape] = float(np.mean(np.abs(predicted / wanted - 1)))
    assert errors["mlp"] < 0.08
    assert errors["mlp"] < 0.5 * errors["linear"]


def test_forward_and_backward_have_models_of_their_own(fitted: ScaleDL) -> None:
    assert fitted.layer_models_ is not None
    assert {"matmul, forward", "matmul, backward"} <= set(fitted.layer_models_.kinds_)


def test_classes_of_ops_lose_nothing(fitted: ScaleDL) -> None:
    """The network over classes predicts what the network over every op predicts."""
    graph = chain(256, (512, 1024), (True, False), repeat=10)
    query = Query(architecture="deep", plan=ALONE, cluster=H200, graph=graph)
    sheet = sheet_of(query)
    assert len(sheet.layer) < 0.6 * len(graph.ops)
    assert sheet.runs.sum() == len(graph.ops)
    whole = every_op(graph, sheet)
    for short, full in zip(fitted.seconds([sheet]), fitted.seconds([whole]), strict=True):
        assert short == pytest.approx(full, rel=1e-4)


def every_op(graph: Graph, sheet: Sheet) -> Sheet:
    writer: dict[int, int] = {}
    edges = []
    for i, op in enumerate(graph.ops):
        edges += [(writer[t], i) for t in op.inputs if t in writer]
        writer |= dict.fromkeys(op.outputs, i)
    pairs = np.array(edges).T
    return replace(sheet, layer=sheet.of_op, runs=np.ones(len(graph.ops)), before=pairs, after=pairs[::-1].copy())


def test_a_micro_step_counts_as_often_as_it_runs() -> None:
    graph = chain(64, (64, 128), (True, False))
    twice = replace(graph, ops=tuple(replace(op, times=2) for op in graph.ops))
    once, double = (sheet_of(Query(architecture="x", plan=ALONE, cluster=H200, graph=g)) for g in (graph, twice))
    assert double.runs.sum() == 2 * once.runs.sum()


@pytest.mark.nightly
def test_it_learns_from_totals_where_no_op_was_timed(seen: list[Example], unseen: list[Example]) -> None:
    totals = [replace(e, ops=()) for e in seen]
    blind = small(rounds=0).fit(totals)
    method = small().fit(totals)
    assert method.layer_models_ is not None  # of steps, divided among their layers
    assert error(method, unseen, STEP_TIME) < 0.5 * error(blind, unseen, STEP_TIME)


def test_whole_steps_are_divided_among_their_layers_by_kind() -> None:
    """Calls and rooflines cost three and seven times more than they should; one kind of layer twice as much again."""
    sheets = [
        sheet_of(Query(architecture="net", plan=Plan(), cluster=Cluster.parse("h200"), graph=perceptron(width, layers=n, batch=b)))
        for width in (256, 1024, 2048) for n in (2, 5, 9) for b in (64, 1024, 4096)
    ]  # fmt: skip
    dear = max((layer for layer in sheets[-1].layers), key=lambda layer: layer.roofline).kind

    def truth(sheet: Sheet) -> list[float]:
        return [(2 if x.kind == dear else 1) * (3 * FLOOR + 7 * x.roofline) for x in sheet.layers]

    runs = [np.bincount(s.layer, s.runs, len(s.layers)) for s in sheets]
    found = divided(sheets, [float(np.dot(truth(s), r)) for s, r in zip(sheets, runs, strict=True)])
    given = wanted = 0.0
    for sheet, own, often in zip(sheets, found, runs, strict=True):
        assert own @ often == pytest.approx(np.dot(truth(sheet), often), rel=0.1)
        mine = [x.kind == dear for x in sheet.layers]
        given, wanted = given + (own * often)[mine].sum(), wanted + (np.array(truth(sheet)) * often)[mine].sum()
    assert given == pytest.approx(wanted, rel=0.25)


def test_ops_that_were_measured_alone_teach_layers_and_not_the_network(seen: list[Example]) -> None:
    alone = drawn(40, 5, whole=False)
    method = small(rounds=0).fit([*seen[:3], *alone])
    few = small(rounds=0).fit(seen[:3])
    assert error(method, seen, DEVICE_TIME) < error(few, seen, DEVICE_TIME)


@pytest.mark.nightly
def test_communication_is_learned_from_steps_on_several_devices(seen: list[Example], unseen: list[Example]) -> None:
    def on_several(examples: list[Example]) -> list[Example]:
        made = list(examples)
        for workers in (2, 4, 8):
            cluster = Cluster.parse(f"{workers}xh200")
            link = cluster.nodes[0].inside.bandwidth
            for e in examples[::2]:
                assert e.query.graph is not None
                nbytes = e.query.graph.bytes_of("parameter")
                extra = 3 * 2 * (workers - 1) / workers * nbytes / link + 2e-4
                query = replace(e.query, plan=Plan(dp=workers), cluster=cluster, batch=float(workers))
                made.append(replace(e, query=query, measured={STEP_TIME: e.measured[STEP_TIME] + extra}, ops=()))
        return made

    method = small(epochs=8).fit(on_several(seen[:32]))
    several = [e for e in on_several(unseen) if e.query.plan.dp > 1]
    assert error(method, several, STEP_TIME) < 0.25
    deaf = [replace(e, query=replace(e.query, plan=ALONE, cluster=H200)) for e in several]
    assert error(method, deaf, STEP_TIME) > 1.3 * error(method, several, STEP_TIME)


def test_it_forgets_and_repeats(seen: list[Example], fitted: ScaleDL) -> None:
    queries = [e.query for e in seen[:3]]
    quick = NetworkSettings(width=8, epochs=2, batch=4)
    settings = LayerSettings(width=8, epochs=2)
    first = ScaleDL(layers=settings, network=quick).fit(seen[:20])
    again = ScaleDL(layers=settings, network=quick).fit(seen[20:40]).fit(seen[:20])
    assert first.predict(queries) == again.predict(queries)


def test_it_keeps_to_the_protocol() -> None:
    quick = NetworkSettings(width=8, epochs=2, batch=4)
    assert check(lambda: ScaleDL(layers=LayerSettings(width=8, epochs=2), network=quick))


def test_it_travels(fitted: ScaleDL, unseen: list[Example]) -> None:
    queries = [e.query for e in unseen[:3]]
    assert pickle.loads(pickle.dumps(fitted)).predict(queries) == fitted.predict(queries)


def test_what_it_cannot_answer_is_said(fitted: ScaleDL, seen: list[Example]) -> None:
    blind = replace(seen[0].query, graph=None)
    predicted = fitted.predict([blind, seen[0].query])
    assert predicted[0].values == {}
    assert "graph" in predicted[0].why
    assert predicted[1].values
    with pytest.raises(InputError, match="no example has a graph"):
        small().fit([replace(seen[0], query=blind)])
    with pytest.raises(InputError, match="no example has a step or device time"):
        small().fit([replace(seen[0], measured={})])
    with pytest.raises(InputError, match="fit"):
        small().predict([seen[0].query])
    with pytest.raises(InputError, match="one time for each op"):
        read(replace(seen[0], ops=[1e-5]))
    with pytest.raises(InputError, match="rounds of messages"):
        NetworkSettings(rounds=9)


def test_an_operator_nobody_measured_has_a_price(fitted: ScaleDL) -> None:
    graph = chain(256, (512, 1024), (True, False))
    odd = replace(graph.ops[1].signature, target="aten._fft_r2c.default")
    strange = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], signature=odd), *graph.ops[2:]))
    [predicted] = fitted.predict([Query(architecture="x", plan=ALONE, cluster=H200, graph=strange)])
    assert 0 < predicted.values[DEVICE_TIME] < 1


def test_a_step_that_launches_nothing_takes_next_to_nothing(fitted: ScaleDL) -> None:
    empty = replace(chain(64, (64, 128), (True, False)), ops=())
    [predicted] = fitted.predict([Query(architecture="x", plan=ALONE, cluster=H200, graph=empty)])
    assert 0 < predicted.values[DEVICE_TIME] < 1e-6


@pytest.mark.parametrize("by", ["d-optimal", "random"])
def test_what_is_chosen_fits_the_budget_and_depends_on_shapes_alone(seen: list[Example], by: str) -> None:
    device = known_device("h200")
    chosen = choose(seen, device, 5.0, by=by)  # type: ignore[arg-type]
    assert len(set(chosen)) == len(chosen) > 0
    assert sum(seen[i].cost for i in chosen) <= 5.0
    others = [replace(e, measured={}, ops=()) for e in seen]
    assert choose(others, device, 5.0, by=by) == chosen  # type: ignore[arg-type]


def test_d_optimal_points_cover_more_shapes_than_random_ones_of_equal_cost(seen: list[Example]) -> None:
    device = known_device("h200")

    def widest(chosen: list[int]) -> float:
        pages = [read(seen[i]) for i in chosen]
        table = np.array([[x.values[c] for c in ("flops", "read", "written")] for p in pages for x in p.sheet.layers])
        return float(np.linalg.slogdet(np.cov(table.T))[1])

    best = widest(choose(seen, device, 4.0))
    assert best > np.mean([widest(choose(seen, device, 4.0, by="random", seed=s)) for s in range(5)])
