"""What is drawn at random in a forward pass and again as it is recomputed (checkpoints): operators called with a generator.

On a GPU the compiler calls such an operator with a generator of its own, whose state stays on the device, and lowers that
call freely. A build without CUDA has no such generator: the compiler would save the states of a CPU's, as tensors.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._functorch import partitioners
from torch._prims.rng_prims import graphsafe_run_with_rng_state

from foretell.capture.compiled.recorder import CompiledRecorder

WITH_A_GENERATOR: Final = graphsafe_run_with_rng_state  # called with an operator and what that is given


def draw_again_as_on_a_gpu() -> None:
    """In this process, from now on."""
    vars(partitioners)["functionalize_rng_ops"] = _with_generators
    if CompiledRecorder not in WITH_A_GENERATOR.python_key_table:
        WITH_A_GENERATOR.py_impl(CompiledRecorder)(_traced)


def _traced(recorder: CompiledRecorder, operator: Any, *args: Any, rng_state: None = None, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def _with_generators(
    joint: torch.fx.GraphModule, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, symbols: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Both passes with what both of them draw wrapped; the generators themselves have no size that would matter."""
    again = {node.name for node in joint.graph.nodes if partitioners.must_recompute(node) and _draws(node)}
    again &= {node.name for node in forward.graph.nodes if _draws(node)}
    again &= {node.name for node in backward.graph.nodes if _draws(node)}
    for graph in (forward.graph, backward.graph):
        for node in [node for node in graph.nodes if node.name in again]:
            node.args, node.target = (node.target, *node.args), WITH_A_GENERATOR
    forward.recompile()
    backward.recompile()
    return forward, backward


def _draws(node: Any) -> bool:
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
