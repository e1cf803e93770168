"""Queries and keys of latents as Megatron makes them: positions turned and parts of heads put together in one kernel each.

Attention whose queries have other heads than its values is found by its operators. What is done to its queries and keys
since their products, and to their gradients before the next ones, is one kernel each; heads lie side by side for each token,
so what attention makes is not copied for the product after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from foretell.capture.fusing.edit import Fusing
from foretell.graph import Input, Layout, Op, Tensor
from foretell.graph.operators import ATTENTION, names_of, operator_of

_FORWARD: Final = names_of("attention", *ATTENTION)
_BACKWARD: Final = names_of("attention_backward", *ATTENTION)
_STREAMS: Final = ("copy", "elementwise", "reduction")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Put:
    """An op for several: where, what it reads, and what it makes."""

    old: set[int]
    at: int
    target: str
    inputs: list[int]
    outputs: list[int]


class _Unlike(Exception):
    """Attention that is built in another way: it stays as it was captured."""


def fuse_latents(step: Fusing) -> None:
    writers: dict[int, list[int]] = defaultdict(list)
    for position, op in enumerate(step.graph.ops):
        if step.computes(op):
            for storage in {step.storage(t) for t in op.outputs}:
                writers[storage].append(position)
    for position, op in list(step.named("forward", *_FORWARD)):
        q, k, v = (_argument(op, name) for name in ("query", "key", "value"))
        if step.tensors[q].layout.shape[-1] == step.tensors[v].layout.shape[-1]:
            continue
        try:
            _Latents(step, writers, position).fuse(q, k)
        except _Unlike:
            continue


def _argument(op: Op, name: str) -> int:
    value = op.signature.argument(name)
    assert isinstance(value, Input)
    return op.inputs[value.index]


class _Latents:
    def __init__(self, step: Fusing, writers: dict[int, list[int]], position: int) -> None:
        self.step, self.writers, self.position = step, writers, position
        self.module = step.at(position).module
        self.tables: dict[int, int] = {}  # of positions: storage → tensor

    def fuse(self, q: int, k: int) -> None:
        step = self.step
        found = [p for p in step.readers[step.storage(q)] if step.at(p).signature.name in _BACKWARD]
        puts = [self._made(q, "foretell.latent_queries.default"), self._made(k, "foretell.latent_keys.default")]
        if found:
            dq, dk, dv = step.at(found[0]).outputs[:3]
            puts += [
                self._followed([dq], "foretell.latent_queries.default"),
                self._followed([dk, dv], "foretell.latent_keys_backward.default"),
            ]
        for put in puts:
            step.put(sorted(put.old), put.at, put.target, put.inputs, put.outputs)
        self._without_copy(found)

    def _made(self, tensor: int, target: str) -> _Put:
        """What is done to queries or keys before attention reads them."""
        step, ops, sources = self.step, set[int](), dict[int, int]()
        wanted = [step.storage(tensor)]
        while wanted:
            for p in self.writers[wanted.pop()]:
                if p in ops:
                    continue
                if not self._is_stream(p, "forward"):
                    raise _Unlike
                ops.add(p)
                for t in step.at(p).inputs:
                    if self._is_stream(next(iter(self.writers[step.storage(t)]), -1), "forward"):
                        wanted.append(step.storage(t))
                    elif step.storage(t) != step.storage(tensor):
                        self._note_source(t, sources)
        inside = {step.storage(t) for p in ops for t in step.at(p).outputs} - {step.storage(tensor)}
        if not ops or not sources or any(p not in ops for s in inside for p in step.readers[s]):
            raise _Unlike
        read = list(sources.values())
        if len(read) == 1:  # turned where they lie: the parts without positions are not touched
            read = [self._turned(ops, read[0])]
        return _Put(old=ops, at=max(ops), target=target, inputs=[*read, *self.tables.values()], outputs=[tensor])

    def _is_stream(self, position: int, phase: str) -> bool:
        op = self.step.ops[position] if position >= 0 else None
        inside = op is not None and op.phase == phase and (phase == "backward" or op.module == self.module)
        return inside and op is not None and operator_of(op.signature.name).family in _STREAMS

    def _note_source(self, tensor: int, sources: dict[int, int]) -> None:
        """A product's rows, or a table that layers share."""
        storage = self.step.storage(tensor)
        made_by = self.step.ops[self.writers[storage][0]] if self.writers[storage] else None
        own = made_by is not None and made_by.module.startswith(self.module)
        known = sources if own else self.tables
        larger = self.step.tensors[tensor].layout.numel
        if storage not in known or self.step.tensors[known[storage]].layout.numel < larger:
            known[storage] = tensor

    def _turned(self, ops: set[int], source: int) -> int:
        """Of the rows of a product, those of positions: what is multiplied with a table, all of it."""
        step, storage = self.step, self.step.storage(source)
        parts = [
            step.tensors[t].layout
            for p in ops
            if any(step.storage(o) in self.tables for o in step.at(p).inputs)
            for t in step.at(p).inputs
            if step.storage(t) == storage
        ]
        if not parts:
            return source
        widest = max(parts, key=lambda x: x.numel)
        halves = 2 if widest.shape[-1] == next(iter(self._table_widths())) else 1
        shape = (*widest.shape[:-1], widest.shape[-1] * halves)
        step.tensors.append(Tensor(Layout(shape, (*widest.strides[:-1], 1), widest.dtype), storage))
        return len(step.tensors) - 1

    def _table_widths(self) -> set[int]:
        return {self.step.tensors[t].layout.shape[-1] for t in self.tables.values()}

    def _followed(self, roots: list[int], target: str) -> _Put:
        """What is done to gradients before the next products read them."""
        step, ops = self.step, set[int]()
        made = {step.storage(t) for t in roots}
        known = made | set(self.tables)
        found = True
        while found:
            fresh = {
                p for s in known - set(self.tables) for p in step.readers[s] if p not in ops and self._only(p, known)
            }
            ops |= fresh
            known |= {step.storage(t) for p in fresh for t in step.at(p).outputs}
            found = bool(fresh)
        kept = [s for s in known - set(self.tables) if any(p not in ops for p in step.readers[s])]
        if not ops or not kept or set(kept) & made:
            raise _Unlike
        outputs = [self._by_heads(s, step.tensors[roots[0]].layout) for s in sorted(kept, key=self._size, reverse=True)]
        at = min(max(p for p in self.writers[s] if p in ops) for s in kept)
        inputs = roots if len(roots) > 1 else [self._turned(ops, roots[0])]
        return _Put(old=ops, at=at, target=target, inputs=[*inputs, *self.tables.values()], outputs=outputs)

    def _only(self, position: int, known: set[int]) -> bool:
        """Whether an op computes with nothing but what is known."""
        op = self.step.at(position)
        changed = {self.step.storage(op.inputs[i]) for i in op.signature.mutates}
        return self._is_stream(position, "backward") and {self.step.storage(t) for t in op.inputs} <= known | changed

    def _size(self, storage: int) -> int:
        return self.step.graph.storages[storage].nbytes

    def _by_heads(self, storage: int, like: Layout) -> int:
        """The tensor of a storage as attention has its sides: heads before tokens."""
        step = self.step
        tensor = next(t for p in self.writers[storage] for t in step.at(p).outputs if step.storage(t) == storage)
        layout = step.tensors[tensor].layout
        if layout.shape[1:3] == like.shape[2:0:-1] and layout.shape[1:3] != like.shape[1:3]:
            shape, strides = ([x[0], x[2], x[1], *x[3:]] for x in (layout.shape, layout.strides))
            step.tensors.append(Tensor(Layout(tuple(shape), tuple(strides), layout.dtype), storage))
            return len(step.tensors) - 1
        return tensor

    def _without_copy(self, backward: Iterable[int]) -> None:
        """Attention writes the rows that the next product reads, instead of rows that are copied for it."""
        step, attention = self.step, self.step.at(self.position)
        made = step.storage(attention.outputs[0])
        copy = step.only_reader(made, "forward", "aten.clone")
        if copy is None:
            return
        rows = step.tensors[step.at(copy).outputs[0]]
        own = step.tensors[attention.outputs[0]].layout
        if rows.layout.shape[1:3] != own.shape[2:0:-1]:
            return
        shape, strides = ([x[0], x[2], x[1], *x[3:]] for x in (rows.layout.shape, rows.layout.strides))
        layout = Layout(tuple(shape), tuple(strides), own.dtype)
        step.tensors.append(Tensor(layout, rows.storage))
        out = len(step.tensors) - 1
        step.ops[copy] = None
        for position in (self.position, *backward):
            op = step.at(position)
            inputs, outputs = (
                tuple(out if step.storage(t) == made else t for t in side) for side in (op.inputs, op.outputs)
            )
            signature = replace(
                op.signature,
                inputs=tuple(step.tensors[t].layout for t in inputs),
                outputs=tuple(step.tensors[t].layout for t in outputs),
            )
            step.ops[position] = replace(op, signature=signature, inputs=inputs, outputs=outputs)
