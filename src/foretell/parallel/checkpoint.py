"""Activation checkpointing: a unit's activations are dropped after its forward pass and recomputed for its backward.

Units are the repeated blocks, one or several at a time, a fraction of them, or parts of them. `selective-op` recomputes
blocks except for what is dear: every other product, attention, and sums that are scattered, as torchtitan does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from foretell.errors import PlanError
from foretell.graph import Graph
from foretell.graph.operators import operator_of
from foretell.parallel.attention import attention_unit, attentions
from foretell.parallel.blocks import Pass, Span, blocks, passes
from foretell.parallel.cheapest import cheapest_units
from foretell.parallel.flow import Flow
from foretell.parallel.parts import part_units
from foretell.parallel.pipeline import Weigh
from foretell.parallel.recompute import Unit, recomputed
from foretell.plans import Plan
from foretell.program import Group, Role
from foretell.recomputing import Recomputing

_NEARLY: Final = 1e-9  # a fraction such as 1/3 is not exact


def checkpointed(role: Role, plan: Plan, chosen: Sequence[Unit] | None = None) -> Role:
    """The role with what the plan recomputes, or what was `chosen` for it."""
    what = Recomputing.parse(plan.checkpointing)
    if what.kind == "none" or not role.graph.training or chosen == ():
        return role
    if what.kind == "budget":
        raise PlanError(
            f"checkpointing={plan.checkpointing} is a share of a device's memory, and a plan alone has no device. "
            "Ask for a forecast on one, or say what is recomputed, like cheapest:0.5."
        )
    if what.partitioned and (plan.tp == 1 or plan.sequence_parallel):
        raise PlanError(
            f"checkpointing={plan.checkpointing} keeps a part of each block's input on every tensor-parallel rank, but tp=1 has "
            "one rank and sequence_parallel=true keeps parts already. Write full."
        )
    flow = Flow(role)
    units = chosen or list(_units(flow, what, plan))
    if not units:
        wanted = "attention" if what.modules == {"core_attn"} else "such parts" if what.modules else "repeated blocks"
        raise PlanError(
            f"checkpointing={plan.checkpointing} finds nothing to recompute in {role.graph.name!r}: no {wanted}. "
            "Leave it out."
        )
    return recomputed(role, units, flow)


def chosen_units(role: Role, plan: Plan, weigh: Weigh) -> tuple[Unit, ...] | None:
    """What is recomputed where that hangs on what ops cost; None where it does not."""
    what = Recomputing.parse(plan.checkpointing)
    if what.kind != "cheapest" or not role.graph.training:
        return None
    return tuple(cheapest_units(Flow(role), what.share, weigh))


def _units(flow: Flow, what: Recomputing, plan: Plan) -> Iterator[Unit]:
    graph, stages = flow.graph, plan.pp * plan.virtual_stages
    shared_by = Group(size=plan.tp, count=plan.devices // plan.tp) if what.partitioned else None
    paths = blocks(graph)
    if what.modules == {"core_attn"}:  # it needs no blocks around it
        yield from (attention_unit(flow, p) for p in attentions(flow, range(len(graph.ops))))
        return
    if what.kind == "blocks":  # evenly among all, so that each stage of a pipeline has its part
        share = what.share
        paths = tuple(path for i, path in enumerate(paths) if int((i + 1) * share + _NEARLY) > int(i * share + _NEARLY))
    for spans in passes(graph, paths):
        for path, block in _together(spans, paths, what.blocks, stages):
            if what.kind == "modules":
                yield from part_units(flow, path, block, what.modules)
            else:
                kept = _dear(graph, block) if what.kind == "ops" else frozenset()
                yield Unit(first=block.first, last=block.last, kept=kept, shared_by=shared_by)


def _together(spans: Pass, paths: Sequence[str], count: int, stages: int) -> Iterator[tuple[str, Span]]:
    """Blocks of one chain, so many at a time and none of two stages, by the path of the first."""
    able = [path for path in paths if path in spans["forward"] and path in spans["backward"]]
    for _, chain in groupby(able, key=lambda path: path.rpartition(".")[0]):
        names = list(chain)
        each = -(-len(names) // stages)  # of a stage, where they are alike
        for own in (names[i : i + each] for i in range(0, len(names), each)):
            for first in range(0, len(own), count):
                last = own[min(first + count, len(own)) - 1]
                yield own[first], Span(spans["forward"][own[first]].first, spans["forward"][last].last)


def _dear(graph: Graph, block: Span) -> frozenset[int]:
    """The ops of a block whose results torchtitan's policy keeps: the first product, the third, …, and attention."""
    ops = [(p, graph.ops[p].signature.name) for p in range(block.first, block.last + 1)]
    products = [p for p, name in ops if name == "aten.mm"]
    return frozenset(products[::2]) | {p for p, name in ops if operator_of(name).is_attention}
