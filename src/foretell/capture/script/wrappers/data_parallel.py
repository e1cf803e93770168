"""DataParallel: one process drives all devices of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu.patches import replace_everywhere
from foretell.capture.script.findings import DataParallel
from foretell.capture.script.session import Session
from foretell.capture.script.wrapped import Wrapper
from foretell.capture.script.wrappers import keywords

TORCH_CLASS: Final = nn.DataParallel
FREE: Final = ("output_device",)
USED: Final = ("module", "device_ids", "dim")


def install(session: Session) -> None:
    class SingleProcess(Wrapper):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            keys = keywords(TORCH_CLASS, f"DataParallel in {session.script.name}", args, kwargs)
            devices = keys.take("device_ids")
            count = session.devices if devices is None else min(len(devices), session.devices)
            super().__init__(keys.take("module"), device_ids=devices)
            self.replicas: int = count
            self.dim: int = keys.take("dim") or 0
            keys.free(*FREE)
            if devices is not None and len(devices) != session.devices:
                keys.say("device_ids", f"{len(devices)} of {session.devices} devices; the plan has all of them")
            session.find_wrapper(DataParallel(replicas=count), keys)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """The first device runs its part of the batch; what all have computed is put together on it."""
            count = self.replicas
            if type(self).scatter is not SingleProcess.scatter:
                return self._as_scattered(args, kwargs)
            if count < 2 or (whole := _rows(args, kwargs, self.dim)) is None:
                return self.module(*args, **kwargs)
            part = -(-whole // count)
            given = pytree.tree_map_only(torch.Tensor, lambda t: _first(t, part, whole, self.dim), (args, kwargs))
            return _together(self.module(*given[0], **given[1]), -(-whole // part), part, whole, self.dim)

        def _as_scattered(self, args: Any, kwargs: Any) -> Any:
            """A class of the script's own says what each device is given: a list with a batch for each, say."""
            devices: Sequence[Any] = getattr(self, "device_ids", None) or range(self.replicas)
            inputs, named = self.scatter(args, kwargs, list(devices))
            output = self.module(*inputs[0], **named[0])
            if self.replicas < 2:
                return output
            if type(self).gather is not SingleProcess.gather:
                return self.gather([output] * self.replicas, 0)
            return _together(output, self.replicas, 0, 0, self.dim)

        # Of the first device, which is the one that is recorded.

        def replicate(self, module: nn.Module, device_ids: Sequence[Any]) -> list[nn.Module]:
            return [module] * len(device_ids)

        def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[Any]) -> tuple[Any, Any]:
            return (inputs,), (kwargs,)

        def parallel_apply(self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Sequence[Any]) -> list[Any]:
            return [replicas[0](*inputs[0], **kwargs[0])]

        def gather(self, outputs: Sequence[Any], output_device: Any) -> Any:
            return outputs[0]

    SingleProcess.__name__ = SingleProcess.__qualname__ = "DataParallel"
    replace_everywhere(nn, "DataParallel", SingleProcess)  # also where scripts import it from the file it is written in
    wrappers: dict[nn.Module, Any] = {}

    def data_parallel(
        module: nn.Module,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: Any = None,
    ) -> Any:
        devices = None if device_ids is None else list(device_ids)
        wrapper = wrappers.get(module) or wrappers.setdefault(
            module, SingleProcess(module, devices, output_device, dim)
        )
        return wrapper(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))

    replace_everywhere(nn.parallel, "data_parallel", data_parallel)
    for name, function in _BETWEEN_DEVICES.items():
        setattr(torch._C, name, function)


# What `torch.cuda.comm` is made of: copies on other devices are the same tensor here.
_BETWEEN_DEVICES: Final[dict[str, Any]] = {
    "_broadcast": lambda tensor, devices: [tensor for _ in devices],
    "_broadcast_out": lambda tensor, out: out,
    "_broadcast_coalesced": lambda tensors, devices, *how: [tuple(tensors) for _ in devices],
    "_scatter": lambda tensor, devices, sizes, dim, streams: list(
        tensor.cuda().split(list(sizes), dim) if sizes else tensor.cuda().chunk(len(devices), dim)
    ),
    "_gather": lambda tensors, dim, *device: torch.cat([t if t.dim() else t.reshape(1) for t in tensors], dim),
}


def _rows(args: Any, kwargs: Any, dim: int) -> int | None:
    """How many samples a module is given: the first tensor's."""
    given = (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim() > dim)
    return next((t.shape[dim] for t in given), None)


def _first(tensor: torch.Tensor, part: int, whole: int, dim: int) -> torch.Tensor:
    """What of a tensor goes to the first device."""
    there = tensor.cuda()
    if there.dim() <= dim:
        return there
    size = there.shape[dim]
    rows = part if size == whole else -(-size * part // whole)
    return there.narrow(dim, 0, min(max(rows, 1), size)) if size > 1 else there


def _together(output: Any, count: int, part: int, whole: int, dim: int) -> Any:
    """As if the other devices had given the same."""

    def gathered(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim():
            return tensor.expand(count).clone()
        joined = torch.cat([tensor] * count, dim if tensor.dim() > dim else 0)
        return joined.narrow(dim, 0, whole) if tensor.dim() > dim and tensor.shape[dim] == part else joined

    return pytree.tree_map_only(torch.Tensor, gathered, output)
