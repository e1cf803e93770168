"""Modules that find their sizes as they first run, and sequences of many lengths: what torch decides by numbers it reads."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import rnn

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session

_MOVED: Final = "_foretell_moved"  # of a parameter without a shape: to the accelerator


def install(session: Session) -> None:
    _let_lazy_modules_move()
    _keep_sizes_on_the_host()


def _let_lazy_modules_move() -> None:
    """A parameter without a shape cannot be fake: it becomes so when it gets one, where it was moved to."""
    convert: Any = torch.Tensor.to
    infer: Any = LazyModuleMixin._infer_parameters

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not nn.parameter.is_lazy(self):
            return convert(self, *args, **kwargs)  # type: ignore[no-any-return]
        words = [*args, *kwargs.values()]
        vars(self)[_MOVED] = any((isinstance(w, int) and not isinstance(w, bool)) or "cuda" in str(w) for w in words)
        return self

    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.to("cuda")

    def infer_parameters(self: Any, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        contents = (*module._parameters.values(), *module._buffers.values())
        lazy = [value for value in contents if value is not None and nn.parameter.is_lazy(value)]
        moved = any(vars(value).get(_MOVED) for value in lazy)
        infer(self, module, args, kwargs)
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, FakeTensor):
                module._parameters[name] = nn.Parameter(parameter.detach(), parameter.requires_grad)
        if moved:
            module.cuda()

    replace(torch.Tensor, "to", to)
    nn.parameter.UninitializedTensorMixin.cuda = cuda  # type: ignore[attr-defined]
    replace(LazyModuleMixin, "_infer_parameters", infer_parameters)


def _keep_sizes_on_the_host() -> None:
    """Packed sequences: how many of them go on at each position follows from their lengths, which the host has."""
    functions: Any = vars(rnn)["_VF"]
    pack = functions._pack_padded_sequence

    def pack_padded_sequence(values: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        data, sizes = pack(values, lengths, batch_first)
        if isinstance(sizes, FakeTensor) and not isinstance(lengths, FakeTensor):
            longest = int(lengths.max())
            sizes = (lengths[None, :] > torch.arange(longest)[:, None]).sum(1)
        return data, sizes

    functions._pack_padded_sequence = pack_padded_sequence
