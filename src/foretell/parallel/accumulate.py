"""Gradient accumulation: a step of n micro-steps is recorded as the first, which makes gradients, and one more, run
n − 1 times, which adds to them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.parallel.rewrite import first_of

_ADD = (("self", Input(0)), ("other", Input(1)))


def accumulate(graph: Graph, micro_steps: int) -> Graph:
    """The same step with another number of micro-steps."""
    if micro_steps == graph.grad_accumulation or not graph.training:
        return graph
    update = first_of(graph, "optimizer")
    second = _second_micro_step(graph, update)
    if second is None:
        return replace(_repeated(graph, update, micro_steps - 1), grad_accumulation=micro_steps)
    if micro_steps == 1:
        return replace(_without(graph, second, update), grad_accumulation=1)
    ops = tuple(replace(op, times=micro_steps - 1) if second <= i < update else op for i, op in enumerate(graph.ops))
    return replace(graph, ops=ops, grad_accumulation=micro_steps)


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

    gone = Storage(0, "host", -1, -1)
    storages = tuple(
        Storage(s.nbytes, s.role, 0, moved(s.freed)) if 0 <= s.born < second and s.role == "gradient"
        else gone if 0 <= s.born < second
        else Storage(s.nbytes, s.role, s.born if s.born < 0 else moved(s.born), moved(s.freed))
        for s in graph.storages
    )  # fmt: skip
    ops = tuple(
        op if op.times == 1 else Op(op.signature, op.phase, op.module, op.inputs, op.outputs)
        for op in graph.ops[second:]
    )
    return replace(graph, ops=ops, storages=storages)


def _adding(graph: Graph, update: int) -> Graph:
    """The only micro-step of a step, adding to gradients that are there: what it makes of them passes."""
    made = [n for n, s in enumerate(graph.storages) if s.role == "gradient" and 0 <= s.born < update]
    copies = {number: len(graph.storages) + i for i, number in enumerate(made)}
    tensors = list(graph.tensors)
    known: dict[int, int] = {}

    def copied(tensor: int) -> int:
        t = graph.tensors[tensor]
        if t.storage not in copies:
            return tensor
        if tensor not in known:
            known[tensor] = len(tensors)
            tensors.append(Tensor(t.layout, copies[t.storage], t.offset))
        return known[tensor]

    finished = _finished_by(graph, update)
    adds = _Adds()
    ops: list[Op] = []
    begins, ends = [], []
    for position, op in enumerate(graph.ops[:update]):
        begins.append(len(ops))
        inputs, outputs = tuple(map(copied, op.inputs)), tuple(map(copied, op.outputs))
        same = inputs == op.inputs and outputs == op.outputs
        ops.append(op if same else Op(op.signature, op.phase, op.module, inputs, outputs, op.times))
        for tensor in finished.get(position, ()):
            ops.append(
                Op(adds[graph.tensors[tensor].layout], "backward", op.module, (tensor, copied(tensor)), (tensor,))
            )
        ends.append(len(ops) - 1)
    shift = len(ops) - update
    storages = []
    for s in graph.storages:
        if s.role == "gradient" and 0 <= s.born < update:
            storages.append(Storage(s.nbytes, s.role, 0, s.freed + shift if s.freed >= update else ends[s.freed]))
        elif 0 <= s.born < update:
            storages.append(Storage(s.nbytes, s.role, begins[s.born], ends[min(s.freed, update - 1)]))
        else:
            storages.append(_later(s, update, shift))
    written = {graph.tensors[t].storage: position for position, ts in finished.items() for t in ts}
    for number in made:
        s = graph.storages[number]
        last = written.get(number, min(s.freed, update - 1))
        storages.append(Storage(s.nbytes, "temporary", begins[s.born], ends[last]))
    return replace(graph, ops=(*ops, *graph.ops[update:]), tensors=tuple(tensors), storages=tuple(storages))


def _second_micro_step(graph: Graph, update: int) -> int | None:
    """Where the repeated micro-step begins: a forward pass after a backward one."""
    phases = [op.phase for op in graph.ops[:update]]
    return next((i for i in range(1, update) if phases[i] == "forward" and phases[i - 1] == "backward"), None)


def _without(graph: Graph, first: int, end: int) -> Graph:
    gone = end - first

    def moved(position: int) -> int:
        return position if position < first else max(position - gone, first - 1)

    kept = graph.ops[:first] + graph.ops[end:]
    storages = tuple(
        replace(s, nbytes=0, role="host", born=-1, freed=-1) if first <= s.born < end
        else replace(s, born=moved(s.born), freed=moved(s.freed))
        for s in graph.storages
    )  # fmt: skip
    return replace(graph, ops=kept, storages=storages)


def _repeated(graph: Graph, update: int, times: int) -> Graph:
    """The micro-step recorded once more, `times` times, adding to the gradients of the first."""
    made = [n for n, s in enumerate(graph.storages) if 0 <= s.born < update]
    copies = {number: len(graph.storages) + i for i, number in enumerate(made)}
    tensors = list(graph.tensors)
    known: dict[int, int] = {}

    def copied(tensor: int) -> int:
        if tensor not in known:
            t = graph.tensors[tensor]
            known[tensor] = tensor
            if t.storage in copies:
                known[tensor] = len(tensors)
                tensors.append(Tensor(t.layout, copies[t.storage], t.offset))
        return known[tensor]

    finished = _finished_by(graph, update)
    written = {graph.tensors[t].storage: position for position, ts in finished.items() for t in ts}
    adds = _Adds()
    ops: list[Op] = []
    begins, ends = [], []  # of the repetition of each op, what it adds up included
    for position, op in enumerate(graph.ops[:update]):
        begins.append(update + len(ops))
        inputs, outputs = tuple(map(copied, op.inputs)), tuple(map(copied, op.outputs))
        ops.append(Op(op.signature, op.phase, op.module, inputs, outputs, times))
        for tensor in finished.get(position, ()):
            signature = adds[tensors[tensor].layout]
            ops.append(Op(signature, "backward", op.module, (tensor, copied(tensor)), (tensor,), times))
        ends.append(update + len(ops) - 1)
    repeated = []
    for number in made:
        s = graph.storages[number]
        last = written.get(number, min(s.freed, update - 1))
        role = "temporary" if s.role == "gradient" else s.role
        repeated.append(Storage(s.nbytes, role, begins[s.born], ends[last]))
    shifted = [_later(s, update, len(ops)) for s in graph.storages]
    return replace(
        graph,
        ops=(*graph.ops[:update], *ops, *graph.ops[update:]),
        tensors=tuple(tensors),
        storages=(*shifted, *repeated),
    )


def _finished_by(graph: Graph, update: int) -> dict[int, list[int]]:
    """Op that writes them last → gradients, as tensors."""
    written: dict[int, tuple[int, int]] = {}
    for position, op in enumerate(graph.ops[:update]):
        for t in op.outputs:
            storage = graph.tensors[t].storage
            if graph.storages[storage].role == "gradient":
                written[storage] = (position, t)
    finished: dict[int, list[int]] = defaultdict(list)
    for position, tensor in written.values():
        finished[position].append(tensor)
    return finished


class _Adds(dict[Layout, Signature]):
    """What adds to a gradient, one signature a layout."""

    def __missing__(self, layout: Layout) -> Signature:
        self[layout] = made = Signature("aten.add_.Tensor", (layout, layout), (layout,), _ADD, (0,))
        return made


def _later(storage: Storage, update: int, shift: int) -> Storage:
    """A storage that lives into the update lives as much later as ops were put before it."""

    def moved(position: int) -> int:
        return position + shift if position >= update else position

    return Storage(storage.nbytes, storage.role, moved(storage.born), moved(storage.freed))
