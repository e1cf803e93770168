"""DNNAbacus: the matrix counts what flows, and trees tell steps apart by it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from foretell.methods.conformance import made_up, perceptron
from foretell.methods.dnnabacus import DNNAbacus, network, structural_matrix
from foretell.methods.protocol import MEMORY, STEP_TIME


def test_the_matrix_follows_tensors_and_not_the_order_of_calls() -> None:
    edges = structural_matrix(perceptron(64, layers=3, batch=8))
    assert edges["mm", "relu"] == 3  # each product feeds its own ReLU
    assert edges["relu", "mm"] == 3  # two go into the next layer, the last into the backward pass
    assert ("relu", "relu") not in edges  # though they follow each other where a product is between
    assert edges["mm", "add_"] == 3  # gradients


def test_deeper_networks_have_more_of_the_same_edges() -> None:
    shallow, deep = (structural_matrix(perceptron(64, layers=n, batch=8)) for n in (2, 6))
    assert deep["mm", "relu"] == 3 * shallow["mm", "relu"]


def test_totals_are_those_of_the_graph() -> None:
    row = network(perceptron(64, layers=2, batch=8))
    assert row["parameters"] == pytest.approx(math.log1p(2 * 64 * 64 * 4))
    assert row["precision fp32"] == 1


def test_seen_steps_are_known_in_time_and_memory() -> None:
    examples = made_up()
    answers = DNNAbacus().fit(examples).predict([e.query for e in examples])
    for target in (STEP_TIME, MEMORY):
        off = [abs(a.values[target] / e.measured[target] - 1) for a, e in zip(answers, examples, strict=True)]
        assert sum(off) / len(off) < 0.25


def test_without_a_graph_it_says_why() -> None:
    examples = made_up()
    [answer] = DNNAbacus().fit(examples).predict([replace(examples[0].query, graph=None)])
    assert not answer.values
    assert "which was run" in answer.why
