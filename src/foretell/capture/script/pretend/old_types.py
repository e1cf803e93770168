"""Types of tensors by name, as torch had them before dtypes and devices: `torch.cuda.FloatTensor` and the like.

They make tensors, convert them, are compared with and are set as the default; a build without CUDA refuses all of it.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from foretell.capture.as_gpu.patches import numbers_in, replace
from foretell.capture.script.placement import Placement
from foretell.capture.script.session import Session

_DTYPES: Final = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "ByteTensor": torch.uint8, "CharTensor": torch.int8, "ShortTensor": torch.int16,
    "IntTensor": torch.int32, "LongTensor": torch.int64, "BoolTensor": torch.bool,
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class _OnDevice(type):
    """The type of such types: each is a class that makes tensors on the accelerator."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return made(cls.dtype, *args)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, FakeTensor) and value.is_cuda and value.dtype is cls.dtype

    def __str__(cls) -> str:
        return f"torch.cuda.{cls.__name__}"


class _OnHost(type):
    """The type of those on the host: numbers are read out of tensors in a list, as `torch.tensor` does."""

    of_torch: Any
    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], np.ndarray):  # which torch would go through number by number
            return torch.tensor(np.asarray(args[0]), dtype=cls.dtype)
        return cls.of_torch(*_with_numbers(args), **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.of_torch)

    def __str__(cls) -> str:
        return str(cls.of_torch)


def _with_numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a constructor, of which the first may be a list with tensors in it."""
    listed = bool(args) and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size)
    return (numbers_in(args[0]), *args[1:]) if listed else args


def install(session: Session) -> None:
    for name, dtype in _DTYPES.items():
        own = {"of_torch": getattr(torch, name), "dtype": dtype, "is_cuda": False, "__module__": "torch"}
        setattr(torch, name, _OnHost(name, (), own))
        setattr(torch.cuda, name, _OnDevice(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"}))
    _convert_by_type(session.place)
    _make_like(session.place)
    _make_by_default()


def made(dtype: torch.dtype, *args: Any) -> torch.Tensor:
    """As the old constructors have it: sizes leave numbers open, anything else is their contents."""
    if not args:
        return torch.empty(0, dtype=dtype, device="cuda")
    first = args[0]
    if isinstance(first, torch.Size) or all(isinstance(a, Integral) and not isinstance(a, bool) for a in args):
        sizes = first if isinstance(first, torch.Size) else args
        return torch.empty(*sizes, dtype=dtype, device="cuda")
    if isinstance(first, torch.Tensor):
        return first.to("cuda").to(dtype)
    return torch.tensor(first, dtype=dtype).to("cuda")


def parsed(kind: Any) -> tuple[torch.dtype | None, bool | None]:
    """The dtype of a type or its name, and whether that is on the accelerator; None: it does not say."""
    if isinstance(kind, torch.dtype):
        return kind, None
    if isinstance(kind, _OnDevice):
        return kind.dtype, True
    text = kind if isinstance(kind, str) else f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"
    package, _, name = text.rpartition(".")
    return _DTYPES.get(name), package == "torch.cuda" if package.startswith("torch") else None


def _convert_by_type(place: Placement) -> None:
    convert: Any = torch.Tensor.type

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            name = _NAMES.get(self.dtype)
            return f"torch.cuda.{name}" if name and place.holds(self) else convert(self)
        wanted, there = parsed(dtype)
        if wanted is None or (there is None and not isinstance(dtype, torch.dtype)):
            return convert(self, dtype)
        moved = self if there is None else self.to("cuda" if there else "cpu", non_blocking=non_blocking)
        return moved.to(wanted)

    replace(torch.Tensor, "type", type_)


def _make_like(place: Placement) -> None:
    """`x.new(…)` lies where x does."""
    make: Any = torch.Tensor.new

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not place.holds(self) or "device" in kwargs:
            return make(self, *args, **kwargs)  # type: ignore[no-any-return]
        return made(self.dtype, *args)

    def new_tensor(
        self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Any:
        copied = torch.tensor(data, dtype=dtype or self.dtype).to(self.device if device is None else device)
        return copied.requires_grad_(requires_grad)

    replace(torch.Tensor, "new", new)
    replace(torch.Tensor, "new_tensor", new_tensor)


def _make_by_default() -> None:
    """A default type sets a dtype, and the device of what is made without one; so it does for `torch.Tensor(…)`.

    `torch.Tensor([a, b])` reads the numbers out of tensors, as `torch.tensor` does.
    """
    choose: Any = torch.set_default_tensor_type
    make: Any = torch.Tensor.__new__
    on_device = [False]

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor and kwargs.keys() <= {"device"} and on_device[-1]:
            return made(torch.get_default_dtype(), *args)
        return make(cls, *(_with_numbers(args) if cls is torch.Tensor else args), **kwargs)

    def set_default_tensor_type(kind: Any) -> None:
        dtype, there = parsed(kind)
        if dtype is None or there is None:
            choose(kind)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda" if there else None)
        on_device.append(there)

    torch.Tensor.__new__ = new  # type: ignore[method-assign]
    replace(torch, "set_default_tensor_type", set_default_tensor_type)
