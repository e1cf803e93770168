"""Which tensors lie on the accelerator that is not there, and the recorder of what runs on it.

A tensor on it is a fake one. torch itself believes that all tensors are on the CPU: a build without CUDA, or one
without a driver, refuses anything else. Only the script is told otherwise. What it keeps on the host is real, apart
from parameters, of which there may be too many.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from foretell.capture import sparse
from foretell.capture.as_gpu.devices import ACCELERATORS
from foretell.capture.compiled.recorder import CompiledRecorder, Launcher
from foretell.capture.recorder import stored, tensors_in
from foretell.capture.script.batch import Fetch
from foretell.capture.script.by_hand import WRITES
from foretell.capture.script.host import HostMeter
from foretell.capture.script.readings import came_unknown
from foretell.capture.values import UNKNOWN, Values, contents_of

CPU: Final = torch.device("cpu")
_DEVICE_QUERY: Final = torch.ops.prim.device.default
_FEW: Final = 4096  # numbers of a parameter that are kept: a temperature, a scale
_COLOURS: Final = 3
_MAX_ON_HOST: Final = 2**24  # numbers that come back from the accelerator as real ones


class Finished(BaseException):
    """Ends the script, once its step is recorded; no `except Exception` stops it."""


class Placement:
    """Fake tensors are on the accelerator, unless they were made on the host and have not been moved."""

    def __init__(self) -> None:
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.values = Values(self.fake)
        self.device = torch.device("cuda", 0)
        self.here = 0  # what is made now lies on the accelerator
        self.inside = 0  # of torch, which must not hear of the accelerator
        self.arriving: Callable[[], None] = lambda: None  # called before something is moved to it,
        self.arrived: Callable[[torch.Tensor], None] = lambda tensor: None  # and after
        self.sent: Callable[[torch.Tensor, bool], None] = lambda tensor, non_blocking: None  # of what lay on the host
        # Called before something differentiable leaves it; what comes back is called where a loss was computed from that.
        self.leaving: Callable[[torch.Tensor], Callable[[], None]] = lambda tensor: lambda: None
        self.drawing: Callable[[], None] = lambda: None  # called before random numbers are made on it,
        self.drawn: Callable[[torch.Tensor], None] = lambda tensor: None  # and after
        self.everywhere = False  # a script that knows no accelerator runs as if all of it were there
        self._brought: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._host: dict[int, weakref.ref[Any]] = {}  # storages of fake tensors on the host
        self._data: set[int] = set()  # those of them that hold data, as real ones do

    @contextmanager
    def made_with(self, tensor: torch.Tensor) -> Iterator[None]:
        """What torch makes meanwhile lies where the tensor does."""
        there = self.holds(tensor)
        self.here += there
        try:
            yield
        finally:
            self.here -= there

    def holds(self, tensor: Any) -> bool:
        if not isinstance(tensor, FakeTensor):
            return False
        return self.everywhere or self._address(tensor) not in self._host

    def _address(self, tensor: torch.Tensor) -> int:
        self.inside += 1  # a sparse one asks torch for what it stores, and torch where that is
        try:
            address: int = stored(tensor).untyped_storage()._cdata
        finally:
            self.inside -= 1
        return address

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """As the script sees it."""
        return self.device if not self.inside and self.holds(tensor) else CPU

    def keep_on_host(self, tensor: torch.Tensor) -> None:
        storage = stored(tensor).untyped_storage()
        address = storage._cdata
        if address not in self._host:
            self._host[address] = weakref.ref(storage, partial(self._forget, address))

    def move_storage(self, tensor: torch.Tensor) -> None:
        self._forget(stored(tensor).untyped_storage()._cdata)

    def _forget(self, address: int, _: Any = None) -> None:
        self._host.pop(address, None)
        self._data.discard(address)

    def is_data(self, tensor: torch.Tensor) -> bool:
        """Whether it lies on the host and is fake only because it is large, or was made of one that is."""
        return bool(self._data) and self._address(tensor) in self._data

    def keep_data(self, tensor: torch.Tensor) -> None:
        """As `keep_on_host`; to the accelerator it goes as a batch does."""
        self.keep_on_host(tensor)
        self._data.add(self._address(tensor))

    def data(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of data on the host that takes no memory there."""
        with self.making():
            made = torch.empty(tuple(shape), dtype=dtype)
        self.keep_data(made)
        return made

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make fake tensors, which say that they lie on the host whatever the script's default device is.

        A torch built for CUDA would wake a driver for one that says it lies there.
        """
        self.inside += 1
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes(), self.fake:
                yield
        finally:
            self.inside -= 1

    def fake_like(self, tensor: torch.Tensor, *, keep: bool = True) -> torch.Tensor:
        """A fake tensor of the same layout, which knows the contents that control flow may ask for."""
        with self.making():
            like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        with _disable_current_modes():
            value = contents_of(tensor) if isinstance(tensor, FakeTensor) else tensor.detach()
            if keep and value is not None and value.device.type == "cpu":
                self.values.give(like, value.clone())
        return like

    def parameter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake one, on the host, that stands for a parameter just made there."""
        like = self.fake_like(tensor, keep=tensor.numel() <= _FEW)
        self.keep_on_host(like)
        return like

    def to_accelerator(self, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        self.arriving()
        arrives = not isinstance(tensor, FakeTensor) or self.is_data(tensor)
        if arrives:
            self.sent(tensor, non_blocking)
        moved: torch.Tensor
        if tensor.layout is torch.sparse_coo:
            moved = self._sparse(tensor)
        elif tensor.layout is not torch.strided:
            with self.making():
                moved = self.fake.from_tensor(tensor)
        else:
            moved = self.fake_like(tensor, keep=not _is_blank(tensor))
            if arrives:
                self.arrived(moved)
        return moved.requires_grad_(tensor.requires_grad)

    def bring(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of an op on the accelerator, where the script has left some of them on the host."""

        def moved(value: Any) -> Any:
            if isinstance(value, FakeTensor) or value.layout is not torch.strided or not value.dim():
                return value
            if value not in self._brought:
                self._brought[value] = self.to_accelerator(value.detach())
            return self._brought[value]

        written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        names = [a.name for a in func._schema.arguments]
        places = [i for i in range(len(args)) if i >= len(names) or names[i] not in written]
        given = pytree.tree_map_only(torch.Tensor, moved, ([args[i] for i in places], kwargs))
        others = dict(zip(places, given[0], strict=True))
        return tuple(others.get(i, value) for i, value in enumerate(args)), given[1]

    def _sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """One of as many numbers: torch's own fake ones lose count of them."""
        with _disable_current_modes():
            numbers, values = tensor._indices(), tensor._values()
        numbers, values = self.fake_like(numbers), self.fake_like(values)
        with self.making():
            made: torch.Tensor = sparse.made(tensor.shape, numbers, values, unique=tensor.is_coalesced())
            return made

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Real numbers: those that are known, else stand-ins."""
        value = contents_of(tensor)
        with _disable_current_modes():
            if value is not None:
                return value.clone()
            if tensor.numel() <= _FEW and tensor.is_floating_point():
                return came_unknown(torch.full(tensor.shape, UNKNOWN, dtype=tensor.dtype))
            if tensor.numel() <= _MAX_ON_HOST:
                return torch.zeros(tensor.shape, dtype=tensor.dtype)
        like = self.fake_like(tensor, keep=False)
        self.keep_on_host(like)
        return like


class ScriptRecorder(CompiledRecorder):
    """Runs what the script does on the host for real, and what it does on the accelerator on fake tensors."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement.values)
        self.placement = placement
        self.ops_on_device = 0
        self.seen = 0  # ops on the device since the script began
        self.host = HostMeter()
        self.updating = False  # an optimizer's update is under way
        self.finished = False
        self.on_write: Callable[[Any], None] | None = None  # hears of what is written in place
        self.fetches: list[Fetch] = []  # of data loaders, since the step began
        self.losses: list[int] = []  # storages that backward passes began from

    def forget(self) -> None:
        super().forget()
        self.fetches.clear()
        self.losses.clear()

    def fetched(self, loader: Any, samples: int | None) -> None:
        """A data loader gives a batch."""
        if self.recording:
            self.fetches.append(Fetch(loader=id(loader), samples=samples))

    def leaving(self, tensor: torch.Tensor) -> Callable[[], None]:
        """For a loss on the host: it is computed from what the accelerator has made, which is where the step's own graph ends."""
        number = self._live.get(tensor.untyped_storage()._cdata) if self.recording else None
        return (lambda: None) if number is None else (lambda: self.losses.append(number))

    def losing(self, losses: Any) -> None:
        """A backward pass begins."""
        if self.recording:
            live = (self._live.get(loss.untyped_storage()._cdata) for loss in tensors_in(losses))
            self.losses += [number for number in live if number is not None]

    @contextmanager
    def running(self, inputs: int, launched_by: Launcher) -> Iterator[None]:
        """What a compiled function makes lies on the accelerator."""
        self.ops_on_device += 1
        self.seen += 1
        self.placement.here += 1
        try:
            with super().running(inputs, launched_by):
                yield
        finally:
            self.placement.here -= 1

    @property
    def resident(self) -> frozenset[int]:
        """Storages that were there before the step and are no state of a model or an optimizer."""
        return frozenset(i for i, (_, role, born, _) in enumerate(self._storages) if role is None and born < 0)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What happens meanwhile is no part of the step."""
        recording, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_traced:  # by a compiler
            return func(*args, **kwargs)
        if func is _DEVICE_QUERY:
            return CPU if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        if self.finished:
            raise Finished  # something has caught it
        device = kwargs.get("device")
        place = self.placement
        on_device = bool(place.here) or (device is not None and device.type in ACCELERATORS)
        fakes = [t for t in _leaves(args, kwargs) if isinstance(t, FakeTensor)]
        if not on_device and not fakes:
            if self.updating and self.recording:  # counters of updates, as a Workload's are recorded
                return super().__torch_dispatch__(func, types, args, kwargs)
            made = func(*args, **kwargs)
            if self.recording:
                self.host.count(func, args, made, self.times)
            return made
        if on_device and device is not None:
            kwargs = {**kwargs, "device": CPU}
        on_device = on_device or any(place.holds(t) for t in fakes)
        if place.everywhere and fakes:
            args, kwargs = place.bring(func, args, kwargs)
        if self.on_write is not None and func in WRITES:
            self.on_write(args[0])
        draws = on_device and not fakes and torch.Tag.nondeterministic_seeded in func.tags
        if draws:
            place.drawing()
        recording = self.recording
        self.recording = recording and on_device
        self.ops_on_device += on_device
        self.seen += on_device
        place.inside += 1
        try:
            with place.fake:
                out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            place.inside -= 1
            self.recording = recording
        if draws:
            place.drawn(out)
        if not on_device:
            keep = place.keep_data if any(map(place.is_data, fakes)) else place.keep_on_host
            for tensor in _leaves(out):
                if isinstance(tensor, FakeTensor):
                    keep(tensor)
        return out


def _is_blank(tensor: torch.Tensor) -> bool:
    """Whether it is of coloured pictures that stand in: no mask, whose numbers may decide something, but what a step computes with."""
    if isinstance(tensor, FakeTensor) or not tensor.is_floating_point() or tensor.dim() < 4:
        return False
    if tensor.shape[-3] != _COLOURS or tensor.numel() <= _FEW:
        return False
    with _disable_current_modes():
        return not bool(tensor.detach().any())


def _leaves(*trees: Any) -> Iterator[Any]:
    for tree in trees:
        if isinstance(tree, list | tuple):
            yield from _leaves(*tree)
        elif isinstance(tree, dict):
            yield from _leaves(*tree.values())
        elif isinstance(tree, torch.Tensor):
            yield tree
