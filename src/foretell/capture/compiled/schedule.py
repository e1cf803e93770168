"""A compiled graph as it runs: its kernels in order, the memory they take, and when it is given back.

Run on fake tensors under a recorder, it is recorded as the compiled code would run: fused kernels are ops of their own,
those of a library are called as the operators they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from foretell.capture.compiled.recorder import CompiledRecorder, Launcher

Sizes = tuple[int, ...]
# The code looks at memory anew: autograd, which knows no view of it, lets what comes after it write there.
_VIEWS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A tensor by its buffer; `size` None: the buffer as it is."""

    name: str
    size: Sizes | None = None
    stride: Sizes = ()
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """What a kernel makes: memory of its own, or `over` that of another."""

    name: str
    size: Sizes
    stride: Sizes
    dtype: torch.dtype
    over: str | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """One kernel that the compiler writes."""

    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    facts: tuple[tuple[str, int | str], ...]  # by `loops.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A call of an operator, with `View`s in the places of tensors."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """One of the tensors that an operator has made."""

    of: str
    path: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One node of the schedule; `ends` are buffers that nobody reads after it."""

    name: str  # of what it makes, where that is several tensors
    what: Fused | Library | Picked | None = None
    made: tuple[Buffer, ...] = ()
    ends: tuple[str, ...] = ()
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    inputs: tuple[str, ...]
    entries: tuple[Entry, ...]
    outputs: tuple[Any, ...]
    constants: Mapping[str, tuple[Sizes, Sizes, torch.dtype]]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)  # constants, once made

    def run(self, arguments: list[Any], recorder: CompiledRecorder, launched_by: Launcher) -> list[Any]:
        """What the compiled code returns; the caller's arguments are released as it does."""
        with recorder.running(len(arguments), launched_by):
            return self._run(arguments, recorder)

    def _run(self, arguments: list[Any], recorder: CompiledRecorder) -> list[Any]:
        known: dict[str, Any] = dict(zip(self.inputs, arguments, strict=True))
        arguments.clear()
        for name, (size, stride, dtype) in self.constants.items():
            if name not in self.kept:
                self.kept[name] = _empty(recorder, size, stride, dtype)
        known |= self.kept
        memory = _Memory({buffer.name: buffer for entry in self.entries for buffer in entry.made}, known, recorder)
        around = recorder.module
        with torch.no_grad():
            for entry in self.entries:
                recorder.module = ".".join(filter(None, (around, entry.module)))
                self._step(entry, known, recorder, memory)
                for name in entry.ends:
                    known.pop(name, None)
            recorder.module = around
            return [_seen(out, known, recorder) for out in self.outputs]

    def _step(self, entry: Entry, known: dict[str, Any], recorder: CompiledRecorder, memory: _Memory) -> None:
        what = entry.what
        if isinstance(what, Picked):
            value = known[what.of]
            for place in what.path:
                value = value[place]
            known[entry.made[0].name] = value
        elif isinstance(what, Library):
            args, kwargs = pytree.tree_map(lambda each: _seen(each, known, recorder), (what.args, dict(what.kwargs)))
            made = what.operator(*args, **kwargs)
            _keep(entry, made, known, recorder, memory)
        else:
            for buffer in entry.made:
                if not isinstance(what, Fused) or buffer.over or buffer.name in what.writes:
                    memory.place(buffer)
            if isinstance(what, Fused):
                reads = [known[name] for name in what.reads if isinstance(known.get(name), torch.Tensor)]
                recorder.launch(what.kind, what.facts, reads, [known[name] for name in what.writes])


@dataclass(frozen=True, slots=True)
class _Memory:
    """Takes a buffer's memory as the compiled code does: what others are parts of is there before the first of them."""

    buffers: Mapping[str, Buffer]
    known: dict[str, Any]
    recorder: CompiledRecorder

    def place(self, buffer: Buffer) -> Any:
        if buffer.name not in self.known:
            self.known[buffer.name] = self._placed(buffer)
        return self.known[buffer.name]

    def _placed(self, buffer: Buffer) -> Any:
        whole = self.known.get(buffer.over) if buffer.over else None
        if whole is None and buffer.over and buffer.over in self.buffers and buffer.over != buffer.name:
            whole = self.place(self.buffers[buffer.over])
        if whole is None:
            return self.recorder.take(_empty(self.recorder, buffer.size, buffer.stride, buffer.dtype))
        if (tuple(whole.shape), whole.stride()) == (buffer.size, buffer.stride):
            return whole
        return _strided(whole, buffer.size, buffer.stride, buffer.offset, self.recorder)


def _keep(entry: Entry, made: Any, known: dict[str, Any], recorder: CompiledRecorder, memory: _Memory) -> None:
    if not entry.made:  # several tensors, picked one by one
        known[entry.name] = made
        return
    buffer = entry.made[0]
    if buffer.over:
        memory.place(buffer)
    elif isinstance(made, torch.Tensor):
        fits = (tuple(made.shape), made.stride()) == (buffer.size, buffer.stride)
        known[buffer.name] = made if fits else _strided(made, buffer.size, buffer.stride, 0, recorder)
    else:
        known[buffer.name] = made


def _seen(value: Any, known: dict[str, Any], recorder: CompiledRecorder) -> Any:
    if not isinstance(value, View):
        return value
    tensor = known[value.name]
    if value.size is None or not isinstance(tensor, torch.Tensor):
        return tensor
    if (tuple(tensor.shape), tensor.stride()) == (value.size, value.stride):
        return tensor
    return _strided(tensor, value.size, value.stride, value.offset, recorder)


def _strided(tensor: torch.Tensor, size: Sizes, stride: Sizes, offset: int, recorder: CompiledRecorder) -> torch.Tensor:
    with recorder.unseen(), torch._C._ExcludeDispatchKeyGuard(_VIEWS):
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _empty(recorder: CompiledRecorder, size: Sizes, stride: Sizes, dtype: torch.dtype) -> torch.Tensor:
    with recorder.unseen():
        return torch.empty_strided(size, stride, dtype=dtype)
