"""After Driple: its graph, its network and what it learns."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from foretell.errors import InputError
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.methods import conformance
from foretell.methods.driple.features import coarse, corpus, node_features, typed
from foretell.methods.driple.method import RELEASED, STEP_TIME, TUNED, TWELVE, Driple, DripleSettings, Epoch, setting_of
from foretell.methods.driple.network import (
    FROZEN,
    GROUPS_OF_PARAMETERS,
    KINDS,
    Network,
    Shape,
    _pooled,
    _weighed,
    ways_of,
)
from foretell.methods.protocol import Example, Query
from foretell.plans import Plan

QUICK = DripleSettings(groups=8, rounds=4, readings=3, epochs=20, patience=20)
SLOW, FAST, OTHER = 125e6, 1.25e9, 3.125e9  # bytes per second
LINKS = {SLOW: "eth-1g", FAST: "eth-10g", OTHER: "eth-25g"}


@cache
def graphs() -> tuple[Graph, ...]:
    """Chains of products of different depth and width."""
    return tuple(
        conformance.perceptron(width, layers=layers, batch=8) for width in (64, 128, 256) for layers in (2, 4, 6)
    )


def examples(rate: float = SLOW, targets: Sequence[str] = (STEP_TIME, "network_tx_peak")) -> list[Example]:
    """Steps whose time grows with the graph, over links of a rate."""
    found = []
    for i, graph in enumerate(graphs()):
        size = sum(op.signature.outputs[0].numel for op in graph.ops if op.signature.outputs)
        values = {STEP_TIME: 1e-7 * size + 1e6 / rate, "network_tx_peak": rate, "device_peak": 1.0}
        query = Query(
            architecture=f"net{i}", plan=Plan(dp=2), cluster=Cluster.parse(f"2x1xcpu@{LINKS[rate]}"), graph=graph
        )
        found.append(Example(query=query, measured={t: values[t] for t in targets}))
    return found


def test_the_network_has_the_parameters_of_the_release() -> None:
    count = sum(p.numel() for p in Network(Shape(), targets=12).parameters())
    # GCN 3→64 and 64→64, GRU 64, the LSTM of Set2Set 128→64, dense 128→64→64→12
    assert count == 256 + 4160 + 24960 + 49664 + 8256 + 4160 + 780


def test_groups_hold_every_op_of_the_largest_part_once() -> None:
    graph = max(graphs(), key=lambda g: len(g.ops))
    fine, few = coarse(graph), coarse(graph, 4)
    assert few.nodes == 4 < fine.nodes
    for part in (fine, few):
        assert all(a < b for a, b in part.edges)  # undirected: once, and none to itself
    assert sum(sum(ops.values()) for ops in few.operators) == sum(sum(ops.values()) for ops in fine.operators)
    assert sum(few.sizes) == sum(fine.sizes)
    assert coarse(graph, 4) == few


def test_a_typed_graph_keeps_every_op_and_its_direction() -> None:
    graph = graphs()[0]
    whole = typed(graph)
    assert whole.nodes == len(graph.ops)
    assert whole.directed
    assert all(writer < reader for writer, reader in whole.edges)


def test_features_are_size_count_and_frequency_in_the_corpus() -> None:
    some = [coarse(g, 4) for g in graphs()]
    often = corpus(some)
    assert sum(often.values()) == pytest.approx(1.0)
    size, count, frequency = np.expm1(node_features(some[0], often)).T
    assert size == pytest.approx(some[0].sizes)
    assert count == pytest.approx([sum(ops.values()) for ops in some[0].operators])
    assert frequency == pytest.approx(
        [1e3 * sum(n * often[name] for name, n in ops.items()) for ops in some[0].operators]
    )
    unknown = node_features(some[0], {})
    assert not unknown[:, 2].any()  # operators that the corpus does not have


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "graph"), [*((kind, "coarse") for kind in KINDS), ("gcn", "typed"), ("mpnn", "typed")]
)
def test_every_variant_learns(kind: str, graph: str) -> None:
    known = examples()
    chosen = dataclasses.replace(QUICK, kind=kind, graph=graph, validated=0.0)
    begin, end = (Driple(dataclasses.replace(chosen, epochs=epochs)).fit(known) for epochs in (1, 20))
    assert loss(end, known) < 0.3 * loss(begin, known)


def loss(method: Driple, known: Sequence[Example]) -> float:
    """Mean square of errors, as a share of the largest."""
    predicted = method.predict([e.query for e in known])
    largest = {t: max(e.measured[t] for e in known) for t in known[0].measured}
    errors = [
        (p.values[t] - e.measured[t]) / largest[t] for p, e in zip(predicted, known, strict=True) for t in largest
    ]
    return float(np.mean(np.square(errors)))


def test_a_target_that_was_not_measured_is_absent() -> None:
    method = Driple(QUICK).fit([*examples(SLOW), *examples(FAST, ("device_peak", STEP_TIME))])
    [slow] = method.predict([examples(SLOW)[0].query])
    [fast] = method.predict([examples(FAST)[0].query])
    assert set(slow.values) == {STEP_TIME, "network_tx_peak"}
    assert set(fast.values) == {STEP_TIME, "device_peak"}
    assert set(TWELVE) > {"network_tx_peak", "device_peak"}


def test_an_unknown_setting_says_why() -> None:
    method = Driple(QUICK).fit(examples(SLOW))
    [answer] = method.predict([examples(OTHER)[0].query])
    assert not answer.values
    assert "no network of the setting dp=2 on 2xcpu@25000Mbit/s" in answer.why


def test_a_partly_measured_target_is_learned_from_those_that_have_it() -> None:
    some = [
        e if i else dataclasses.replace(e, measured={STEP_TIME: e.measured[STEP_TIME]})
        for i, e in enumerate(examples())
    ]
    answer = Driple(QUICK).fit(some).predict([some[0].query])[0]
    assert answer.values["network_tx_peak"] == pytest.approx(SLOW, rel=0.5)


def test_layers_end_as_those_of_the_release_do() -> None:
    """GCN: leaky ReLU of D^-1/2 (A + I) D^-1/2 X W + b. GAT: ELU. GIN: (1 + ε) with ε = 0.1 learned, two layers, ReLU."""
    x = torch.randn(5, 64)
    data = Data(x=x, edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    ways = ways_of(Batch.from_data_list([data]), directed=False)
    found = {
        kind: Network(Shape(kind=kind, rounds=2, readings=1), targets=1).early(x, ways)
        for kind in ("gcn", "gat", "gin")
    }
    near = torch.zeros(5, 5)
    near[data.edge_index[0], data.edge_index[1]] = 1
    near = near + near.T
    gcn = Network(Shape(rounds=2, readings=1), targets=1).early
    scale = torch.diag((near.sum(1) + 1) ** -0.5)
    [layer] = gcn.along
    plain = scale @ (near + torch.eye(5)) @ scale @ x @ layer.lin.weight.T + layer.bias
    assert torch.allclose(gcn(x, ways), torch.nn.functional.leaky_relu(plain), atol=1e-5)
    assert found["gat"].min() > -1  # what an ELU lets through
    assert (found["gat"] < 0).any()
    assert (found["gin"] >= 0).all()
    [gin] = Network(Shape(kind="gin"), targets=1).early.along
    assert gin.eps.item() == pytest.approx(0.1)
    assert gin.eps.requires_grad


def test_layers_and_readings_give_what_the_librarys_do() -> None:
    """They are written out here, since the library's take longer to call than to compute."""
    torch.manual_seed(0)
    sizes = (3, 7, 1)  # graphs of other sizes, one of them without an edge
    chains = [torch.tensor([[i, i + 1] for i in range(n - 1)], dtype=torch.long).reshape(-1, 2).T for n in sizes]
    batch = Batch.from_data_list([Data(x=torch.randn(n, 3), edge_index=c) for n, c in zip(sizes, chains, strict=True)])
    [way] = ways_of(batch, directed=False)
    network = Network(Shape(rounds=2, readings=4), targets=2)
    [layer] = network.embed.along
    torch.testing.assert_close(_weighed(layer, batch.x, way), layer(batch.x, way.looped, way.weights))
    state = torch.randn(sum(sizes), 64)
    torch.testing.assert_close(_pooled(network.pool, state, batch), network.pool(state, batch.batch))


def test_who_watches_is_told_the_error_of_validation_and_it_stops_by_it() -> None:
    told: list[Epoch] = []
    chosen = dataclasses.replace(QUICK, epochs=200, patience=3, updates=None, rate=3e-2)
    method = Driple(chosen).fit(examples(), told.append)
    errors = [epoch.validated for epoch in told]
    assert all(error is not None for error in errors)
    assert [epoch.number for epoch in told] == list(range(1, len(told) + 1))
    assert len(told) < 200
    assert len(told) - 1 - int(np.argmin(errors)) == 3  # as long as patience lasts after the best
    assert method.predict([examples()[0].query])[0].values


def test_as_released_it_has_50_rounds_on_100_groups() -> None:
    shape = RELEASED.shape(4000, ())
    assert (shape.rounds, shape.readings) == (50, 100)
    assert (RELEASED.epochs, RELEASED.patience, RELEASED.updates) == (10_000, 1_000, None)


# Transfer.


def state(method: Driple, setting: str) -> dict[str, list[torch.Tensor]]:
    groups = method.fitted_[setting].network.groups()
    return {name: [p.detach().clone() for p in parameters] for name, parameters in groups.items()}


@pytest.mark.parametrize("tune", [TUNED, GROUPS_OF_PARAMETERS, ("readout",), ("late",)])
def test_exactly_the_named_groups_change(tune: tuple[str, ...]) -> None:
    here, there = examples(SLOW), examples(FAST)
    source, target = setting_of(here[0].query), setting_of(there[0].query)
    method = Driple(dataclasses.replace(QUICK, epochs=3, validated=0.0)).fit(here)
    before = state(method, source)
    before["late"] = before["early"]  # it begins as the shared one
    method.transfer(there, source, tune)
    after = state(method, target)
    changed = {
        name for name in GROUPS_OF_PARAMETERS
        if any(not torch.equal(a, b) for a, b in zip(before[name], after[name], strict=True))
    }  # fmt: skip
    assert changed == set(tune)
    assert all(
        torch.equal(a, b)
        for n in before
        if n != "late"
        for a, b in zip(before[n], state(method, source)[n], strict=True)
    )


def test_the_groups_hold_every_parameter_once() -> None:
    network = Network(Shape(rounds=4, readings=2, types=5), targets=3)
    network.part()
    found = [id(p) for parameters in network.groups().values() for p in parameters]
    assert sorted(found) == sorted(id(p) for p in network.parameters())
    assert set(FROZEN) | set(TUNED) == set(GROUPS_OF_PARAMETERS)


def test_frozen_rounds_gone_through_once_give_the_same_network() -> None:
    """What is kept of frozen rounds is what they would give each time."""
    here, there = examples(SLOW), examples(FAST)
    source = setting_of(here[0].query)
    method = Driple(dataclasses.replace(QUICK, epochs=3)).fit(here)
    method.transfer(there, source)
    fitted = method.fitted_[setting_of(there[0].query)]
    batch = method.batch_of(fitted, [e.query for e in there])
    apart = torch.cat([fitted.network.begin(*method.batch_of(fitted, [e.query])) for e in there])
    assert torch.allclose(fitted.network.end(apart, *batch), fitted.network(*batch), atol=1e-5)


def test_a_name_that_is_no_group_is_refused() -> None:
    method = Driple(dataclasses.replace(QUICK, epochs=1)).fit(examples(SLOW))
    with pytest.raises(InputError, match=r"parameter group='redout' is not possible. Did you mean 'readout'"):
        method.transfer(examples(FAST), setting_of(examples(SLOW)[0].query), ("redout",))
    with pytest.raises(InputError, match="no network of the setting 'elsewhere'"):
        method.transfer(examples(FAST), "elsewhere")


# Kept with the model.


def test_scalers_travel_with_the_model() -> None:
    method = Driple(QUICK).fit(examples())
    queries = [e.query for e in examples()]
    read = pickle.loads(pickle.dumps(method))
    assert read.predict(queries) == method.predict(queries)
    [fitted] = read.fitted_.values()
    assert fitted.largest == (SLOW, max(e.measured[STEP_TIME] for e in examples()))


def test_it_keeps_to_the_protocol() -> None:
    conformance.check(lambda: Driple(dataclasses.replace(QUICK, epochs=4)))


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"kind='gnn' is not possible. Did you mean"):
        Driple(dataclasses.replace(QUICK, kind="gnn")).fit(examples())
    with pytest.raises(InputError, match="graph='rough' is not possible"):
        DripleSettings(graph="rough")
