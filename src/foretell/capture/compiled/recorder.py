"""A recorder that a compiler may run under: what the compiler itself computes while it traces is no part of the step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch._guards import TracingContext

from foretell.capture.recorder import Execution, Recorder
from foretell.capture.values import Values
from foretell.graph import Op, Signature
from foretell.graph.operators import ENTERED, FUSED, LAUNCHED_BY

Launcher = Literal["code", "graph"]  # what launches the kernels of a compiled function: its own code, or a CUDA graph


class CompiledRecorder(Recorder):
    def __init__(self, execution: Execution | None = None) -> None:
        super().__init__(execution)
        self.ran = 0  # compiled functions, forward and backward
        self.failures: list[str] = []  # of the compiler

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # or nothing would be compiled under this mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    @property
    def is_traced(self) -> bool:
        """A compiler is at work."""
        return TracingContext.try_get() is not None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.is_traced:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """What the compiled code does without a kernel: it takes memory, and looks at a part of it."""
        recording, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = recording

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory that the compiled code takes now."""
        if self.recording:
            self._storage(tensor, born=len(self._ops))
        return tensor

    def know(self, tensor: Any, content: torch.Tensor) -> None:
        """What a compiled function makes, as the host knows it."""
        if isinstance(self._execution, Values) and isinstance(tensor, torch.Tensor):
            self._execution.give(tensor, content)

    @contextlib.contextmanager
    def running(self, inputs: int, launched_by: Launcher) -> Iterator[None]:
        """A compiled function is called with as many tensors, and runs."""
        self.ran += 1
        before = self.marks, self.module
        if self._phase() == "backward":
            self.module = self._module_in_backward()
        else:
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.module)
        if self.recording:
            signature = Signature(f"{ENTERED}.call", (), (), (("inputs", inputs), (LAUNCHED_BY, launched_by)))
            signature = self._signatures.setdefault((ENTERED, inputs, launched_by), signature)
            self._ops.append(Op(signature, self._phase(), self.module, (), (), self.times))
        self.marks = ((LAUNCHED_BY, launched_by),)
        try:
            yield
        finally:
            self.marks, self.module = before

    def _phase(self) -> str:
        return "backward" if torch._C._current_graph_task_id() != -1 else self.phase

    def launch(
        self,
        kind: str,
        facts: tuple[tuple[str, int | str], ...],
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """Record one fused kernel."""
        if not self.recording:
            return
        inputs = [self._tensor(tensor, born=-1) for tensor in reads]
        outputs = [self._tensor(tensor, born=len(self._ops)) for tensor in writes]
        layouts = tuple(layout for _, layout in inputs), tuple(layout for _, layout in outputs)
        written = {_storage_of(tensor) for tensor in writes}  # in whatever shape it is read
        mutates = tuple(i for i, tensor in enumerate(reads) if _storage_of(tensor) in written)
        facts = (*facts, *self.marks)
        key = (kind, facts, *layouts, mutates)
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = Signature(f"{FUSED}.{kind}", *layouts, facts, mutates)
        numbers = (tuple(number for number, _ in inputs), tuple(number for number, _ in outputs))
        self._ops.append(Op(signature, self._phase(), self.module, *numbers, self.times))


def _storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
