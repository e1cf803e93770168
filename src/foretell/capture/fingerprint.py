"""What the capture of a Workload rests on, as a digest: its functions, whatever they refer to, torch's settings.

A function may refer to things that change between two captures: a live model, a configuration, a number in a notebook. They
are followed through closures, globals and attributes. What cannot be followed makes a workload one that has no fingerprint,
and it is captured again.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.declared import DECLARED
from foretell.workload import Workload

_MAX_PARTS: Final = 100_000  # a model has some thousand; a data set in memory is not worth following
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(...), enum.Enum)


class _NotFollowed(Exception):
    """Something that may change unseen."""


def fingerprint(workload: Workload) -> str | None:
    """The same as long as a capture gives the same graph; None where nobody can tell."""
    digest, walk = hashlib.sha256(), _Walk()
    try:
        hash(workload)  # by which it is found again
        for part in walk.parts([getattr(workload, f.name) for f in fields(workload)]):
            digest.update(f"{part}\n".encode())
        for setting in (_environment(), _torch_settings(), sorted(DECLARED)):
            digest.update(f"{setting}\n".encode())
    except (_NotFollowed, RecursionError, TypeError):
        return None
    return digest.hexdigest()


def _environment() -> list[tuple[str, str]]:
    """Variables that a function may read; torch sets one of them itself, when a capture first loads its compiler."""
    return sorted(pair for pair in os.environ.items() if pair[0] != "TORCHINDUCTOR_CACHE_DIR")


def _torch_settings() -> list[object]:
    import torch

    return [
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
    ]


class _Walk:
    """A walk through objects that meets each of them once."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, object]] = {}  # with the objects, so that no other gets the same id meanwhile

    def parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self._met:
            yield f"again {self._met[id(value)][0]}"
            return
        if len(self._met) >= _MAX_PARTS:
            raise _NotFollowed
        self._met[id(value)] = len(self._met), value
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        yield from self._inside(value)

    def _inside(self, value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            yield from self.parts(list(value.items()))
            yield from self.parts(list(getattr(value, "__dict__", {}).items()))
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self.parts(item)
        elif isinstance(value, set | frozenset):
            yield from sorted(part for item in value for part in self.parts(item))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.MethodType):
            yield from self.parts((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            yield from self.parts((value.func, value.args, value.keywords))
        elif isinstance(value, types.ModuleType):
            yield value.__name__  # its attributes are followed by those who use them
        elif isinstance(value, type):
            yield f"{value.__module__}.{value.__qualname__}"
            if not _of_library(value):
                yield from self.parts([*value.__bases__, *_attributes(value)])
        elif isinstance(value, types.BuiltinFunctionType):
            yield value.__qualname__
        elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
            yield from self._tensor(value)
        else:
            yield from self._object(value)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        code = function.__code__
        yield f"{function.__module__}.{function.__qualname__}"
        if not is_library(code.co_filename):
            yield from self._code(code, function.__globals__)
            yield from self.parts([function.__defaults__, function.__kwdefaults__, function.__dict__])
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing is in it yet
                yield from self.parts(cell.cell_contents)

    def _code(self, code: types.CodeType, known: Mapping[str, Any]) -> Iterator[str]:
        yield code.co_code.hex()
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from self._code(constant, known)
            else:
                yield repr(constant)
        yield repr(code.co_names)
        for name in code.co_names:
            if name in known:
                yield from self.parts(known[name])
                if isinstance(module := known[name], types.ModuleType) and not _of_library(module):
                    yield from self.parts([getattr(module, n) for n in code.co_names if hasattr(module, n)])

    def _tensor(self, tensor: Any) -> Iterator[str]:
        """In place it is changed by a new version, else by other memory."""
        try:
            where = tensor.untyped_storage().data_ptr(), tensor._version
        except (RuntimeError, NotImplementedError):
            raise _NotFollowed from None
        yield f"{tensor.shape} {tensor.dtype} {tensor.device} {tensor.requires_grad} {tensor.layout} {where}"

    def _object(self, value: Any) -> Iterator[str]:
        """By its attributes; what has none keeps its state where it cannot be seen, but for torch's dtypes and the like."""
        slots = [n for kind in type(value).__mro__ for n in _slots(kind) if hasattr(value, n)]
        state = getattr(value, "__dict__", None)
        if state is None and not slots:
            if type(value).__module__ != "torch":
                raise _NotFollowed
            yield repr(value)
        yield from self.parts([*(state or {}).items(), *(getattr(value, n) for n in slots)])
        if not _of_library(type(value)):
            yield from self.parts(type(value))


def _slots(kind: type) -> list[str]:
    named = vars(kind).get("__slots__", ())
    return [n for n in ([named] if isinstance(named, str) else named) if n not in ("__dict__", "__weakref__")]


def _attributes(kind: type) -> list[Any]:
    """What a class of the user's defines."""
    unseen = (types.GetSetDescriptorType, types.MemberDescriptorType)
    found = {n: v for n, v in vars(kind).items() if n != "_abc_impl" and not isinstance(v, unseen)}
    return [(n, getattr(v, "__func__", getattr(v, "fget", v))) for n, v in found.items()]


def _of_library(value: Any) -> bool:
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(value.__module__)
    filename = getattr(module, "__file__", None)
    return module is not None and module.__name__ != "__main__" and (filename is None or is_library(filename))
