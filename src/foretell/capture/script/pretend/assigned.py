"""Tensors whose contents a script puts in place of others: `p.data = …`, and parameters of a class of their own."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from foretell.capture.script.placement import Placement
from foretell.capture.script.session import Session
from foretell.capture.values import contents_of


def install(session: Session) -> None:
    _let_data_be_assigned(session.place)
    _let_parameters_have_a_class(session.place)


def _let_data_be_assigned(place: Placement) -> None:
    """What is not fake becomes so, on the host, as a parameter that is made of it does; what is real stays on the host."""
    own: Any = torch._C.TensorBase.data

    def assign(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(self, FakeTensor) and not isinstance(value, FakeTensor) and value.device.type != "meta":
            value = place.parameter(value.detach())
        elif isinstance(value, FakeTensor) and not isinstance(self, FakeTensor):
            value = place.to_host(value)
        own.__set__(self, value)
        if isinstance(self, FakeTensor):
            vars(self).pop("_foretell_value", None)
            if (known := contents_of(value)) is not None:
                place.values.give(self, known)

    torch.Tensor.data = property(lambda self: own.__get__(self), assign)  # type: ignore[assignment]


def _let_parameters_have_a_class(place: Placement) -> None:
    """Parameters of a library's own class, as quantized ones are, are fake tensors of that class too."""
    make: Any = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: torch.Tensor, require_grad: bool = False, **how: Any) -> torch.Tensor:
        own = issubclass(cls, nn.Parameter) and cls is not nn.Parameter
        if (
            not own
            or issubclass(cls, UninitializedParameter | UninitializedBuffer | FakeTensor)
            or data.device.type == "meta"
        ):
            return make(cls, data, require_grad, **how)  # type: ignore[no-any-return]
        fake = data.detach() if isinstance(data, FakeTensor) else place.parameter(data.detach())
        fake.__class__ = _both(cls)
        fake.__dict__["_is_param"] = True
        return fake.requires_grad_(require_grad)

    torch.Tensor._make_subclass = staticmethod(make_subclass)  # type: ignore[method-assign,assignment]


@cache
def _both(cls: type) -> Any:
    return type(cls)(cls.__name__, (cls, FakeTensor), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
