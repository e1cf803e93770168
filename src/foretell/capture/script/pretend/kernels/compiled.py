"""CUDA and C++ that is compiled as a script runs, or that its repository's `setup.py` would have built.

A function that many repositories share is known by its name (`extension_shapes`). One whose result is dropped writes into
tensors that it is given, and is priced by their bytes. All others say how to declare them.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import _OpNamespace

from foretell.capture.as_gpu.patches import replace
from foretell.capture.opaque import run as run_declared
from foretell.capture.script.following import after_the_call
from foretell.capture.script.pretend.kernels.by_bytes import Writing, launch_by_bytes
from foretell.capture.script.pretend.kernels.extension_shapes import SHARED
from foretell.capture.script.pretend.kernels.package import as_declared
from foretell.capture.script.pretend.kernels.unknown import Unknown
from foretell.declared import DECLARED, Opaque

_BUILT: Final = re.compile(r"""extension\(\s*(?:name\s*=\s*)?["']([\w.]+)["']""", re.IGNORECASE)  # in a setup.py
_DEPTH: Final = 4  # folders below a repository's first in which a setup.py may lie


def would_be_built(name: str) -> bool:
    """Whether a `setup.py` of the script's repository builds an extension of that name."""
    above = Path(os.path.abspath(sys.path[0] or "."))
    return any(name in _built_in(str(folder)) for folder in (Path.cwd(), above, *list(above.parents)[:2]))


@cache
def _built_in(folder: str) -> frozenset[str]:
    found = (_BUILT.findall(file.read_text(encoding="utf-8", errors="replace")) for file in _setups(Path(folder)))
    return frozenset(name for names in found for name in names)


def _setups(folder: Path) -> Iterator[Path]:
    """Those of a repository: its first folder has a file that says so."""
    if any((folder / mark).exists() for mark in (".git", "README.md", "setup.py")):
        for depth in range(_DEPTH):
            yield from folder.glob("*/" * depth + "setup.py")


class Extension(types.ModuleType):
    """What was compiled, with whatever functions are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (path := f"{self.__name__}.{name}") in DECLARED:
            return as_declared(DECLARED[path])
        return _Function(path)


class _Function(Writing):
    """One that many extensions share, where it is called as they call it; else one that is not known."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.path.rpartition(".")[2]
        shared = SHARED.get(name)
        if shared is None or after_the_call(sys._getframe(1)).startswith("POP_TOP"):
            return self.write(sys._getframe(1), args, kwargs)
        known = Opaque(name=name, outputs=shared.outputs, flops=shared.flops, traffic=None, backward_flops=None)
        made = run_declared(known, args, kwargs)
        return (*made, *shared.says) if shared.says else made


class _Operators(_OpNamespace):
    """`torch.ops.NAME` of an extension that registers its functions there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Extension(vars(self)["name"]), name)


class _Source:
    """A kernel that torch would compile from its source: a launch has a grid, blocks, and tensors that it works on."""

    def __init__(self, kernel_source: str, kernel_name: str, *args: Any, **how: Any) -> None:
        self.name = kernel_name

    def set_shared_memory_config(self, size: int) -> None:
        return None

    def __call__(self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, *rest: Any, **how: Any) -> None:
        tensors = [value for value in args or () if isinstance(value, Tensor)]
        if not tensors:
            Unknown(self.name)()
        launch_by_bytes(self.name, tensors, f"{self.name}, compiled from its source,")


def compile_nothing() -> None:
    """`torch.cuda._compile_kernel`, with its names of other versions."""
    for name in ("_compile_kernel", "compile_kernel"):
        setattr(torch.cuda, name, _Source)


def adapt(module: Any) -> None:
    """`torch.utils.cpp_extension`: nothing is compiled."""

    def load(name: str, *args: Any, is_python_module: bool = True, **kwargs: Any) -> Any:
        if not is_python_module:
            operators = getattr(torch.ops, name)
            operators.__class__ = _Operators  # the script may have it already
        return sys.modules.setdefault(name, Extension(name))  # some import it by name then

    for loader in ("load", "load_inline"):
        replace(module, loader, load)
