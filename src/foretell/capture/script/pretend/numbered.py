"""Devices by their number alone: `torch.device(0)`, which torch takes only where it finds an accelerator."""

from __future__ import annotations

import copyreg
from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    """Let a number be the accelerator of that number, as on a machine that has one."""
    make: Any = torch.device

    class Either(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, make)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, make)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            number, *rest = args or (None,)
            if isinstance(number, int) and not rest and not kwargs:
                return make("cuda", number)
            return make(*args, **kwargs)

    device: Any = Either("device", (), {"__module__": "torch"})
    replace(torch, "device", device)
    copyreg.pickle(make, lambda made: (device, (str(made),)))  # which looks for the class by its name
