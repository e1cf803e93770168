"""Networks nobody named: a seed says everything, and says it the same way every time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from foretell.design.generated import KINDS, kind_of
from foretell.errors import SourceError
from foretell.graph import Graph
from foretell.sources.named import workload_function

FIRST_OF_A_KIND = {kind_of(seed): seed for seed in reversed(range(40))}


def test_every_kind_is_drawn() -> None:
    assert FIRST_OF_A_KIND.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_seed_builds_the_same_network_every_time(kind: str) -> None:
    shapes = []
    for _ in range(2):
        workload = workload_function("generated", str(FIRST_OF_A_KIND[kind]))()
        with torch.device("meta"):
            shapes.append([(name, p.shape) for name, p in workload.model().named_parameters()])
    assert shapes[0] == shapes[1]
    assert shapes[0]


def test_settings_override_what_was_drawn(capture_in_child: Callable[..., Graph]) -> None:
    source = f"generated/{FIRST_OF_A_KIND['tables']}"
    graph = capture_in_child(source, batch="4", precision="fp32", optimizer="sgd")
    assert (graph.samples, graph.precision.name, graph.training) == (4, "fp32", True)
    assert capture_in_child(source, batch="4", optimizer="none").training is False


def test_a_seed_that_is_none() -> None:
    with pytest.raises(SourceError, match="generated"):
        workload_function("generated", "-1")
