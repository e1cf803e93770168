"""What a recorded step consumed, from its losses back to its inputs: a pass over the ops of its graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from foretell.graph import Graph, Layout, Op
from foretell.graph.operators import operator_of

_STATE: Final = ("parameter", "gradient", "optimizer", "host")  # storages that a step finds, updates and leaves
_CHOOSE: Final = frozenset(
    f"aten.{name}"
    for name in "index _unsafe_index index_select gather take embedding masked_select narrow_copy slice_copy".split()
)
_KEEP: Final = frozenset(f"aten.{name}" for name in "_to_copy clone copy contiguous".split())
_JOIN: Final = frozenset(("aten.cat", "aten.stack"))  # what they make is data if all that they join is
_ROWS: Final = frozenset(("matmul", "rnn", "convolution", "attention"))  # that compute for each position of a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor of data that a loss depends on."""

    shape: tuple[int, ...]
    is_integer: bool
    # It arrived or was drawn in the step, was chosen in it from what lies on the device, or lies there as it is.
    kind: Literal["arrived", "chosen", "resident"]

    @property
    def samples(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What the losses of a step depend on, in order of first use."""

    sources: tuple[Source, ...]
    ends: tuple[int, ...]  # leading sizes of what losses are averages or sums of
    batches: tuple[int, ...]  # of layers that say which of their sides is the batch: recurrent ones, attention
    lengths: tuple[int, ...]  # of the sequences that these see
    sequences: tuple[tuple[int, ...], ...]  # integers that are looked up in an embedding, and computed on one by one
    # Shapes (time, batch) of rows that were cut twice from the same whole numbers: of a text, and of what comes next in it.
    moved_on: tuple[tuple[int, int], ...] = ()


def consumed_in(graph: Graph, losses: Iterable[int], resident: frozenset[int]) -> Consumed:
    """What these storages depend on; all that the step computes where there are none.

    `resident`: storages that were there before the step and are no state of the model.
    """
    flow = _Flow(graph, frozenset(losses), resident)
    layers = tuple(_layers(flow.ops))
    return Consumed(
        sources=tuple(flow.sources()),
        ends=tuple(dict.fromkeys(flow.ends())),
        batches=tuple(dict.fromkeys(batch for batch, _ in layers)),
        lengths=tuple(dict.fromkeys(length for _, length in layers)),
        sequences=tuple(flow.sequences()),
        moved_on=tuple(dict.fromkeys(flow.moved_on())),
    )


class _Flow:
    """The ops of a step that its losses depend on."""

    def __init__(self, graph: Graph, losses: frozenset[int], resident: frozenset[int]) -> None:
        self._graph, self._losses, self._resident = graph, losses, resident
        self._storage = [tensor.storage for tensor in graph.tensors]
        self._layout = [tensor.layout for tensor in graph.tensors]
        self._is_state = [s.role in _STATE and i not in resident for i, s in enumerate(graph.storages)]
        self._arrives = [s.role == "input" for s in graph.storages]
        self.ops = self._needed()

    def _written(self, op: Op) -> Iterator[int]:
        yield from (self._storage[t] for t in op.outputs)
        yield from (self._storage[op.inputs[i]] for i in op.signature.mutates)

    def _needed(self) -> list[Op]:
        if not self._losses:
            return [op for op in self._graph.ops if op.phase == "forward"]
        needed, found = set(self._losses), list[Op]()
        for op in reversed(self._graph.ops):
            if op.phase != "optimizer" and any(s in needed and not self._is_state[s] for s in self._written(op)):
                needed.update(self._storage[t] for t in op.inputs)
                found.append(op)
        return found[::-1]

    def _is_raw(self, op: Op, raw: Mapping[int, int]) -> bool:
        """Whether an op makes data of data: it looks at it, chooses from it, or copies it."""
        if not op.inputs or not op.outputs or op.inputs[0] not in raw:
            return False
        name = op.signature.name
        if name in _JOIN:
            return all(t in raw for t in op.inputs)
        views = self._storage[op.outputs[0]] == self._storage[op.inputs[0]] and not op.signature.mutates
        return views or name in _CHOOSE or name in _KEEP

    @cached_property
    def _raw(self) -> tuple[dict[int, int], dict[int, Source]]:
        """Tensors that are data still, with the storages that they come from, and those that something computes with."""
        raw, used, chosen = dict[int, int](), dict[int, Source](), set[int]()
        for op in self.ops:
            for t in op.inputs:
                if self._arrives[self._storage[t]] or self._storage[t] in self._resident:
                    raw.setdefault(t, self._storage[t])
            if self._is_raw(op, raw):
                raw.update(dict.fromkeys(op.outputs, raw[op.inputs[0]]))
                narrower = self._layout[op.outputs[0]].numel < self._layout[op.inputs[0]].numel
                if op.inputs[0] in chosen or op.signature.name in _CHOOSE or narrower:
                    chosen.update(op.outputs)
                continue
            for t in op.inputs:
                if t in raw and t not in used:
                    used[t] = self._source(t, raw[t], t in chosen)
        return raw, used

    def _source(self, tensor: int, origin: int, chosen: bool) -> Source:
        layout: Layout = self._layout[tensor]
        kind: Literal["arrived", "chosen", "resident"] = "chosen" if chosen else "resident"
        if self._arrives[origin]:  # as it was then, before it was flattened or cut
            layout, kind = self._first[origin], "arrived"
        return Source(shape=layout.shape, is_integer=_is_integer(layout), kind=kind)

    @cached_property
    def _first(self) -> dict[int, Layout]:
        """What storages were when they were first used."""
        first: dict[int, Layout] = {}
        for storage, layout in zip(self._storage, self._layout, strict=True):
            first.setdefault(storage, layout)
        return first

    def sources(self) -> Iterator[Source]:
        seen = set[int]()
        for tensor, source in self._raw[1].items():
            origin = self._raw[0][tensor]
            if source.kind == "arrived":
                if origin in seen:
                    continue
                seen.add(origin)
            if source.shape and max(source.shape) > 1:
                yield source

    def moved_on(self) -> Iterator[tuple[int, int]]:
        raw, _ = self._raw
        cuts: dict[tuple[int, Layout], set[int]] = {}
        for t, storage in raw.items():
            layout = self._layout[t]
            rows = len(layout.shape) == 2 and layout == Layout.contiguous(layout.shape, layout.dtype)
            part = layout.nbytes < self._graph.storages[storage].nbytes
            if storage in self._resident and rows and part and _is_integer(layout) and t not in self._makers:
                cuts.setdefault((storage, layout), set()).add(t)
        for (_, layout), tensors in cuts.items():
            if len(tensors) > 1:
                yield layout.shape[0], layout.shape[1]

    def ends(self) -> Iterator[int]:
        """Back from the losses through single numbers."""
        single = set(self._losses)
        for op in reversed(self.ops):
            if not any(self._storage[t] in single for t in op.outputs):
                continue
            for t in op.inputs:
                layout, storage = self._layout[t], self._storage[t]
                if self._is_state[storage]:
                    continue
                if layout.numel == 1:
                    single.add(storage)
                elif layout.shape:
                    yield layout.shape[0]

    def sequences(self) -> Iterator[tuple[int, ...]]:
        raw, _ = self._raw
        whole = {
            self._layout[t].shape for op in self.ops if op.signature.name == "aten.embedding" for t in op.inputs[1:2]
        }
        computed = {shape for shape in whole if self._computes_each(shape)}
        for op in self.ops:
            if op.signature.name == "aten.embedding" and self._is_state[self._storage[op.inputs[0]]]:
                index = op.inputs[1]
                layout = self._layout[index]
                if layout.shape in computed and self._is_of_integers(index, raw):
                    yield layout.shape

    def _is_of_integers(self, tensor: int, raw: Mapping[int, int]) -> bool:
        """Whether numbers come from data that is whole numbers itself: not marks of time, cast."""
        return self._is_known(tensor, raw) or any(
            self._is_known(t, raw) for op in self._makers.get(tensor, ()) for t in op.inputs
        )

    def _is_known(self, tensor: int, raw: Mapping[int, int]) -> bool:
        return tensor in raw and _is_integer(self._first[raw[tensor]])

    @cached_property
    def _makers(self) -> dict[int, list[Op]]:
        made: dict[int, list[Op]] = {}
        for op in self.ops:
            for t in op.outputs:
                made.setdefault(t, []).append(op)
        return made

    def _computes_each(self, shape: tuple[int, ...]) -> bool:
        """Whether something with weights, a recurrence or attention works on each number of a (batch, length) on its own."""
        if len(shape) == 1:  # sequences in a row, which attention takes as one
            return shape[0] > 1 and shape[0] in {length for _, length in _layers(self.ops)}
        if len(shape) != 2 or shape[1] < 2:
            return False
        rows = shape[0] * shape[1]
        for op in self.ops:
            if operator_of(op.signature.name).family in _ROWS:
                for t in op.inputs:
                    sides = () if self._is_state[self._storage[t]] else self._layout[t].shape
                    if sides[:1] == (rows,) or (len(sides) > 2 and {*shape} <= {*sides[:-1]}):
                        return True
        return False


def _layers(ops: Iterable[Op]) -> Iterator[tuple[int, int]]:
    """(batch, length) of layers that say which of their sides is which."""
    for op in ops:
        family, inputs = operator_of(op.signature.name).family, op.signature.inputs
        if family == "rnn" and len(inputs[0].shape) == 3:
            first, second = inputs[0].shape[:2]
            yield (first, second) if op.signature.argument("batch_first") else (second, first)
        elif family == "rnn" and (state := op.signature.tensor("hx")) is not None:  # packed
            yield state.shape[1], 0
        elif family == "attention" and len(inputs[0].shape) == 4:
            yield inputs[0].shape[0], inputs[0].shape[2]


def _is_integer(layout: Layout) -> bool:
    return layout.dtype.startswith(("int", "uint"))
