"""Where a Workload asks for an accelerator, it means the device that the capture stands in for: here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._device import _device_constructors

from foretell.capture.as_gpu.patches import replace

ACCELERATORS: Final = frozenset(("cuda", "xpu", "npu", "mps", "hpu"))
_NOTHING_HAPPENS: Final = """synchronize empty_cache reset_peak_memory_stats reset_max_memory_allocated manual_seed
    manual_seed_all set_device ipc_collect init _lazy_init""".split()
_ZERO: Final = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved current_device".split()


def accelerator_of(device: Any) -> torch.device | None:
    """The accelerator that is asked for by name, number or device; None for any other device."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    if isinstance(device, str) and device.partition(":")[0] in ACCELERATORS:
        return torch.device(device)
    return device if isinstance(device, torch.device) and device.type in ACCELERATORS else None


def wrap_constructors(choose: Callable[[torch.device], Any]) -> None:
    """Let functions that make tensors, and modules that move, take `choose(accelerator)` for an accelerator."""

    def chosen(device: Any) -> Any:
        found = accelerator_of(device)
        return device if found is None else choose(found)

    for function in _device_constructors():
        name = function.__name__
        if getattr(torch, name, None) is function:

            def made(*args: Any, function: Any = function, **kwargs: Any) -> Any:
                if kwargs.get("device") is not None:
                    kwargs["device"] = chosen(kwargs["device"])
                return function(*args, **kwargs)

            replace(torch, name, made)
    convert = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        args = tuple(chosen(a) if not isinstance(a, torch.Tensor | torch.dtype) else a for a in args)
        if kwargs.get("device") is not None:
            kwargs["device"] = chosen(kwargs["device"])
        return convert(self, *args, **kwargs)

    replace(torch.nn.Module, "to", to)


def mean_here() -> None:
    """Let `.to("cuda")`, `.cuda()`, `device="cuda"` and `torch.cuda.synchronize()` do nothing."""
    wrap_constructors(lambda device: None)
    make: Any = torch.tensor

    def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = make(data, *args, device=None if accelerator_of(device) else device, **kwargs)
        return made

    replace(torch, "tensor", tensor)
    convert: Callable[..., torch.Tensor] = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and accelerator_of(args[0]):
            args = args[1:]
        if accelerator_of(kwargs.get("device")):
            del kwargs["device"]
        return convert(self, *args, **kwargs) if args or kwargs.keys() - {"non_blocking"} else self

    replace(torch.Tensor, "to", to)
    replace(torch.Tensor, "cuda", lambda self, *args, **kwargs: self)
    replace(torch.Tensor, "pin_memory", lambda self, device=None: self)
    for name in _NOTHING_HAPPENS:
        replace(torch.cuda, name, lambda *args, **kwargs: None)
    for name in _ZERO:
        replace(torch.cuda, name, lambda *args, **kwargs: 0)
