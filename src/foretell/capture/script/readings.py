"""Numbers that a script reads from the accelerator and only a run would know: what it decides by them is noted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from foretell.capture.as_gpu.patches import replace
from foretell.capture.reads import is_library
from foretell.capture.values import UNKNOWN, contents_of

_MARK: Final = "_foretell_unknown"  # of a tensor on the host that came without its numbers
_LINES: Final = 3  # that are named
_DECIDES: Final = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__")
_COMPUTES: Final = """__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ __neg__
    __abs__""".split()


class Reading(float):
    """A number of the accelerator, or what was computed from one."""

    decided: Final[dict[tuple[str, int], None]] = {}  # where the script compared one


def _deciding(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(float, name)

    def decide(self: Reading, *other: Any) -> Any:
        code, line = (frame := sys._getframe(1)).f_code, frame.f_lineno
        if not is_library(code.co_filename):
            Reading.decided[code.co_filename, line] = None
        return plain(self, *other)

    return decide


def _computing(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(float, name)

    def compute(self: Reading, *other: Any) -> Any:
        value = plain(self, *other)
        return Reading(value) if type(value) is float else value

    return compute


for _name in _DECIDES:
    setattr(Reading, _name, _deciding(_name))
for _name in _COMPUTES:
    setattr(Reading, _name, _computing(_name))
Reading.__hash__ = float.__hash__  # type: ignore[method-assign]


def follow_readings() -> None:
    """Let `Tensor.item` say which numbers are none that are known."""
    read: Callable[..., Any] = torch.Tensor.item

    def item(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        unknown = contents_of(self) is None if isinstance(self, FakeTensor) else hasattr(self, _MARK)
        value = read(self, *args, **kwargs)
        return Reading(value) if unknown and type(value) is float else value

    replace(torch.Tensor, "item", item)


def came_unknown(tensor: torch.Tensor) -> torch.Tensor:
    """Mark what lies on the host now, and whose numbers only a run would know."""
    setattr(tensor, _MARK, True)
    return tensor


def decisions() -> str:
    """Where the script decided by such numbers, in words; empty if it did not."""
    if not (places := list(Reading.decided)):
        return ""
    named = ", ".join(f"line {line} of {Path(file).name}" for file, line in places[:_LINES])
    more = f" and {len(places) - _LINES} more" if len(places) > _LINES else ""
    return f"numbers read from the device and compared in {named}{more} are taken as {UNKNOWN}"
