"""Tensors that move to and from the accelerator: what a script calls for it, put in place of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from foretell.capture.as_gpu.devices import ACCELERATORS, wrap_constructors
from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.host import is_pinned, pin
from foretell.capture.script.placement import Placement
from foretell.capture.script.pretend.crossing import to_host
from foretell.capture.script.readings import follow_readings
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    place = session.place
    _let_tensors_say_where_they_are(place)
    _let_tensors_move(place)
    follow_readings()
    _let_tensors_be_copied()
    _make_parameters_fake(place)
    _make_tensors_from_data(place)
    replace(torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *args, **kwargs: tensor)  # draws until all fit
    wrap_constructors(lambda device: device)  # `device=0` is the accelerator's, which torch would look for itself
    _make_pinned_tensors()  # around those, which are known by being torch's own


def _let_tensors_say_where_they_are(place: Placement) -> None:
    own: Any = FakeTensor.device

    def device(self: FakeTensor) -> Any:
        return own.fget(self) if place.inside else place.device_of(self)

    replace(FakeTensor, "device", property(device))
    replace(FakeTensor, "is_cuda", property(lambda self: self.device.type == "cuda"))
    replace(FakeTensor, "is_cpu", property(lambda self: self.device.type == "cpu"))
    replace(FakeTensor, "get_device", lambda self: self.device.index if self.device.type == "cuda" else -1)


def _let_tensors_move(place: Placement) -> None:
    convert: Callable[..., torch.Tensor] = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if place.inside:  # torch's own, of what it has just made
            return convert(self, *args, **kwargs)
        non_blocking = kwargs.get("non_blocking", next((a for a in args if isinstance(a, bool)), False))
        args, kwargs, device = _without_device(args, kwargs)
        if (
            device is not None
            and type(self) is not torch.Tensor
            and not isinstance(self, FakeTensor | torch.nn.Parameter)
        ):
            return convert(self, device, *args, **kwargs)  # a class of the script's own
        moved = self if device is None else _moved(place, self, device, non_blocking)
        if not (args or kwargs):
            return moved
        return convert(moved, *args, **kwargs)

    def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
        return _moved(place, self, place.device, non_blocking)

    def cpu(self: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
        return self if place.inside else _moved(place, self, torch.device("cpu"))

    replace(torch.Tensor, "to", to)
    replace(torch.Tensor, "cuda", cuda)
    replace(torch.Tensor, "cpu", cpu)
    replace(torch.Tensor, "pin_memory", lambda self, device=None: pin(self))
    replace(torch.Tensor, "is_pinned", lambda self, device=None: is_pinned(self))
    replace(torch.Tensor, "record_stream", lambda self, stream: None)
    to_numpy = torch.Tensor.numpy
    to_list = torch.Tensor.tolist

    def numpy(self: torch.Tensor, **kwargs: Any) -> Any:
        real = _host(place, self)
        if isinstance(real, FakeTensor):  # a large one: memory of zeros is taken where it is looked at
            with _disable_current_modes():
                return np.zeros(tuple(real.shape), to_numpy(torch.empty(0, dtype=real.dtype)).dtype)
        return to_numpy(real.detach(), **kwargs)

    replace(torch.Tensor, "numpy", numpy)
    replace(torch.Tensor, "tolist", lambda self: to_list(_host(place, self)))


def _host(place: Placement, tensor: torch.Tensor) -> torch.Tensor:
    return place.to_host(tensor) if isinstance(tensor, FakeTensor) else tensor


def _without_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The device that is asked for, and the other arguments of `Tensor.to`; not blocking changes no shape."""
    kwargs = dict(kwargs)
    kwargs.pop("non_blocking", None)
    other = kwargs.pop("other", None)
    device = kwargs.pop("device", None)
    if args and isinstance(args[0], torch.Tensor):
        other, args = args[0], args[1:]
    if other is not None:
        return (other.dtype, *[a for a in args if not isinstance(a, bool)]), kwargs, other.device
    if args and (args[0] is None or isinstance(args[0], str | int | torch.device)):
        device, args = (device if args[0] is None else args[0]), args[1:]
    args = tuple(a for a in args if not isinstance(a, bool) and a is not None)
    if kwargs.get("dtype", ...) is None:
        del kwargs["dtype"]
    return args, kwargs, torch.device("cuda", device) if isinstance(device, int) else _device(device)


def _device(device: Any) -> torch.device | None:
    return None if device is None else torch.device(device)


def _moved(place: Placement, tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
    there = place.holds(tensor)
    if device.type == "meta":
        return torch.empty_like(tensor, device="meta")
    if tensor.device.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if device.type in ACCELERATORS:
        if there:
            return tensor
        if isinstance(tensor, FakeTensor) and isinstance(tensor, torch.nn.Parameter):
            place.move_storage(tensor)  # in place: whoever knows the parameter knows it still
            return tensor
        return place.to_accelerator(tensor, non_blocking)
    if not there:
        return tensor
    if isinstance(tensor, torch.nn.Parameter):
        place.keep_on_host(tensor)
        return tensor
    return to_host(place, tensor)


def _let_tensors_be_copied() -> None:
    """`copy.deepcopy` of a model, as averages and targets are made, and pickles: torch's own copy what fake tensors belong to."""

    def deepcopy(self: FakeTensor, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            with torch.no_grad():
                copied = self.detach().clone()
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
            memo[id(self)].requires_grad_(self.requires_grad)
        return memo[id(self)]

    def reduced(self: FakeTensor, protocol: Any) -> Any:
        is_parameter = isinstance(self, torch.nn.Parameter)
        return _unpickled, (tuple(self.shape), self.dtype, self.device.type, is_parameter, self.requires_grad)

    FakeTensor.__deepcopy__ = deepcopy  # type: ignore[method-assign,assignment]
    FakeTensor.__reduce_ex__ = reduced  # type: ignore[method-assign,assignment]


def _unpickled(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, is_parameter: bool, requires_grad: bool
) -> torch.Tensor:
    """One like that which was pickled, where it lay: it had no contents."""
    made = torch.zeros(shape, dtype=dtype).to(device)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def _make_parameters_fake(place: Placement) -> None:
    make = torch.nn.Parameter.__new__

    def new(cls: type, data: Any = None, requires_grad: bool = True) -> torch.Tensor:
        if (
            type(data) in (torch.Tensor, torch.nn.Parameter)
            and data.device.type == "cpu"
            and data.layout is torch.strided
        ):
            data = place.parameter(data)
        return make(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = new  # type: ignore[method-assign,assignment]


def _make_tensors_from_data(place: Placement) -> None:
    """Functions that build a tensor on the host and copy it over, inside torch."""
    for name in ("tensor", "as_tensor", "asarray"):
        make = getattr(torch, name)

        def made(data: Any, *args: Any, make: Any = make, device: Any = None, **kwargs: Any) -> torch.Tensor:
            kwargs.pop("pin_memory", None)
            device = _default_accelerator() if device is None else device
            with torch._C.DisableTorchFunction():  # a default device would be given to it, and this torch has none
                tensor: torch.Tensor = (
                    data if isinstance(data, FakeTensor) and not kwargs else make(data, *args, **kwargs)
                )
            return tensor if device is None else tensor.to(device)

        replace(torch, name, made)


_PINNED: Final = "empty zeros ones full rand randn arange empty_like zeros_like ones_like".split()


def _make_pinned_tensors() -> None:
    """`torch.empty(…, pin_memory=True)`, for which this torch has no allocator."""
    for name in _PINNED:
        make = getattr(torch, name)

        def made(*args: Any, make: Any = make, pin_memory: bool | None = False, **kwargs: Any) -> torch.Tensor:
            tensor: torch.Tensor = make(*args, **kwargs)
            return tensor.pin_memory() if pin_memory else tensor

        replace(torch, name, made)


def _default_accelerator() -> torch.device | None:
    """Where tensors are made by default, if not on the host; torch's own function makes a tensor to find out."""
    contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    context = contexts[-1] if contexts else getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context.device if context is not None and context.device.type in ACCELERATORS else None
