"""What a script asserts of numbers that only a run would know: a script that trains asserts what is so."""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session

_RAISES: Final = dis.opmap["LOAD_ASSERTION_ERROR"]
_DISTRIBUTIONS: Final = str(torch.distributions.distribution.__file__)
_CACHE: Final = dis.opmap.get("CACHE", 0)


def install(session: Session) -> None:
    """Let `assert (a <= b).all()` hold where a and b lie on the accelerator."""
    read: Any = torch.Tensor.__bool__

    def truth(self: torch.Tensor) -> bool:
        value = bool(read(self))
        if not isinstance(self, FakeTensor):
            return value
        asks = sys._getframe(1)
        if asks.f_code.co_filename == _DISTRIBUTIONS:  # whose parameters are what a run would make them
            return True
        if not session.place.holds(self):
            return value
        wanted = asserted(asks)
        if wanted is None or wanted == value:
            return value
        session.place.values.assumptions["what the script asserts of numbers on the device holds"] = None
        return wanted

    replace(torch.Tensor, "__bool__", truth)


def asserted(frame: FrameType) -> bool | None:
    """What an assert statement wants of the truth that is asked for just now; None where there is no such statement."""
    code, place = frame.f_code.co_code, frame.f_lasti
    following = place + 2
    while following < len(code) and code[following] == _CACHE:
        following += 2
    if following >= len(code) or code[following] != _RAISES:
        return None
    return "TRUE" in dis.opname[code[place]]
