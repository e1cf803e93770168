"""The different calls of a step: ops that cost the same, so that a step is priced by its calls and not op by op."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from foretell.graph.operators import FUSED, operator_of
from foretell.graph.types import Op, Signature, Storage, Tensor

T = TypeVar("T")


class Call(NamedTuple):
    """A signature as it is called somewhere in a step."""

    signature: Signature
    phase: str
    is_view: bool  # its outputs lie in the storages it reads and nothing is written
    on_host: bool  # it reads nothing but numbers in host memory, such as an optimizer's step counters, and runs there

    @property
    def launches(self) -> bool:
        """Whether it is a kernel of the device."""
        return not self.is_view and not self.on_host and operator_of(self.signature.name).launches


@dataclass(frozen=True, kw_only=True)
class Calls:
    distinct: tuple[Call, ...]  # in order of first use
    first: tuple[int, ...]  # op of each that comes first
    times: tuple[int, ...]  # runs of each in the step
    of_op: tuple[int, ...]  # of each op, the place of its call among the distinct ones

    def each(self, of_call: Callable[[Call], T]) -> list[T]:
        """What holds of every op, asked once for each call."""
        return self.of_ops([of_call(call) for call in self.distinct])

    def of_ops(self, of_calls: Sequence[T]) -> list[T]:
        return [of_calls[call] for call in self.of_op]

    @cached_property
    def has_engine(self) -> bool:
        """Whether kernels of a fused trainer run in the step, and so its layers."""
        return any(operator_of(call.signature.name).of_an_engine for call in self.distinct)

    @cached_property
    def places(self) -> npt.NDArray[np.intp]:
        """`of_op`, to take from arrays that have a value for each call."""
        return np.array(self.of_op, dtype=np.intp)

    def sums(self, of_ops: npt.NDArray[np.float64]) -> list[float]:
        """What the ops of each call have together."""
        found: list[float] = np.bincount(self.places, of_ops, len(self.distinct)).tolist()
        return found


def calls_of(ops: Sequence[Op], tensors: Sequence[Tensor], storages: Sequence[Storage]) -> Calls:
    storage_of = [tensor.storage for tensor in tensors]
    on_host = {i for i, storage in enumerate(storages) if storage.role == "host"}
    known: dict[tuple[int, str, bool, bool], int] = {}
    distinct: list[Call] = []
    first: list[int] = []
    times: list[int] = []
    of_op = []
    for position, op in enumerate(ops):
        signature, inputs, outputs = op.signature, op.inputs, op.outputs
        read = [storage_of[i] for i in inputs]
        is_view = bool(outputs) and not signature.mutates and storage_of[outputs[0]] in read
        is_view = is_view and signature.name != FUSED  # which writes, in whatever shape
        if is_view and len(outputs) > 1:
            is_view = all(storage_of[o] in read for o in outputs)
        runs_there = not on_host.isdisjoint(read) and (on_host.issuperset(read) or _counts_up(op, tensors, on_host))
        key = (id(signature), op.phase, is_view, runs_there)
        call = known.get(key)
        if call is None:
            call = known[key] = len(distinct)
            distinct.append(Call(signature, op.phase, is_view, runs_there))
            first.append(position)
            times.append(0)
        times[call] += op.times
        of_op.append(call)
    return Calls(distinct=tuple(distinct), first=tuple(first), times=tuple(times), of_op=tuple(of_op))


def _counts_up(op: Op, tensors: Sequence[Tensor], on_host: Set[int]) -> bool:
    """Whether it adds one number to each of a list in host memory, as to an optimizer's step counters."""
    written = set(op.signature.mutates)
    return (
        bool(written)
        and operator_of(op.signature.name).walks_a_list
        and all(tensors[op.inputs[i]].storage in on_host for i in written)
        and not any(tensors[index].layout.shape for place, index in enumerate(op.inputs) if place not in written)
    )
