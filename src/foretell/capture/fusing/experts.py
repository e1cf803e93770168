"""Rows of experts as Transformer Engine moves them: sorted by expert and put back in one kernel each, opened and weighed in
one between the grouped products.

A mixture is found by its grouped products, forward and backward. What its module does with rows before, between and after
them is one kernel each way, if nobody else needs what is made in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from foretell.capture.fusing.edit import Fusing
from foretell.graph import Op

_GROUPED: Final = "aten._grouped_mm"
_OWN: Final = ("parameter", "gradient")
_LOOKS_UP: Final = "aten.index"
_ZEROS: Final = "aten.new_zeros"
_ADDS_UP: Final = "aten._index_put_impl_"  # rows of gradients of a bias, by expert
# Sorted and put back: in one kernel, or as a look-up and a sum into zeros.
_MOVES: Final = {
    True: ("foretell.permute_rows.default", "foretell.unpermute_rows.default"),
    False: ("aten.index_select.default", "aten.scatter_add.default"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One pass of a mixture: its products, and the ops on rows before, between and after them."""

    products: list[int]
    before: list[int]
    between: list[int]
    after: list[int]

    @property
    def ops(self) -> list[int]:
        return [*self.before, *self.between, *self.after]


class _Unlike(Exception):
    """A mixture that is built in another way: it stays as it was captured."""


def fuse_experts(step: Fusing, *, moves_fused: bool) -> None:
    """Replace what mixtures do with rows. `moves_fused`: rows are sorted and put back by one kernel each."""
    for forward, backward in list(_mixtures(step)):
        try:
            _Mixture(step, forward, backward).fuse(*_MOVES[moves_fused])
        except _Unlike:
            continue


def _mixtures(step: Fusing) -> Iterator[tuple[_Pass, _Pass | None]]:
    """Products of a module's forward pass, with those of the backward pass that follows it."""
    open_ones: dict[str, list[int]] = {}
    trained = any(op.phase == "backward" for op in step.graph.ops)
    grouped = [(p, op) for p, op in enumerate(step.graph.ops) if op.signature.name == _GROUPED]
    for (module, phase), run in groupby(grouped, key=lambda at: (at[1].module, at[1].phase)):
        positions = [p for p, _ in run]
        if phase == "forward":
            open_ones[module] = positions
        elif phase == "backward" and module in open_ones:
            widths = _widths(step, open_ones[module])
            yield _pass(step, open_ones.pop(module), widths), _pass(step, positions, widths)
    if not trained:
        yield from ((_pass(step, each, _widths(step, each)), None) for each in open_ones.values())


def _widths(step: Fusing, products: list[int]) -> frozenset[int]:
    """Of rows: a model's width, and an expert's."""
    signatures = [step.at(p).signature for p in products]
    return frozenset(x.shape[-1] for s in signatures for x in (s.inputs[0], s.outputs[0]))


def _pass(step: Fusing, products: list[int], widths: frozenset[int]) -> _Pass:
    module, phase = step.at(products[0]).module, step.at(products[0]).phase

    def belongs(position: int) -> bool:
        op = step.ops[position] if 0 <= position < len(step.ops) else None
        return op is not None and op.phase == phase and (op.module + ".").startswith(module + ".")

    begin, end = products[0], products[-1]
    while belongs(begin - 1):
        begin -= 1
    while belongs(end + 1):
        end += 1
    weights = {step.made(p) for p in products if len(step.at(p).signature.outputs[0].shape) == 3}
    weights |= {step.made(p) for p in range(begin, end + 1) if belongs(p) and _sums_biases(step, p, products[0])}
    wide = [
        p
        for p in range(begin, end + 1)
        if p not in products and belongs(p) and step.computes(op := step.at(p)) and _on_rows(step, op, widths, weights)
    ]
    first, last = products[0], products[-1]
    return _Pass(
        products=products,
        before=[p for p in wide if p < first],
        between=[p for p in wide if first < p < last],
        after=[p for p in wide if p > last],
    )


def _sums_biases(step: Fusing, position: int, product: int) -> bool:
    """Whether an op adds up rows of each expert, or makes the zeros that they are added to."""
    op, experts = step.at(position), step.at(product).signature.inputs[2].shape[0]
    made = step.tensors[op.outputs[0]].layout.shape if op.outputs else ()
    return op.signature.name in (_ADDS_UP, _ZEROS) and len(made) == 2 and made[0] == experts


def _on_rows(step: Fusing, op: Op, widths: frozenset[int], weights: set[int]) -> bool:
    """Whether an op reads or makes rows: not weights of experts, nor their gradients. A bias for each row is one of them."""
    tensors = (*op.inputs, *op.outputs)
    if op.signature.name == _LOOKS_UP and len(step.tensors[op.inputs[0]].layout.shape) == 2:
        return _are_rows(step, op.outputs[0], widths)
    if any(step.storage(t) in weights or step.graph.storages[step.storage(t)].role in _OWN for t in tensors):
        return False
    return any(_are_rows(step, t, widths) for t in tensors)


def _are_rows(step: Fusing, tensor: int, widths: frozenset[int]) -> bool:
    layout = step.tensors[tensor].layout
    return len(layout.shape) > 1 and layout.shape[-1] in widths and "float" in layout.dtype


class _Mixture:
    def __init__(self, step: Fusing, forward: _Pass, backward: _Pass | None) -> None:
        self.step, self.forward, self.backward = step, forward, backward
        self.inside = {*forward.ops, *(backward.ops if backward else ())}
        self.widths = _widths(step, forward.products)
        self.rows = step.at(forward.products[0]).signature.inputs[0].shape[0]
        self.values = {step.made(p) for p in (*forward.ops, *forward.products)}  # that the backward pass may read

    def fuse(self, sort: str, put_back: str) -> None:
        step, forward, backward = self.step, self.forward, self.backward
        up, down = [step.at(p) for p in forward.products[:-1]], step.at(forward.products[-1])
        if not up or len({step.storage(op.inputs[0]) for op in up}) != 1:
            raise _Unlike
        x, index = self._looked_up(forward.before)
        weights = self._small(forward.after, made=False)
        opened = [op.outputs[0] for op in up]
        puts = [
            (forward.before, sort, [x, index], self._kept(forward.before, {step.storage(up[0].inputs[0])})),
            (forward.between, "foretell.weighted_gate.default", [*opened, *weights],
             self._kept(forward.between, {step.storage(down.inputs[0])})),
            (forward.after, put_back, [down.outputs[0], index], self._kept(forward.after)),
        ]  # fmt: skip
        if backward is not None:
            puts += self._backward(backward, opened, weights, index, (sort, put_back))
        for ops, target, inputs, outputs in puts:
            step.put(ops, max(ops), target, inputs, outputs)
        if backward is not None:
            self._sum_up(dict.fromkeys(step.storage(t) for *_, outputs in puts for t in outputs))

    def _backward(
        self, backward: _Pass, opened: list[int], weights: list[int], index: int, moves: tuple[str, str]
    ) -> list[tuple[list[int], str, list[int], list[int]]]:
        step = self.step
        products = [(p, step.at(p)) for p in backward.products]
        rows = [(p, op) for p, op in products if len(op.signature.outputs[0].shape) == 2]
        if len(rows) != len(self.forward.products):
            raise _Unlike
        (_, first), later = rows[0], rows[1:]
        given = self._given(backward.before)
        gradients = self._kept(backward.between, {step.storage(op.inputs[0]) for _, op in later})
        further = self._small(backward.before, made=True) if weights else []
        return [
            (backward.before, moves[0], [given, index], self._kept(backward.before, {step.storage(first.inputs[0])})),
            (backward.between, "foretell.weighted_gated_backward.default", [first.outputs[0], *opened, *weights],
             [*gradients, *further]),
            (backward.after, moves[1], [*(op.outputs[0] for _, op in later), index], self._kept(backward.after)),
        ]  # fmt: skip

    def _looked_up(self, ops: list[int]) -> tuple[int, int]:
        """The rows that are sorted, and where each of them comes from."""
        x = self._given(ops)
        for position in ops:
            op = self.step.at(position)
            numbers = [t for t in op.inputs if self.step.tensors[t].layout.dtype.startswith("int")]
            if x in op.inputs and len(numbers) == 1:
                return x, numbers[0]
        raise _Unlike

    def _given(self, ops: list[int]) -> int:
        """The rows that ops read and that neither they nor the forward pass have made."""
        own = {self.step.made(p) for p in ops} | self.values
        found = {
            self.step.storage(t): t
            for p in reversed(ops)
            for t in self.step.at(p).inputs
            if self.step.storage(t) not in own and self._are_given(t)
        }
        if len(found) != 1:
            raise _Unlike
        return next(iter(found.values()))

    def _are_given(self, tensor: int) -> bool:
        role = self.step.graph.storages[self.step.storage(tensor)].role
        return role not in _OWN and _are_rows(self.step, tensor, self.widths)

    def _of_biases(self, storage: int) -> list[int]:
        """Ops that add up rows as gradients of a bias, and make the zeros they are added to."""
        step = self.step
        found = [
            p
            for p in step.readers[storage]
            if step.ops[p] is not None and _sums_biases(step, p, self.forward.products[0])
        ]
        sums = [p for p in found if step.at(p).signature.name == _ADDS_UP]
        return sums if len(found) == 2 * len(sums) else []

    def _sum_up(self, storages: Iterable[int]) -> None:
        """A bias has the sum of its expert's rows as its gradient, which one kernel makes."""
        step = self.step
        for position in [p for s in storages for p in self._of_biases(s)]:
            sums = step.at(position)
            zeros = step.written[step.made(position)]
            _, index, rows = sums.inputs[:3]
            step.put([zeros, position], position, "foretell.sum_rows.default", [rows, index], [sums.outputs[0]])

    def _kept(self, ops: list[int], wanted: set[int] | None = None) -> list[int]:
        """What ops leave to others: the rows of these storages, or the one that there is; and no other rows."""
        step = self.step
        made = {step.storage(t): t for p in ops for t in step.at(p).outputs if _are_rows(step, t, self.widths)}
        readers = {s: [p for p in step.readers[s] if p not in self.inside] for s in made}
        kept = {s: made[s] for s in made if readers[s]}
        if wanted is None and len(kept) == 1:
            return list(kept.values())
        others = [p for s in kept for p in readers[s] if step.at(p).signature.name != _GROUPED]
        if set(kept) != wanted or not all(_sums_biases(step, p, self.forward.products[0]) for p in others):
            raise _Unlike
        return list(kept.values())

    def _small(self, ops: list[int], *, made: bool) -> list[int]:
        """A number for each row: the weights that ops read, or the gradient of them that they make for others."""
        step, found = self.step, dict[int, int]()
        own = {step.storage(t) for p in ops for t in step.at(p).outputs}
        for t in (t for p in ops for t in (step.at(p).outputs if made else step.at(p).inputs)):
            layout, s = step.tensors[t].layout, step.storage(t)
            needed = any(p not in self.inside for p in step.readers[s]) if made else s not in own
            if layout.numel == self.rows and "float" in layout.dtype and needed:
                found.setdefault(s, t)
        if len(found) > 1:
            raise _Unlike
        return list(found.values())
