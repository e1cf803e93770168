"""The interned parts of a graph: layouts, signatures, tensors, storages and ops.

A `Layout` is a tensor's shape, strides and dtype; a `Signature` is an operator with the layouts and arguments it is
called with, so the repeated layers of a model share their signatures and are priced once; an `Op` is one call, placed
in a phase and a module. Storages keep their lifetime, as positions in the op order, which is all the memory replay needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from foretell.units import Bytes

PHASES: Final = ("forward", "backward", "optimizer")
ROLES: Final = ("parameter", "gradient", "optimizer", "activation", "input", "temporary", "host")
ITEM_BYTES: Final[Mapping[str, int]] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip
_DTYPE_NUMBERS: Final = {name: number for number, name in enumerate(ITEM_BYTES)}
_COUNTED: Final = ("numel", "nbytes", "distinct_bytes", "hashed")


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides (in elements) and dtype of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    # A few layouts are asked for these many thousand times.
    numel: int = field(init=False, compare=False, repr=False)
    nbytes: Bytes = field(init=False, compare=False, repr=False)
    distinct_bytes: Bytes = field(init=False, compare=False, repr=False)  # a broadcast side (stride 0) is stored once
    hashed: int = field(init=False, compare=False, repr=False)  # of numbers alone: the same in every process

    def __hash__(self) -> int:
        return self.hashed

    def __post_init__(self) -> None:
        numel, item = math.prod(self.shape), ITEM_BYTES[self.dtype]
        stored = numel
        if numel and 0 in self.strides:
            stored = math.prod([size for size, stride in zip(self.shape, self.strides, strict=True) if stride])
        hashed = hash((self.shape, self.strides, _DTYPE_NUMBERS[self.dtype]))
        for name, value in zip(_COUNTED, (numel, numel * item, stored * item, hashed), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def contiguous(cls, shape: Sequence[int], dtype: str) -> Layout:
        """Row-major, without gaps."""
        strides = [math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape))]
        return cls(tuple(shape), tuple(strides), dtype)

    @property
    def is_contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1:
                if stride != step:
                    return False
                step *= size
        return True

    @property
    def is_channels_last(self) -> bool:
        """Images or volumes, several channels of which lie side by side."""
        return len(self.shape) >= 4 and self.strides[1] == 1 and self.shape[1] > 1


@dataclass(frozen=True, slots=True)
class Input:
    """Stands in a signature's arguments for the op's i-th input tensor."""

    index: int


Value = None | bool | int | float | str | Input | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator with everything its cost depends on; equal signatures cost the same."""

    target: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    arguments: tuple[tuple[str, Value], ...] = ()
    mutates: tuple[int, ...] = ()  # inputs written in place
    name: str = field(init=False, compare=False, repr=False)  # `aten.convolution` for `aten.convolution.default`
    hashed: int = field(init=False, compare=False, repr=False)  # as a layout's; arguments seldom tell two apart

    def __hash__(self) -> int:
        return self.hashed

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.target.rsplit(".", 1)[0])
        object.__setattr__(self, "hashed", hash((crc32(self.target.encode()), self.inputs, self.outputs, self.mutates)))

    def argument(self, name: str, default: Value = None) -> Value:
        return next((value for key, value in self.arguments if key == name), default)

    def tensor(self, name: str) -> Layout | None:
        """The layout of a tensor argument by its name in the operator's schema, or None where it is not given."""
        value = self.argument(name)
        return self.inputs[value.index] if isinstance(value, Input) else None

    def required_tensors(self, *names: str) -> list[Layout]:
        """The layouts of tensor arguments that the operator cannot do without."""
        found = [layout for name in names if (layout := self.tensor(name)) is not None]
        if len(found) < len(names):
            raise ValueError(f"{self.target} is called without one of {', '.join(names)}")
        return found

    def tensors(self, name: str) -> tuple[Layout, ...]:
        value = self.argument(name)
        items = value if isinstance(value, tuple) else (value,)
        return tuple(self.inputs[item.index] for item in items if isinstance(item, Input))


@dataclass(frozen=True, slots=True)
class Tensor:
    layout: Layout
    storage: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory with one lifetime: allocated by op `born` (-1: before the step), released once op `freed` is done."""

    nbytes: Bytes
    role: str
    born: int
    freed: int  # len(ops) when it outlives the step


@dataclass(frozen=True, slots=True)
class Op:
    signature: Signature
    phase: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    times: int = 1  # runs of this op in a step: repeated micro-steps are recorded once

    @property
    def target(self) -> str:
        return self.signature.target


@dataclass(frozen=True, slots=True)
class Caveat:
    """Something the reader should know about an answer; `share` is the part of the step it touches."""

    code: str
    text: str
    share: float | None = None
