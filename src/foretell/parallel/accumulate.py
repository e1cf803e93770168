"""Gradient accumulation: a step of n micro-steps is recorded as the first, which makes gradients, and one more, run
n − 1 times, which adds to them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.parallel.rewrite import NOTHING, first_of

MARKED: Final = 3  # micro-steps of a step whose second one is told from the rest by running twice
_ADD = (("self", Input(0)), ("other", Input(1)))


def accumulate(graph: Graph, micro_steps: int) -> Graph:
    """The same step with another number of micro-steps."""
    if micro_steps == graph.grad_accumulation or not graph.training:
        return graph
    update = first_of(graph, "optimizer")
    second = _second_micro_step(graph, update)
    if second is None:
        changed = _repeated(graph, update, micro_steps - 1)
    elif micro_steps == 1:
        changed = _without(graph, second, update)
    else:
        ops = [replace(op, times=micro_steps - 1) if second <= i < update else op for i, op in enumerate(graph.ops)]
        changed = replace(graph, ops=tuple(ops))
    return replace(changed, grad_accumulation=micro_steps)


def repeated(graph: Graph, micro_steps: int) -> Graph:
    """A step of `MARKED` micro-steps, cut for its ranks or not, with more of them: nothing but how often ops run differs."""
    ops = [
        op if op.times == 1 else Op(op.signature, op.phase, op.module, op.inputs, op.outputs, micro_steps - 1)
        for op in graph.ops
    ]
    return replace(graph, ops=tuple(ops), grad_accumulation=micro_steps)


def steady_micro_step(graph: Graph) -> Graph:
    """One micro-step and the update, as every micro-step but the first runs: gradients are there, and added to."""
    if not graph.training:
        return graph
    update = first_of(graph, "optimizer")
    second = _second_micro_step(graph, update)
    if second is None:
        return _adding(graph, update)

    def moved(position: int) -> int:
        return max(position - second, 0)

    storages = []
    for s in graph.storages:
        if 0 <= s.born < second:
            storages.append(Storage(s.nbytes, s.role, 0, moved(s.freed)) if s.role == "gradient" else NOTHING)
        else:
            storages.append(Storage(s.nbytes, s.role, s.born if s.born < 0 else moved(s.born), moved(s.freed)))
    ops = tuple(op if op.times == 1 else replace(op, times=1) for op in graph.ops[second:])
    return replace(graph, ops=ops, storages=tuple(storages))


def _second_micro_step(graph: Graph, update: int) -> int | None:
    """Where the repeated micro-step begins: a forward pass after a backward one."""
    phases = [op.phase for op in graph.ops[:update]]
    return next((i for i in range(1, update) if phases[i] == "forward" and phases[i - 1] == "backward"), None)


def _without(graph: Graph, first: int, end: int) -> Graph:
    def moved(position: int) -> int:
        return position if position < first else max(position - (end - first), first - 1)

    storages = [
        NOTHING if first <= s.born < end else Storage(s.nbytes, s.role, moved(s.born), moved(s.freed))
        for s in graph.storages
    ]
    return replace(graph, ops=graph.ops[:first] + graph.ops[end:], storages=tuple(storages))


def _adding(graph: Graph, update: int) -> Graph:
    """The only micro-step of a step, adding to gradients that are there: what it makes of them passes."""
    made = [n for n, s in enumerate(graph.storages) if s.role == "gradient" and 0 <= s.born < update]
    again = _AddingMicroStep(graph, update, made, first=0, times=1)
    begins, ends, shift = again.begins, again.ends, len(again.ops) - update
    storages = []
    for s in graph.storages:
        if not 0 <= s.born < update:
            storages.append(_later(s, update, shift))
        elif s.role == "gradient":
            storages.append(Storage(s.nbytes, s.role, 0, s.freed + shift if s.freed >= update else ends[s.freed]))
        else:
            storages.append(Storage(s.nbytes, s.role, begins[s.born], ends[min(s.freed, update - 1)]))
    ops = (*again.ops, *graph.ops[update:])
    return replace(graph, ops=ops, tensors=tuple(again.tensors), storages=(*storages, *again.storages()))


def _repeated(graph: Graph, update: int, times: int) -> Graph:
    """The micro-step recorded once more, `times` times, adding to the gradients of the first."""
    made = [n for n, s in enumerate(graph.storages) if 0 <= s.born < update]
    again = _AddingMicroStep(graph, update, made, first=update, times=times)
    ops = (*graph.ops[:update], *again.ops, *graph.ops[update:])
    storages = [_later(s, update, len(again.ops)) for s in graph.storages]
    return replace(graph, ops=ops, tensors=tuple(again.tensors), storages=(*storages, *again.storages()))


class _AddingMicroStep:
    """A micro-step that makes copies of the storages `made`, and adds to gradients what it made of them."""

    def __init__(self, graph: Graph, update: int, made: list[int], *, first: int, times: int) -> None:
        self.graph, self.update, self.made = graph, update, made
        self.tensors = list(graph.tensors)
        self.ops: list[Op] = []
        self.begins: list[int] = []  # of each op
        self.ends: list[int] = []  # what it adds up included
        copies = {number: len(graph.storages) + i for i, number in enumerate(made)}
        copy_of: dict[int, int] = {}
        for number, tensor in enumerate(graph.tensors):
            if tensor.storage in copies:
                copy_of[number] = len(self.tensors)
                self.tensors.append(Tensor(tensor.layout, copies[tensor.storage], tensor.offset))
        self.finished = _finished_by(graph, update, frozenset(made))
        adds: dict[Layout, Signature] = {}
        for position, op in enumerate(graph.ops[:update]):
            self.begins.append(first + len(self.ops))
            inputs = tuple([copy_of.get(t, t) for t in op.inputs])
            outputs = tuple([copy_of.get(t, t) for t in op.outputs])
            same = inputs == op.inputs and outputs == op.outputs and times == op.times
            self.ops.append(op if same else Op(op.signature, op.phase, op.module, inputs, outputs, times))
            for t in self.finished.get(position, ()):
                layout = graph.tensors[t].layout
                if layout not in adds:
                    adds[layout] = Signature("aten.add_.Tensor", (layout, layout), (layout,), _ADD, (0,))
                self.ops.append(Op(adds[layout], "backward", op.module, (t, copy_of.get(t, t)), (t,), times))
            self.ends.append(first + len(self.ops) - 1)

    def storages(self) -> list[Storage]:
        """The copies: a gradient's is gone once it is added."""
        added = {self.graph.tensors[t].storage: position for position, ts in self.finished.items() for t in ts}
        copies = []
        for number in self.made:
            s = self.graph.storages[number]
            last = added.get(number, min(s.freed, self.update - 1))
            role = "temporary" if s.role == "gradient" else s.role
            copies.append(Storage(s.nbytes, role, self.begins[s.born], self.ends[last]))
        return copies


def _finished_by(graph: Graph, update: int, made: frozenset[int]) -> dict[int, list[int]]:
    """Op that writes them last → gradients, as tensors. Main gradients are added to already."""
    written: dict[int, tuple[int, int]] = {}
    for position, op in enumerate(graph.ops[:update]):
        for t in op.outputs:
            storage = graph.tensors[t].storage
            if graph.storages[storage].role == "gradient" and storage in made:
                written[storage] = (position, t)
    finished: dict[int, list[int]] = defaultdict(list)
    for position, tensor in written.values():
        finished[position].append(tensor)
    return finished


def _later(storage: Storage, update: int, shift: int) -> Storage:
    """A storage that lives into the update lives as much later as ops were put before it."""

    def moved(position: int) -> int:
        return position + shift if position >= update else position

    return Storage(storage.nbytes, storage.role, moved(storage.born), moved(storage.freed))
