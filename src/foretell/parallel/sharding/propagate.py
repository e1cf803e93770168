"""Carries splits through a step, op by op: shrinks what ranks hold parts of, and says where they must talk.

Whoever uses it decides which storages are split to begin with; the rest follows from the graph, backward pass and
update included. A sum whose terms lie on different ranks is added up where it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.parallel.sharding.cut import PARTIAL, Cut, Split, State, Stuck, find, made, part
from foretell.parallel.sharding.rules import Carried, carry, has_rule
from foretell.program import Collective, Group

PRODUCTS = frozenset(("aten.mm", "aten.addmm"))
_ADDS = frozenset(("aten.add", "aten.add_"))
# Classes on different ranks: the numbers a row that they agree on.
_LOSS_EXCHANGES = {
    "aten._log_softmax": ("largest logit", "sum of exponentials"), "aten.nll_loss_forward": ("logit of the target",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be done beside adding up sums."""

    group: Group
    lane: str
    sequence: bool = False  # keep sums scattered along the sequence until whole rows are needed
    slices: bool = False  # a whole tensor beside parts is cut without talking: every rank has it
    sums_gradients: bool = True  # gradients that are terms of a sum are added up here, not by data parallelism


class Spread:
    def __init__(self, graph: Graph, policy: Policy, states: Mapping[int, State], tables: Iterable[str] = ()) -> None:
        self.graph, self.policy, self.ways = graph, policy, policy.group.size
        self.states: dict[int, State] = {k: v for k, v in states.items() if v is not None}
        self.tables = frozenset(tables)  # modules whose embedding table is cut
        self.collectives: list[Collective] = []
        self.storages: dict[int, Storage] = {}  # those that change
        self.tensors = list(graph.tensors)
        self._added: list[Storage] = []
        self._made: dict[tuple[int, Cut | int], int] = {}
        self._parts: dict[tuple[int, Cut], Layout] = {}
        self._cuts: dict[tuple[int, Split], Cut] = {}
        self._signatures: dict[tuple[object, ...], Signature] = {}
        self._carried: dict[tuple[object, ...], list[Carried]] = {}
        self._written: dict[int, int] = {}
        self._gathered: dict[int, int] = {}
        self._free: set[int] = set()  # made from nothing, like masks and zeros: can be made in parts as well

    def whole_step(self) -> Graph:
        """The step with every op on parts where there are parts."""
        ops = [op if op.phase == "optimizer" else self.step(i, op) for i, op in enumerate(self.graph.ops)]
        ops = self._update(ops)
        for storage, state in self.states.items():
            if isinstance(state, Split) and self.graph.storages[storage].born < 0:
                self._shrink(storage)
        storages = tuple(self.storages.get(i, s) for i, s in enumerate(self.graph.storages))
        return replace(self.graph, ops=tuple(ops), tensors=tuple(self.tensors), storages=(*storages, *self._added))

    def step(self, position: int, op: Op) -> Op:
        states, tensors = self.states, self.graph.tensors
        table = op.signature.name == "aten.embedding_dense_backward" and op.module in self.tables
        if not table and not any(tensors[t].storage in states for t in op.inputs):
            if not op.inputs:
                self._free.update(tensors[t].storage for t in op.outputs)
            return op
        read = {tensors[t].storage for t in op.inputs}
        for t in op.outputs:
            self._written[tensors[t].storage] = position
        if op.outputs and all(tensors[t].storage in read for t in op.outputs) and not op.signature.mutates:
            return self._rewritten(op, {})
        if self._adds_terms(op):
            for t in (*op.outputs, *(op.inputs[i] for i in op.signature.mutates)):
                states[tensors[t].storage] = PARTIAL
            return op
        for t in op.inputs:
            if states.get(tensors[t].storage) is PARTIAL:
                self._add_up(t, op, position)
        if table:
            return self._table_gradient(position, op)
        try:
            carried, replaced = self._carry(op), dict[int, int]()
            if self.policy.slices and "scaled_dot_product" in op.signature.name:
                replaced = self._send_round(position, op)
        except Stuck:
            if self.policy.slices and not any("float" in x.dtype for x in op.signature.inputs):
                return op  # labels and positions are cut before the step, however the model shifts them
            replaced = {} if self.policy.slices else self._gather_tokens(position, op)
            if not replaced:
                raise
            carried = self._carry(op, replaced)
        self._exchange_for_loss(position, op)
        for t, result in zip(op.outputs, carried, strict=True):
            storage = tensors[t].storage
            if storage in read:
                continue
            if isinstance(result, Cut):
                states[storage] = made(tensors[t].layout, result, self.ways)
                self._shrink(storage)
            elif result is PARTIAL:
                states[storage] = PARTIAL
        return self._rewritten(op, replaced)

    def cut(self, tensor: int) -> Cut | None:
        t = self.graph.tensors[tensor]
        state = self.states.get(t.storage)
        if not isinstance(state, Split):
            return None
        key = (id(t.layout), state)
        if key not in self._cuts:
            self._cuts[key] = find(t.layout, state, self.ways)
        return self._cuts[key]

    def _carry(self, op: Op, replaced: Mapping[int, int] | None = None) -> list[Carried]:
        cuts = [None if replaced and t in replaced else self.cut(t) for t in op.inputs]
        self._cut_what_is_free(op, cuts)
        key = (id(op.signature), *cuts)
        if key not in self._carried:
            self._carried[key] = carry(op.signature, cuts)
        return self._carried[key]

    def _cut_what_is_free(self, op: Op, cuts: list[Cut | None]) -> None:
        if has_rule(op.signature.name):
            return
        layouts = op.signature.inputs
        found = [(len(x.shape) - c.dim, x.shape[c.dim], c) for c, x in zip(cuts, layouts, strict=True) if c is not None]
        for i, t in enumerate(op.inputs):
            storage = self.graph.tensors[t].storage
            free = storage in self._free or self._is_gradient(storage)
            if cuts[i] is not None or not (free or self.policy.slices):
                continue
            for from_last, size, cut in found:
                dim = len(layouts[i].shape) - from_last
                if (
                    dim >= 0
                    and layouts[i].shape[dim] == size
                    and (free or self.graph.storages[storage].role != "parameter")
                ):
                    cuts[i] = cut._replace(dim=dim)
                    if free:
                        self.states[storage] = made(layouts[i], cut._replace(dim=dim), self.ways)
                        self._shrink(storage)
                    break

    def _send_round(self, position: int, op: Op) -> dict[int, int]:
        """Keys and values of every rank pass by every other, while it computes; on the way back their gradients too."""
        passing = [op.signature.argument(name) for name in ("key", "value")]
        tensors = [op.inputs[v.index] for v in passing if isinstance(v, Input)]
        if all(self.cut(t) is None for t in tensors):
            return {}
        nbytes = sum(self.graph.tensors[t].layout.nbytes for t in tensors) * (self.ways - 1) // self.ways
        times = 2 if op.phase == "backward" else 1
        self._say("send-recv", nbytes * times, f"keys and values of {op.module}", position - 1, position + 1)
        return {t: t for t in tensors}

    def _adds_terms(self, op: Op) -> bool:
        """Whether an op adds terms of sums: what it makes is a term too. Gradients start as what is added to them."""
        if op.signature.name not in _ADDS or len(op.inputs) < 2:
            return False
        storages = [self.graph.tensors[t].storage for t in op.inputs]
        terms = [s for s in storages if self.states.get(s) is PARTIAL]
        return bool(terms) and all(s in terms or (s not in self.states and self._is_gradient(s)) for s in storages)

    def _is_gradient(self, storage: int) -> bool:
        return self.graph.storages[storage].role == "gradient"

    def _add_up(self, tensor: int, op: Op, position: int) -> None:
        """Add up a sum before an op needs it: all of it everywhere, or along the sequence a part to each rank."""
        t = self.graph.tensors[tensor]
        del self.states[t.storage]
        if self.graph.storages[t.storage].role == "gradient" and not self.policy.sums_gradients:
            return
        kind = "all-reduce"
        if self.policy.sequence and len(t.layout.shape) > 2 and self._others_are_scattered(op, t):
            cut = Cut(len(t.layout.shape) - 2, tokens=True)
            self.states[t.storage] = made(t.layout, cut, self.ways)
            kind = "reduce-scatter"
        nbytes = min(
            t.layout.nbytes, self.graph.storages[t.storage].nbytes
        )  # expanded tensors are sent as they are stored
        self._say(kind, nbytes, op.module, self._written.get(t.storage, position - 1), position)

    def _others_are_scattered(self, op: Op, tensor: Tensor) -> bool:
        others = [self.graph.tensors[o] for o in op.inputs if self.graph.tensors[o].layout.shape == tensor.layout.shape]
        states = [self.states.get(o.storage) for o in others if o.storage != tensor.storage]
        return all(s is PARTIAL or (isinstance(s, Split) and s.tokens) for s in states)

    def _gather_tokens(self, position: int, op: Op) -> dict[int, int]:
        """Whole rows for an op that cannot work on parts of the sequence; gathered once, and kept."""
        replaced = {}
        for t in op.inputs:
            tensor = self.graph.tensors[t]
            state = self.states.get(tensor.storage)
            if not (isinstance(state, Split) and state.tokens):
                continue
            if tensor.storage not in self._gathered:
                self._say(
                    "all-gather",
                    tensor.layout.nbytes,
                    op.module,
                    self._written.get(tensor.storage, position - 1),
                    position,
                )
                self._gathered[tensor.storage] = len(self.graph.storages) + len(self._added)
                old = self.graph.storages[tensor.storage]
                self._added.append(replace(old, nbytes=tensor.layout.nbytes, born=position))
            key = (t, self._gathered[tensor.storage])
            if key not in self._made:
                self._made[key] = len(self.tensors)
                self.tensors.append(Tensor(tensor.layout, key[1], tensor.offset))
            replaced[t] = self._made[key]
        return replaced

    def _table_gradient(self, position: int, op: Op) -> Op:
        replaced = self._gather_tokens(position, op)
        for t in op.outputs:
            storage = self.graph.tensors[t].storage
            self.states[storage] = made(self.graph.tensors[t].layout, Cut(0, uneven=True), self.ways)
            self._shrink(storage)
        return self._rewritten(op, replaced)

    def _exchange_for_loss(self, position: int, op: Op) -> None:
        for what in _LOSS_EXCHANGES.get(op.signature.name, ()):
            cut, layout = self.cut(op.inputs[0]), op.signature.inputs[0]
            if cut is not None and cut.dim == len(layout.shape) - 1:
                self._say("all-reduce", layout.nbytes // layout.shape[-1], what, position - 1, position)

    def _say(self, kind: str, nbytes: int, what: str, after: int, before: int) -> None:
        self.collectives.append(
            Collective(kind=kind, nbytes=nbytes, group=self.policy.group, name=f"{kind} {what}".strip(), starts_after=after,
                       waited_for_by=before, lane=self.policy.lane, every_micro_step=True)
        )  # fmt: skip

    def _shrink(self, number: int) -> None:
        storage = self.graph.storages[number]
        self.storages[number] = Storage(-(-storage.nbytes // self.ways), storage.role, storage.born, storage.freed)

    def _rewritten(self, op: Op, replaced: Mapping[int, int]) -> Op:
        inputs = tuple(replaced[t] if t in replaced else self._part(t) for t in op.inputs)
        outputs = tuple(self._part(t) for t in op.outputs)
        if inputs == op.inputs and outputs == op.outputs:
            return op
        layouts = [tuple(self.tensors[t].layout for t in side) for side in (inputs, outputs)]
        key = (id(op.signature), *(tuple(map(id, side)) for side in layouts))
        if key not in self._signatures:
            self._signatures[key] = replace(op.signature, inputs=layouts[0], outputs=layouts[1])
        return Op(self._signatures[key], op.phase, op.module, inputs, outputs, op.times)

    def _part(self, tensor: int) -> int:
        cut = self.cut(tensor)
        if cut is None:
            return tensor
        key = (tensor, cut)
        if key not in self._made:
            t = self.graph.tensors[tensor]
            self._made[key] = len(self.tensors)
            known = (id(t.layout), cut)
            if known not in self._parts:
                self._parts[known] = part(t.layout, cut, self.ways)
            self.tensors.append(Tensor(self._parts[known], t.storage, t.offset))
        return self._made[key]

    def _update(self, ops: list[Op]) -> list[Op]:
        """The optimizer works on each parameter's own part; its state is cut as the parameter is."""
        update = [(i, op) for i, op in enumerate(self.graph.ops) if op.phase == "optimizer"]
        rows = [row for _, op in update for row in _side_by_side(op)]
        for position, op in update:
            for t in op.inputs:
                if self.states.get(self.graph.tensors[t].storage) is PARTIAL:
                    self._add_up(t, op, position)
        for _ in range(2):  # the second round knows what the later ops of the first found out
            for row in rows:
                self._cut_alike(row)
        for position, op in update:
            ops[position] = self._rewritten(op, {})
        return ops

    def _cut_alike(self, tensors: list[int]) -> None:
        uncut = [t for t in tensors if self.graph.tensors[t].storage not in self.states]
        if not 0 < len(uncut) < len(tensors):
            return
        cuts = {self.graph.tensors[t].layout.shape: c for t in tensors if (c := self.cut(t)) is not None}
        for t in uncut:
            tensor = self.graph.tensors[t]
            if tensor.storage not in self.states and tensor.layout.shape in cuts:
                self.states[tensor.storage] = made(tensor.layout, cuts[tensor.layout.shape], self.ways)
                self._shrink(tensor.storage)


def _side_by_side(op: Op) -> Iterable[list[int]]:
    """Tensors that an update takes together: the i-th of each list, or all where there are no lists."""
    lists = [[i.index for i in v if isinstance(i, Input)] for _, v in op.signature.arguments if isinstance(v, tuple)]
    lists = [numbers for numbers in lists if numbers]
    if not lists:
        yield [*op.inputs, *op.outputs]
        return
    for i, row in enumerate(zip(*lists, strict=False)):
        yield [op.inputs[n] for n in row] + ([op.outputs[i]] if i < len(op.outputs) else [])
