"""Follows shardings through a step, op by op: which tensors ranks have parts of, and where they must communicate.

Whoever uses it decides which storages are split to begin with; the rest follows from the graph, backward pass and
update included. A sum whose terms lie on different ranks is added up where it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.graph.operators import operator_of
from foretell.parallel.rewrite import rows_of_update
from foretell.parallel.sharding.cut import (
    PARTIAL,
    CannotShard,
    Cut,
    Partial,
    Placement,
    Split,
    cut_of,
    part_of,
    split_of,
)
from foretell.parallel.sharding.gathers import Gathers
from foretell.parallel.sharding.rules import Outputs, cuts_of_outputs, cuts_of_routing, has_rule
from foretell.program import Collective, Group

GROUPED: Final = "aten._grouped_mm"  # the products of experts
EXPERTS_LANE: Final = "ep"  # rows on their way to experts and back, one collective after another
PRODUCTS: Final = frozenset(("aten.mm", "aten.addmm", GROUPED))
_ADDS: Final = frozenset(("aten.add", "aten.add_"))
# Classes on different ranks: the numbers per row that they agree on.
_LOSS_EXCHANGES: Final = {
    "aten._log_softmax": ("largest logit", "sum of exponentials"),
    "aten.nll_loss_forward": ("logit of the target",),
}
_NONE: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be done beside adding up sums."""

    group: Group
    lane: str
    scatters_tokens: bool = False  # keep sums scattered along the sequence until whole rows are needed
    whole_experts: bool = False  # ranks that scatter tokens have experts of their own, and no parts of one
    gathers_again: bool = False  # the backward pass gathers whole rows anew: what is kept for it are the ranks' parts
    cuts_whole: bool = False  # a whole tensor beside parts is cut without communication: every rank has it
    sums_gradients: bool = True  # gradients that are terms of a sum are added up here, not by data parallelism


class Propagation:
    def __init__(
        self, graph: Graph, policy: Policy, placements: Mapping[int, Placement], tables: Iterable[str] = ()
    ) -> None:
        self.graph, self.policy, self.ways = graph, policy, policy.group.size
        self.tables = frozenset(tables)  # modules whose embedding table is cut
        self.storage_of = [t.storage for t in graph.tensors]
        self.has_experts = any(op.signature.name == GROUPED for op in graph.ops)
        self._cuts: dict[tuple[int, Split], Cut] = {}
        self._outputs: dict[tuple[object, ...], Outputs] = {}
        self.restart(placements)

    def restart(self, placements: Mapping[int, Placement]) -> None:
        """Forget what was found, and begin with these storages split."""
        self.placements = {storage: p for storage, p in placements.items() if p is not None}
        self.collectives: list[Collective] = []
        self._written: dict[int, int] = {}
        self._shrunk: set[int] = set()
        self._free: set[int] = set()  # made from nothing, like masks and zeros: can be made in parts as well
        self._row_cuts: dict[int, Cut] = {}  # rows that were gathered for experts, by their number
        self._gathers = Gathers(self.graph, again=self.policy.gathers_again)

    def sharded_step(self) -> Graph:
        """The step with every op on parts where there are parts."""
        graph, rewrite, ops = self.graph, _Rewrite(self), list(self.graph.ops)
        update = [(i, op) for i, op in enumerate(ops) if op.phase == "optimizer"]
        for position, op in enumerate(graph.ops):
            if op.phase != "optimizer" and (gathered := self.place(position, op)) is not None:
                ops[position] = rewrite.op(op, gathered)
        self._place_update(update)
        for position, op in update:
            ops[position] = rewrite.op(op, _NONE)
        for storage, placement in self.placements.items():
            if isinstance(placement, Split) and graph.storages[storage].born < 0:
                self._shrunk.add(storage)
        storages = list(graph.storages)
        for number in self._shrunk:
            s, cut = storages[number], self.placements.get(number)
            parts = self.ways // cut.copies if isinstance(cut, Split) else self.ways
            storages[number] = Storage(-(-s.nbytes // parts), s.role, s.born, s.freed)
        sharded = replace(graph, ops=tuple(ops), tensors=tuple(rewrite.tensors), storages=tuple(storages))
        self.collectives = self._gathers.awaited(self.collectives, sharded)
        return self._gathers.kept(sharded)

    def place(self, position: int, op: Op) -> Mapping[int, int] | None:
        """Follow placements through an op. None: it works on whole tensors. Else what it reads whole: tensor → storage."""
        placements, storage_of = self.placements, self.storage_of
        table = op.module in self.tables and op.signature.name == "aten.embedding_dense_backward"
        read = [storage_of[t] for t in op.inputs]
        given = list(map(placements.get, read))
        if not (table or any(given)):
            if not read:
                self._free.update(storage_of[t] for t in op.outputs)
            return None
        made = [storage_of[t] for t in op.outputs]
        for storage in made:
            self._written[storage] = position
        if made and not op.signature.mutates and all(s in read for s in made):
            return _NONE  # a view
        if PARTIAL in given:
            if self._adds_terms(op, read):
                placements.update(dict.fromkeys((*made, *(read[i] for i in op.signature.mutates)), PARTIAL))
                return None
            for t, storage in zip(op.inputs, read, strict=True):
                if placements.get(storage) is PARTIAL:
                    self._add_up(t, op, position)
        if table:
            return self._place_table_gradient(position, op)
        outputs, gathered = self._place_outputs(position, op)
        if op.signature.name in _LOSS_EXCHANGES:
            self._exchange_for_loss(position, op)
        for t, storage, output in zip(op.outputs, made, outputs, strict=True):
            if storage in read:
                continue
            if isinstance(output, Cut):
                self._split(storage, self.graph.tensors[t].layout, output)
            elif output is PARTIAL:
                placements[storage] = PARTIAL
        return gathered

    def _place_outputs(self, position: int, op: Op) -> tuple[Outputs, Mapping[int, int] | None]:
        try:
            outputs = self._cuts_of_outputs(op)
        except CannotShard:
            if self.policy.cuts_whole:
                routed = cuts_of_routing(op.signature, [self.cut(t) for t in op.inputs])
                if routed is not None:
                    return routed, _NONE
                if any("float" in x.dtype for x in op.signature.inputs):
                    raise
                # Labels and positions are cut before the step, however the model shifts them: the op is as it was.
                return [None] * len(op.outputs), None
            if (routed := self._routed(op)) is not None:
                return routed, _NONE
            if not (gathered := self._gather_tokens(position, op)):
                raise
            return self._cuts_of_outputs(op, gathered), gathered
        if self.policy.cuts_whole and operator_of(op.signature.name).is_attention:
            return outputs, self._pass_keys_around(position, op)
        return outputs, _NONE

    def _routed(self, op: Op) -> Outputs | None:
        """Ranks that share a sequence route the tokens they have; those that share experts gather the rows for them."""
        if not self.has_experts:
            return None
        cuts = [self.cut(t) for t in op.inputs]
        if not any(c is not None and c.tokens for c in cuts):
            return None
        if op.signature.name != GROUPED:
            return cuts_of_routing(op.signature, cuts)
        if not self.policy.whole_experts:
            return None
        # Gradients of whole experts are added up among the ranks that have the same ones, not here.
        return [None if made is PARTIAL else made for made in cuts_of_routing(op.signature, cuts) or ()]

    def cut(self, tensor: int) -> Cut | None:
        placement = self.placements.get(self.storage_of[tensor])
        if not isinstance(placement, Split):
            return None
        layout = self.graph.tensors[tensor].layout
        key = (id(layout), placement)
        if key not in self._cuts:
            self._cuts[key] = cut_of(layout, placement, self.ways)
        return self._cuts[key]

    def _split(self, storage: int, layout: Layout, cut: Cut) -> None:
        self.placements[storage] = split_of(layout, cut, self.ways)
        self._shrunk.add(storage)

    def _cuts_of_outputs(self, op: Op, gathered: Mapping[int, int] = _NONE) -> Outputs:
        cuts = [None if t in gathered else self.cut(t) for t in op.inputs]
        if None in cuts and not has_rule(op.signature.name):
            self._cut_what_is_free(op, cuts)
        key = (id(op.signature), *cuts)
        if key not in self._outputs:
            self._outputs[key] = cuts_of_outputs(op.signature, cuts)
        return self._outputs[key]

    def _cut_what_is_free(self, op: Op, cuts: list[Cut | None]) -> None:
        layouts, storages = op.signature.inputs, self.graph.storages
        found = [(len(x.shape) - c.dim, x.shape[c.dim], c) for c, x in zip(cuts, layouts, strict=True) if c is not None]
        for i, t in enumerate(op.inputs):
            storage = self.storage_of[t]
            free = storage in self._free or storages[storage].role == "gradient"
            if cuts[i] is not None or not (free or (self.policy.cuts_whole and storages[storage].role != "parameter")):
                continue
            for from_last, size, cut in found:
                dim = len(layouts[i].shape) - from_last
                if dim >= 0 and layouts[i].shape[dim] == size:
                    cuts[i] = cut._replace(dim=dim)
                    if free:
                        self._split(storage, layouts[i], cut._replace(dim=dim))
                    break

    def _pass_keys_around(self, position: int, op: Op) -> Mapping[int, int]:
        """Ring attention: keys and values of every rank pass by every other; on the way back their gradients too."""
        passing = [op.signature.argument(name) for name in ("key", "value")]
        tensors = [op.inputs[v.index] for v in passing if isinstance(v, Input)]
        if all(self.cut(t) is None for t in tensors):
            return _NONE
        nbytes = sum(self.graph.tensors[t].layout.nbytes for t in tensors) * (self.ways - 1) // self.ways
        times = 2 if op.phase == "backward" else 1
        self._communicate("send-recv", nbytes * times, f"keys and values of {op.module}", position - 1, position + 1)
        return {t: self.storage_of[t] for t in tensors}

    def _adds_terms(self, op: Op, read: list[int]) -> bool:
        """Whether an op adds terms of sums: what it makes is a term too. Gradients start as what is added to them."""
        if op.signature.name not in _ADDS or len(read) < 2:
            return False
        return all(
            self.placements.get(s) is PARTIAL
            or (s not in self.placements and self.graph.storages[s].role == "gradient")
            for s in read
        )

    def _add_up(self, tensor: int, op: Op, position: int) -> None:
        """Add up a sum before an op needs it: all of it on every rank, or along the sequence a part on each."""
        t = self.graph.tensors[tensor]
        storage = self.graph.storages[t.storage]
        del self.placements[t.storage]
        if storage.role == "gradient" and not self.policy.sums_gradients:
            return
        kind, made_by = "all-reduce", self._written.get(t.storage, position - 1)
        of_experts = self.graph.ops[made_by].signature.name == GROUPED
        cut = self._scattered(op, t, of_experts=of_experts) if self.policy.scatters_tokens else None
        if cut is not None:
            self.placements[t.storage] = split_of(t.layout, cut, self.ways)
            kind = "reduce-scatter"
        nbytes = min(t.layout.nbytes, storage.nbytes)  # expanded tensors are sent as they are stored
        self._communicate(kind, nbytes, op.module, made_by, position, of_experts=of_experts)

    def _scattered(self, op: Op, t: Tensor, *, of_experts: bool) -> Cut | None:
        """How a sum is scattered along the sequence: tokens, or the rows that tokens were routed as, as they were gathered."""
        if of_experts:
            return self._row_cuts.get(t.layout.shape[0])
        if len(t.layout.shape) > 2 and self._others_are_scattered(op, t):
            return Cut(len(t.layout.shape) - 2, tokens=True)
        return None

    def _others_are_scattered(self, op: Op, tensor: Tensor) -> bool:
        others = [self.graph.tensors[o] for o in op.inputs if self.graph.tensors[o].layout.shape == tensor.layout.shape]
        placements = [self.placements.get(o.storage) for o in others if o.storage != tensor.storage]
        return all(p is PARTIAL or (isinstance(p, Split) and p.tokens) for p in placements)

    def _gather_tokens(self, position: int, op: Op) -> dict[int, int]:
        """Whole rows for an op that cannot work on parts of the sequence; gathered once, or once in each pass."""
        gathered = {}
        for t in op.inputs:
            tensor = self.graph.tensors[t]
            placement = self.placements.get(tensor.storage)
            if not (isinstance(placement, Split) and placement.tokens):
                continue
            of_experts = op.signature.name == GROUPED
            whole, is_new = self._gathers.whole(t, position, "" if of_experts else op.phase)
            if of_experts and (cut := self.cut(t)) is not None and cut.dim == 0:
                self._row_cuts[tensor.layout.shape[0]] = cut
            if is_new:
                ready = self._written.get(tensor.storage, position - 1)
                ready = ready if self.graph.ops[ready].phase == op.phase else position - 1
                nbytes = tensor.layout.nbytes
                self._communicate("all-gather", nbytes, op.module, ready, position, of_experts=of_experts)
                self.collectives[-1] = replace(self.collectives[-1], reads=tensor.storage, makes=whole)
            gathered[t] = whole
        return gathered

    def _place_table_gradient(self, position: int, op: Op) -> Mapping[int, int]:
        gathered = self._gather_tokens(position, op)
        for t in op.outputs:
            self._split(self.storage_of[t], self.graph.tensors[t].layout, Cut(0, uneven=True))
        return gathered

    def _exchange_for_loss(self, position: int, op: Op) -> None:
        cut, layout = self.cut(op.inputs[0]), op.signature.inputs[0]
        if cut is not None and cut.dim == len(layout.shape) - 1:
            for what in _LOSS_EXCHANGES[op.signature.name]:
                self._communicate("all-reduce", layout.nbytes // max(layout.shape[-1], 1), what, position - 1, position)

    def _communicate(
        self, kind: str, nbytes: int, what: str, after: int, before: int, *, of_experts: bool = False
    ) -> None:
        self.collectives.append(
            Collective(
                kind=kind,
                nbytes=nbytes,
                group=self.policy.group,
                name=f"{kind} {what}".strip(),
                starts_after=after,
                waited_for_by=before,
                lane=EXPERTS_LANE if of_experts else self.policy.lane,
                every_micro_step=True,
            )
        )

    def _place_update(self, update: list[tuple[int, Op]]) -> None:
        """The optimizer works on each parameter's own part; its state is cut as the parameter is."""
        for position, op in update:
            for t in op.inputs:
                if self.placements.get(self.storage_of[t]) is PARTIAL:
                    self._add_up(t, op, position)
        rows = [row for _, op in update for row in rows_of_update(op)]
        for _ in range(2):  # the second round knows what the later ops of the first found out
            rows = [row for row in rows if self._cut_alike(row)]

    def _cut_alike(self, tensors: Iterable[int]) -> bool:
        """Whether there is something left to cut."""
        uncut = [t for t in tensors if self.storage_of[t] not in self.placements]
        cuts = {self.graph.tensors[t].layout.shape: c for t in tensors if (c := self.cut(t))} if uncut else {}
        for t in uncut if cuts else ():
            layout, storage = self.graph.tensors[t].layout, self.storage_of[t]
            if storage not in self.placements and layout.shape in cuts:
                self._split(storage, layout, cuts[layout.shape])
        return bool(uncut)


class _Rewrite:
    """Gives ops the tensors and signatures of their parts; repeated layers share their new signatures."""

    def __init__(self, sharded: Propagation) -> None:
        self.sharded = sharded
        self.tensors = list(sharded.graph.tensors)
        self._numbers: dict[tuple[int, Split | int], int] = {}  # tensor, split or gathered storage → new tensor
        self._layouts: dict[tuple[int, Split], Layout] = {}
        self._signatures: dict[tuple[int, ...], Signature] = {}

    def op(self, op: Op, gathered: Mapping[int, int]) -> Op:
        inputs, outputs = self._parts(op.inputs, gathered), self._parts(op.outputs, _NONE)
        if inputs == op.inputs and outputs == op.outputs:
            return op
        tensors = self.tensors
        key = (id(op.signature), *[id(tensors[t].layout) for t in inputs + outputs])
        if key not in self._signatures:
            read, made = (tuple(tensors[t].layout for t in side) for side in (inputs, outputs))
            self._signatures[key] = replace(op.signature, inputs=read, outputs=made)
        return Op(self._signatures[key], op.phase, op.module, inputs, outputs, op.times)

    def _parts(self, numbers: tuple[int, ...], gathered: Mapping[int, int]) -> tuple[int, ...]:
        """The tensors that stand for these."""
        placements, storage_of, known = self.sharded.placements, self.sharded.storage_of, self._numbers
        parts = []
        for number in numbers:
            storage = storage_of[number]
            placed: Placement | int = gathered[number] if number in gathered else placements.get(storage)
            if placed is None or isinstance(placed, Partial) or placed == storage:
                parts.append(number)
                continue
            key = (number, placed)
            if key not in known:
                known[key] = len(self.tensors)
                self.tensors.append(self._made(self.sharded.graph.tensors[number], placed))
            parts.append(known[key])
        return tuple(parts)

    def _made(self, tensor: Tensor, placed: Split | int) -> Tensor:
        if isinstance(placed, int):
            return Tensor(tensor.layout, placed, tensor.offset)
        key = (id(tensor.layout), placed)
        if key not in self._layouts:
            ways = self.sharded.ways
            self._layouts[key] = part_of(tensor.layout, cut_of(tensor.layout, placed, ways), ways)
        return Tensor(self._layouts[key], tensor.storage, tensor.offset)
