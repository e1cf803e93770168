"""Products in 8 bits: linear layers of repeated blocks multiply scaled copies of their factors, and what scales them is ops.

The embedding, the output layer, routers and attention stay in half precision, as in Transformer Engine and torchao. Each of a
layer's three products reads its factors row by row along the sum, so a factor that takes part in two of them is written
twice, as it is and transposed, by one kernel. Activations wait for the backward pass as transposed copies alone. Weights are
scaled once per step where ranks keep them whole, and after each gathering where they are sharded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from foretell.graph import Graph, Input, Layout, Op, Signature, Storage, Tensor
from foretell.parallel.fp8_layers import PRODUCTS, Layers, factors_of
from foretell.plans import Plan
from foretell.precision import Recipe
from foretell.program import Collective, Role

Places = Sequence[int]  # of each op in what became of a role, and of its end
Way = Literal["straight", "transposed"]
_FP8: Final = "float8_e4m3fn"
_IN_FP8: Final = {
    "aten.mm": "aten._scaled_mm",
    "aten.addmm": "aten._scaled_mm",
    "aten._grouped_mm": "aten._scaled_grouped_mm",
}
_CAST: Final = "foretell.fp8_cast.default"
_LARGEST: Final = "aten.amax.default"
_SCALINGS: Final[dict[Recipe, str]] = {
    "delayed": "tensor", "current": "tensor", "rowwise": "rows", "blockwise": "blocks", "mx": "mx",
}  # fmt: skip
_GATHERED: Final[tuple[Recipe, ...]] = ("delayed", "current", "mx")  # by Transformer Engine, with tensor parallelism


def in_fp8(role: Role, layers: Layers, plan: Plan) -> tuple[Role, Places]:
    """The role with its layers' products in 8 bits, and where each op went: first what was put before it; then the end."""
    rewrite = _Rewrite(role, layers, plan)
    return rewrite.role(), [*rewrite.begins, len(rewrite.ops)]


class _Copied(NamedTuple):
    """What is scaled: a part of a storage, in one pass where weights come and go."""

    storage: int
    offset: int
    numel: int
    visit: int


class _Rewrite:
    def __init__(self, role: Role, layers: Layers, plan: Plan) -> None:
        self.old, self.graph, self.layers = role, role.graph, layers
        self.recipe = role.graph.precision.fp8
        self.scaling = _SCALINGS[role.graph.precision.fp8 or "delayed"]
        self.keeps_weights = plan.zero < 2 and self.recipe != "rowwise"  # torchao scales them in every micro-step
        self.tensors, self.storages = list(role.graph.tensors), list(role.graph.storages)
        self.ops: list[Op] = []
        self.begins: list[int] = []  # what was put before each op
        self.places: list[int] = []  # and the op itself
        self.ways: dict[_Copied, dict[Way, int]] = defaultdict(dict)  # → the op that reads it last
        self.copies: dict[tuple[_Copied, Way], int] = {}  # → its storage
        self.sources: dict[_Copied, int] = {}  # → a tensor of it
        self.modules: dict[_Copied, str] = {}
        self.weights = _weights(role.graph)
        self.products = self._find()
        self.scaled = self._read_last_by_products()
        self.gathered = self._gathered_rows()

    def role(self) -> Role:
        for position, op in enumerate(self.graph.ops):
            self.begins.append(len(self.ops))
            factors = self.products.get(position)
            if factors is not None:
                op = self._in_fp8(op, factors)
            self.places.append(len(self.ops))
            self.ops.append(op)
        for copied in [c for c in self.ways if self._is_kept(c)] if self.graph.training else ():
            self._scale(copied, "optimizer", 1)
        graph = replace(self.graph, ops=tuple(self.ops), tensors=tuple(self.tensors), storages=self._storages_now())
        return replace(self.old, graph=graph, collectives=tuple(map(self._moved, self.old.collectives)))

    def _find(self) -> dict[int, tuple[tuple[_Copied, Way], tuple[_Copied, Way]]]:
        """The products to replace, with their factors."""
        found = {}
        forward: dict[str, set[Layout]] = defaultdict(set)  # how modules lay out their weights there
        visit, phase = 0, ""
        for position, op in enumerate(self.graph.ops):
            visit, phase = visit + (op.phase != phase), op.phase
            if op.signature.name not in PRODUCTS or op.module not in self.layers.modules or phase == "optimizer":
                continue
            a, b = factors_of(op)
            if phase == "forward":
                forward[op.module].add(self.tensors[b].layout)
            ways: tuple[Way, Way] = ("transposed", "transposed")  # a weight's gradient
            if phase == "forward" or self._is_weight(b):  # forward again where it is recomputed, or an input's gradient
                ways = ("straight", "straight" if self.tensors[b].layout in forward[op.module] else "transposed")
            factors = [(self._copied(t, visit), way) for t, way in zip((a, b), ways, strict=True)]
            for copied, way in factors:
                self.ways[copied][way] = position
                self.modules.setdefault(copied, op.module)
            found[position] = (factors[0], factors[1])
        return found

    def _is_weight(self, tensor: int) -> bool:
        return self.tensors[tensor].storage in self.weights

    def _copied(self, tensor: int, visit: int) -> _Copied:
        t = self.tensors[tensor]
        persists = self.graph.storages[t.storage].born < 0 and self._is_weight(tensor)
        copied = _Copied(t.storage, t.offset, t.layout.numel, visit if persists and not self.keeps_weights else -1)
        self.sources.setdefault(copied, tensor)
        return copied

    def _is_kept(self, copied: _Copied) -> bool:
        """Whether its copies are there from one step to the next."""
        storage = self.graph.storages[copied.storage]
        return storage.role == "parameter" and storage.born < 0 and copied.visit < 0

    def _in_fp8(self, op: Op, factors: Iterable[tuple[_Copied, Way]]) -> Op:
        inputs: list[int] = []
        for old, (copied, way) in zip(factors_of(op), factors, strict=True):
            if (copied, way) not in self.copies:
                self._make(copied)
                if not self._is_kept(copied):
                    self._scale(copied, op.phase, op.times)
            layout = self.tensors[old].layout
            rows = layout.shape if not inputs else (*layout.shape[:-2], *layout.shape[:-3:-1])
            along = Layout.contiguous(rows, _FP8)  # both lie row by row along the sum
            if inputs:
                along = Layout(layout.shape, (*along.strides[:-2], *along.strides[:-3:-1]), _FP8)
            inputs.append(self._tensor(along, self.copies[copied, way]))
        others = [t for t in op.inputs if t not in factors_of(op)]
        signature = self.layers.interned(replace(
            op.signature, target=f"{_IN_FP8[op.signature.name]}.default", arguments=(("scaling", self.scaling),), mutates=(),
            inputs=tuple(self.tensors[t].layout for t in (*inputs, *others)),
        ))  # fmt: skip
        return replace(op, signature=signature, inputs=(*inputs, *others))

    def _tensor(self, layout: Layout, storage: int) -> int:
        self.tensors.append(Tensor(layout, storage))
        return len(self.tensors) - 1

    def _make(self, copied: _Copied) -> None:
        """Storages of its copies; those of activations are gone once they were read last."""
        kept, weight = self._is_kept(copied), self._is_weight(self.sources[copied])
        role = "parameter" if weight else "activation"
        in_place = self._is_in_place(copied)
        for way in self.ways[copied]:
            if in_place and way == "straight":
                self.copies[copied, way] = copied.storage
                if kept:
                    self._shrink(copied)
            else:
                self.copies[copied, way] = len(self.storages)
                self.storages.append(Storage(copied.numel, role, -1 if kept else len(self.ops), -1))

    def _is_in_place(self, copied: _Copied) -> bool:
        """Whether what is there is a scaled copy already: a weight that is kept or gathered in 8 bits, or gathered rows."""
        weight = self._is_weight(self.sources[copied]) and self.graph.precision.weights is not None
        return weight or copied.storage in self.gathered

    def _shrink(self, copied: _Copied) -> None:
        layout, old = self.tensors[self.sources[copied]].layout, self.storages[copied.storage]
        self.storages[copied.storage] = replace(old, nbytes=max(old.nbytes - layout.nbytes + layout.numel, 0))

    def _scale(self, copied: _Copied, phase: str, times: int) -> None:
        """The ops that write its copies: scales of the step itself need its largest number first."""
        old, module = self.tensors[self.sources[copied]], self.modules[copied]
        layout = old.layout
        if not layout.is_contiguous:  # a transposed view: it is read as it lies
            layout = Layout.contiguous((*layout.shape[:-2], *layout.shape[:-3:-1]), layout.dtype)
        source = len(self.tensors)
        self.tensors.append(Tensor(layout, old.storage, old.offset))
        own = [way for way in self.ways[copied] if self.copies[copied, way] != copied.storage]
        made = [self._tensor(_way(layout, way), self.copies[copied, way]) for way in own]
        if self._is_in_place(copied):
            source = self._tensor(replace(layout, dtype=_FP8), copied.storage)
        elif self.recipe in ("current", "rowwise"):
            number = self._tensor(Layout((), (), "float32"), len(self.storages))
            self.storages.append(Storage(512, "temporary", len(self.ops), len(self.ops) + 1))
            self._put(_LARGEST, phase, module, source, [number], times)
        if made:
            self._put(_CAST, phase, module, source, made, times)

    def _put(self, target: str, phase: str, module: str, source: int, made: list[int], times: int) -> None:
        layouts = tuple(self.tensors[t].layout for t in made)
        signature = self.layers.interned(
            Signature(target, (self.tensors[source].layout,), layouts, (("self", Input(0)),))
        )
        self.ops.append(Op(signature, phase, module, (source,), tuple(made), times))

    def _storages_now(self) -> tuple[Storage, ...]:
        used: dict[int, int] = {}
        for position, op in enumerate(self.ops):
            for t in (*op.inputs, *op.outputs):
                used[self.tensors[t].storage] = position
        scaled, read = self.scaled, {c.storage for c in self.ways}
        halved = self.gathered | {c.reads for c in self.old.collectives if c.makes in self.gathered}
        out, end = [], len(self.graph.ops)
        for number, s in enumerate(self.storages):
            if number >= len(self.graph.storages):
                freed = len(self.ops) if s.born < 0 else max(used.get(number, s.born), s.born)
            elif s.freed >= end:
                freed = len(self.ops)
            elif s.freed < 0:
                freed = s.freed
            elif number in scaled:
                freed = max(used.get(number, 0), self._born(s, number in read))
            else:
                freed = self.places[s.freed]
            new = number >= len(self.graph.storages)
            born = s.born if new else self._born(s, number in read)
            passes = s.role == "activation" and (new or number in scaled) and self._in_one_pass(born, freed)
            nbytes = s.nbytes // 2 if number in halved else s.nbytes
            out.append(Storage(nbytes, "temporary" if passes else s.role, born, freed))
        return tuple(out)

    def _in_one_pass(self, born: int, freed: int) -> bool:
        """Whether nothing of it waits for another pass."""
        return freed < len(self.ops) and self.ops[max(born, 0)].phase == self.ops[freed].phase

    def _read_last_by_products(self) -> set[int]:
        """Storages that nothing needs after their copies: the last op that read them was a product, which reads a copy."""
        last: dict[int, int] = {}
        for position, op in enumerate(self.graph.ops):
            for t in (*op.inputs, *op.outputs):
                last[self.graph.tensors[t].storage] = position
        return {c.storage for c in self.ways if last[c.storage] in self.products}

    def _born(self, storage: Storage, scaled: bool) -> int:
        """What is gathered for a product is there when its copies are made."""
        places = self.begins if scaled else self.places
        return storage.born if storage.born < 0 else places[min(storage.born, len(places) - 1)]

    def _gathered_rows(self) -> frozenset[int | None]:
        """Rows that only products read are scaled before they are gathered, unless blocks of them are."""
        if self.recipe not in _GATHERED:
            return frozenset()
        return frozenset(c.makes for c in self.old.collectives if c.kind == "all-gather" and c.makes in self.scaled)

    def _moved(self, c: Collective) -> Collective:
        def before(position: int) -> int:
            return position if position < 0 else self.begins[position] if position < len(self.begins) else len(self.ops)

        ready = c.starts_after if c.starts_after < 0 else self.places[min(c.starts_after, len(self.places) - 1)]
        issued = None if c.issued_by is None else before(c.issued_by)
        nbytes = c.nbytes // 2 if c.makes in self.gathered else c.nbytes
        return replace(c, nbytes=nbytes, starts_after=ready, waited_for_by=before(c.waited_for_by), issued_by=issued)


def _weights(graph: Graph) -> frozenset[int]:
    """Storages of parameters and of their casts."""
    found = {number for number, s in enumerate(graph.storages) if s.role == "parameter"}
    for op in graph.ops:
        if op.signature.name == "aten._to_copy" and graph.tensors[op.inputs[0]].storage in found:
            found |= {graph.tensors[t].storage for t in op.outputs}
    return frozenset(found)


def _way(layout: Layout, way: Way) -> Layout:
    shape = layout.shape
    return Layout.contiguous(shape if way == "straight" else (*shape[:-2], *shape[:-3:-1]), _FP8)
