"""What the host may know of integers that a compiled piece makes: those that follow from known ones alone.

A compiled piece is recorded as kernels, whose results nobody computes. Lengths that one makes of a batch are read between
two pieces, though, and shape what follows: these are computed for real, as outside compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from foretell.capture.values import contents_of

_MAX_NUMBERS: Final = 2**20  # numbers of one tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Integers among a graph's outputs that follow from its inputs: by place, which nodes make them."""

    nodes: tuple[torch.fx.Node, ...]  # in order
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[tuple[int, torch.fx.Node], ...]

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> Followed:
        (made,) = graph.output_node().args
        wanted = [(place, node) for place, node in enumerate(_listed(made)) if _is_of_integers(node)]
        kept = [(place, node) for place, node in wanted if all(map(_is_followed, _needed(node)))]
        needed = {each for _, node in kept for each in _needed(node)}
        return cls(
            nodes=tuple(node for node in graph.nodes if node in needed and node.op != "placeholder"),
            inputs=tuple(graph.find_nodes(op="placeholder")) if kept else (),  # or they would keep the graph alive
            outputs=tuple(kept),
        )

    def contents(self, arguments: Sequence[Any]) -> dict[int, torch.Tensor]:
        """What is known to be made, by its place among the outputs."""
        if not self.outputs:
            return {}
        given = [contents_of(each) if isinstance(each, torch.Tensor) else each for each in arguments]
        known: dict[Any, Any] = {
            node: value for node, value in zip(self.inputs, given, strict=True) if value is not None
        }
        with _disable_current_modes():
            for node in self.nodes:
                if all(each in known for each in node.all_input_nodes):
                    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
                    known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return {place: known[node] for place, node in self.outputs if node in known}


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def _is_of_integers(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (
        isinstance(value, torch.Tensor)
        and not (value.is_floating_point() or value.is_complex())
        and value.numel() <= _MAX_NUMBERS
    )


def _needed(node: torch.fx.Node) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    left = [node]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += one.all_input_nodes
    return found


def _is_followed(node: torch.fx.Node) -> bool:
    """Operators that any machine computes, of little."""
    if node.op == "placeholder":
        return True
    operator, made = node.target, pytree.tree_leaves(node.meta.get("val"))
    return (
        isinstance(operator, OpOverload)
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and all(isinstance(each, torch.Tensor) and each.numel() <= _MAX_NUMBERS for each in made)
    )
