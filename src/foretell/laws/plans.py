"""Laws of several devices: what plans trade for what, what ranks have together, and how sure forecasts of many are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from foretell.cost.flops import total_flops
from foretell.errors import InputError
from foretell.hardware import fabric_of
from foretell.laws.answers import Answer, Answers, Case, cluster_of
from foretell.laws.between import usual
from foretell.laws.law import Compared, Tolerance, equal, law
from foretell.laws.scope import Scope
from foretell.parallel import parallelize
from foretell.plans import Plan

# Plans of eight devices whose arithmetic, of all ranks together, is that of the step on one.
CONSERVED: Final = (
    "dp=8", "dp=8,zero=1", "dp=8,zero=2", "dp=8,zero=3", "dp=8,zero=3,hybrid_shard=4", "dp=8,bucket_bytes=1048576",
    "dp=8,overlap=false", "dp=8,grad_accumulation=4", "dp=8,servers=2", "dp=4,tp=2", "dp=4,tp=2,sequence_parallel=true",
    "dp=2,tp=4", "dp=2,tp=4,zero=1", "tp=8", "dp=4,pp=2,grad_accumulation=8", "dp=2,pp=4,grad_accumulation=8",
    "dp=2,tp=2,pp=2,grad_accumulation=4", "dp=2,pp=4,schedule=gpipe,grad_accumulation=8", "dp=4,cp=2", "dp=2,tp=2,cp=2",
)  # fmt: skip
_PIPE: Final = "dp=1,pp=4,grad_accumulation=8"
_STAGES: Final = "dp=4,pp=2,grad_accumulation=4"
_DATA: Final = "dp=8"
_SHARDS: Final = ("dp=8,zero=0", "dp=8,zero=1", "dp=8,zero=2", "dp=8,zero=3")


@law(
    "The arithmetic of all ranks is that of the step on one device for each replica; what tp does not divide, each rank does.",
    "plans of eight devices",
    Tolerance(part=1e-6, why="rows that a divisor does not divide are rounded"),
)
def arithmetic_conserved(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        graph = step.graph(step.precisions[0], step.batches[0])
        whole = total_flops(graph) / graph.grad_accumulation
        for text in CONSERVED:
            plan = Plan.parse(text)
            try:
                program = parallelize(graph, plan)
            except InputError:
                continue
            ranks = sum(total_flops(role.graph) * role.count for role in program.roles)
            where, once = f"{step.name}, {text}: arithmetic", whole * program.micro_steps * plan.dp
            yield Compared(where=where, number=once, limit=ranks)
            yield Compared(
                where=where, number=ranks, limit=once * plan.tp
            )  # what tp does not divide, each rank computes


@law("One device by a plan of one is one device.", "devices")
def one_is_single(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            single = answers(usual(step, step.precisions[0], device.name))
            planned = answers(usual(step, step.precisions[0], device.name, plan="dp=1"))
            if single is not None and planned is not None:
                yield from equal(f"{step.name} on {device.name}: single and dp=1, step", planned.step, single.step)
                yield from equal(f"{step.name} on {device.name}: single and dp=1, bytes", planned.total, single.total)


@law(
    "More replicas take no less time and no less memory each; where devices are joined each to each, of which more use more of "
    "their links, but for what fewer wait for theirs.",
    "devices × counts",
)
def replicas(scope: Scope, answers: Answers) -> Iterator[Compared]:
    counts = (1, *scope.counts)
    for step in scope.steps:
        for device in scope.devices:
            cases = [
                usual(step, step.precisions[0], device.name if count == 1 else f"1x{count}x{device.name}")
                for count in counts
            ]
            for (few, case), (many, larger) in pairwise(zip(counts, cases, strict=True)):
                one, other = answers(case), answers(larger)
                if one is None or other is None:
                    continue
                where = f"{step.name} on {device.name}: {few} and {many} replicas"
                gained = one.exposed if _lanes(larger, few) < _lanes(larger, many) else 0.0
                yield Compared(where=f"{where}, step", number=one.step - gained, limit=other.step)
                yield Compared(where=f"{where}, bytes", number=one.total, limit=other.total)


def _lanes(case: Case, count: int) -> float:
    """The part of a device's links to its neighbours that so many of them use."""
    return min(count / max(fabric_of(node.inside).full_at for node in cluster_of(case).nodes), 1.0)


@law("Nodes that are written out are the same cluster.", "devices that share a node")
def written_out(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            size = device.node_size
            if not 1 < size <= scope.many:
                continue
            texts = f"2x{size}x{device.name}", f"{size}x{device.name}+{size}x{device.name}", f"{2 * size}x{device.name}"
            first, *others = (answers(usual(step, step.precisions[0], text)) for text in texts)
            for text, other in zip(texts[1:], others, strict=True):
                if first is not None and other is not None:
                    yield from equal(f"{step.name}: {texts[0]} and {text}", other.step, first.step)


@law("A forecast of more devices is no surer.", "devices × counts")
def more_is_no_surer(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            single = answers(usual(step, step.precisions[0], device.name))
            for count in scope.counts:
                several = answers(usual(step, step.precisions[0], f"1x{count}x{device.name}"))
                if single is None or several is None or not single.width or not several.width:
                    continue
                where = f"{step.name} on {device.name}: high over low of 1 and {count}"
                yield Compared(where=where, number=single.width, limit=several.width)


@law(
    "The more is sharded, the less memory a rank takes.",
    "zero = 0 > 1 > 2 > 3",
    Tolerance(part=0.01, why="zero=3 gathers a unit into a buffer, which a model of few megabytes notices"),
)
def shards_take_less(scope: Scope, answers: Answers) -> Iterator[Compared]:
    yield from _falling(scope, answers, _SHARDS, lambda a: a.allocated, "allocated bytes")


@law(
    "Communication that the step does not wait for takes no longer; in a pipeline, but for the units that it takes from a pass "
    "which the next stage waits for.",
    "overlap under zero = 0 to 3, with tp and pp",
)
def overlap(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for plan in (*_SHARDS, "dp=4,tp=2"):
        yield from _falling(scope, answers, (f"{plan},overlap=false", plan), lambda a: a.step, "step seconds")
    stages = Plan.parse(_STAGES).pp
    for step in scope.steps:
        for device in scope.devices:
            where = f"1x{scope.many}x{device.name}"
            plain, hidden = (
                answers(usual(step, step.precisions[0], where, plan=f"{_STAGES},overlap={word}"))
                for word in ("false", "true")
            )
            if plain is not None and hidden is not None:
                named = f"{step.name} on {scope.many} × {device.name}: {_STAGES}, overlapped and not, step seconds"
                yield Compared(where=named, number=hidden.step, limit=plain.step + (stages - 1) * hidden.taken)


@law(
    "Recomputing less takes no less memory and no more time.",
    "checkpointing none, selective and full",
    Tolerance(part=0.002, why="a unit's own inputs are kept while it runs again, which a small step notices"),
)
def recomputing(scope: Scope, answers: Answers) -> Iterator[Compared]:
    plans = tuple(f"{_DATA},checkpointing={word}" for word in ("none", "selective", "full"))
    yield from _falling(scope, answers, plans, lambda a: a.allocated, "allocated bytes")
    yield from _falling(scope, answers, plans[::-1], lambda a: a.step, "step seconds")


@law(
    "Interleaved stages, and zero bubbles, take no longer than 1f1b but for what they hand over more often.",
    "pipelines of four stages",
    Tolerance(part=0.01, why="a stage that is cut in two is balanced less evenly"),
)
def schedules(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            where = f"1x4x{device.name}"
            plain = answers(usual(step, step.precisions[0], where, plan=_PIPE))
            for schedule in ("interleaved,virtual_stages=2", "zero-bubble"):
                other = answers(usual(step, step.precisions[0], where, plan=f"{_PIPE},schedule={schedule}"))
                if plain is not None and other is not None:
                    more = max(other.sent - plain.sent, 0) / other.network_peak if other.network_peak else 0.0
                    named = f"{step.name} on 4 × {device.name}: {schedule} and 1f1b"
                    yield Compared(where=f"{named}, step", number=other.step, limit=plain.step + more)


@law("1f1b keeps fewer activations than gpipe.", "pipelines of four stages")
def fewer_in_flight(scope: Scope, answers: Answers) -> Iterator[Compared]:
    plans = f"{_PIPE},schedule=gpipe", _PIPE
    yield from _falling(scope, answers, plans, lambda a: a.allocated, "allocated bytes", count=4)


def _falling(
    scope: Scope, answers: Answers, plans: tuple[str, ...], number: Callable[[Answer], float], what: str, count: int = 8
) -> Iterator[Compared]:
    """A number of each plan is at most that of the plan before it."""
    for step in scope.steps:
        for device in scope.devices:
            cases = [usual(step, step.precisions[0], f"1x{count}x{device.name}", plan=plan) for plan in plans]
            for (before, more), (plan, less) in pairwise([(case.plan, answers(case)) for case in cases]):
                if more is not None and less is not None:
                    where = f"{step.name} on {count} × {device.name}: {plan} and {before}, {what}"
                    yield Compared(where=where, number=number(less), limit=number(more))
