"""The graph: what one step runs, as ops in order, the tensors they read and write, the storages those lie in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from foretell.graph import file, reading
from foretell.graph.calls import Calls, calls_of
from foretell.graph.facts import StepFacts
from foretell.graph.operators import FUSED
from foretell.graph.types import Caveat, Op, Signature, Storage, Tensor
from foretell.precision import FP32, Precision
from foretell.units import Bytes

T = TypeVar("T")
_REMEMBERED: Final = 32  # things that a graph remembers at most
_NOTHING: Final[Any] = object()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One steady-state step, as it was captured.

    Attributes:
        name: Of the workload.
        ops: In the order in which they are issued, over `tensors`, which lie in `storages`.
        gradients: Storage of a parameter → storage of its gradient; None: not recorded.
        training: False for inference; `precision` is of most arithmetic, `mixed` where it is said apart.
        grad_accumulation: Micro-steps; `samples` and `tokens` are of one of them.
        caveats: What the capture could not follow; `provenance`: versions of libraries.

    Examples:
        >>> graph = foretell.capture_graph("torchvision/resnet18")
        >>> graph.save("step.graph")
        >>> foretell.Graph.load("step.graph").content_hash == graph.content_hash
        True
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    storages: tuple[Storage, ...]
    # Storage of a parameter → storage of its gradient. None: not recorded, as in files of format 1.
    gradients: Mapping[int, int] | None = None
    training: bool = True
    precision: Precision = FP32
    grad_accumulation: int = 1
    samples: int | None = None
    tokens: int | None = None
    caveats: tuple[Caveat, ...] = ()
    facts: StepFacts = field(default_factory=StepFacts)
    provenance: Mapping[str, str] = field(default_factory=dict)  # versions of what it was captured with

    @cached_property
    def content_hash(self) -> str:
        """The hash by which stores know it, the same whichever format it was read from."""
        digest = hashlib.sha256()
        for name, data in file.members(self, hashed=True):
            digest.update(f"{name}:{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The distinct signatures, in order of first use."""
        return tuple(dict.fromkeys(op.signature for op in self.ops))

    @cached_property
    def is_compiled(self) -> bool:
        """Whether torch's compiler writes some of its kernels."""
        return any(signature.name == FUSED for signature in self.signatures)

    @cached_property
    def calls(self) -> Calls:
        """The different calls among the ops; ops of one call cost the same."""
        return calls_of(self.ops, self.tensors, self.storages)

    @cached_property
    def op_times(self) -> tuple[int, ...]:
        """Runs of each op in the step."""
        return tuple([op.times for op in self.ops])

    @cached_property
    def runs(self) -> npt.NDArray[np.int64]:
        """`op_times` as an array."""
        return np.array(self.op_times, dtype=np.int64)

    @cached_property
    def weights(self) -> npt.NDArray[np.float64]:
        """`runs`, to weigh seconds with."""
        return self.runs.astype(float)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for a key: for what is costly and follows from the graph and the key alone."""
        found: T = self._remembered.get(key, _NOTHING)
        if found is _NOTHING:
            found = make()
            if len(self._remembered) >= _REMEMBERED:
                # What was asked for longest ago goes. Other threads may be reading: nobody relies on finding a key again.
                for oldest in list(self._remembered)[:1]:
                    self._remembered.pop(oldest, None)
        else:
            self._remembered.pop(key, None)
        self._remembered[key] = found
        return found

    @cached_property
    def _remembered(self) -> dict[Hashable, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """The step itself, without what was computed from it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def bytes_of(self, role: str) -> Bytes:
        return sum(s.nbytes for s in self.storages if s.role == role)

    def to_bytes(self, *, packed: bool = True) -> bytes:
        """The graph as a file holds it. Where many are kept together, unpacked ones compress better as a whole."""
        return file.archive(self, packed=packed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph whole or not at all: a reader never sees half a file."""
        file.write_whole(path, self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the graph") -> Graph:
        """Read what `to_bytes` gave; `name` is what messages call it."""
        return cls(**reading.read(data, name))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Graph:
        """Read a graph file, from a stranger too: no code runs, and everything in it is checked."""
        return cls(**reading.load(path))
