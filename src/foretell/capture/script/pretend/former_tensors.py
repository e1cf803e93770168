"""What torch took when a script was written, and refuses now: it is computed as it was then.

Comparisons gave bytes and not flags, their results lay in order in memory, and a loss was a list of one number.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.guesses import FIRST_OF_ONE
from foretell.capture.script.session import Session

_BY_MASK: Final = ("masked_fill", "masked_fill_", "masked_select", "masked_scatter", "masked_scatter_")
_MINUS: Final = ("__sub__", "__rsub__", "sub", "sub_")
_OF_TARGETS: Final = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


class _Single(np.ndarray[Any, Any]):
    """One number, which is also the first of a list, as a loss was."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(() if self.ndim == 0 and key in (0, -1) else key)


def install(session: Session) -> None:
    _view()
    _one_number_as_an_array()
    if session.guesses.about(FIRST_OF_ONE, False):
        _first_of_one()
    for name in _BY_MASK:
        replace(torch.Tensor, name, _with_flags(getattr(torch.Tensor, name)))
    for name in _MINUS:
        replace(torch.Tensor, name, _without_flags(getattr(torch.Tensor, name)))
    for name in _OF_TARGETS:
        replace(F, name, _of_any_shape(getattr(F, name)))
    for kind in (k for k in vars(lr_scheduler).values() if isinstance(k, type)):
        if issubclass(kind, lr_scheduler.LRScheduler) and "__init__" in vars(kind):
            replace(kind, "__init__", _without_verbose(kind.__init__))
    replace(torch.optim.Adam, "__init__", _with_whole_betas(torch.optim.Adam.__init__))
    replace(torch.nn.Conv1d, "_conv_forward", _by_its_kernel(torch.nn.Conv1d._conv_forward))
    replace(torch, "stft", _stft(torch.stft))
    for name, function in _FORMER.items():
        replace(torch, name, function) if hasattr(torch, name) else setattr(torch, name, function)


def _by_its_kernel(convolve: Callable[..., Any]) -> Callable[..., Any]:
    """A `Conv1d` that was given a kernel of two dimensions convolved along two, as its weight has them."""

    def forward(self: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        if weight.dim() != 4:
            return convolve(self, x, weight, bias)
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    return forward


def _view() -> None:
    view: Any = torch.Tensor.view

    @functools.wraps(view)
    def viewed(self: torch.Tensor, *shape: Any, **how: Any) -> Any:
        try:
            return view(self, *shape, **how)
        except (RuntimeError, ValueError) as error:
            if how or not any(isinstance(size, int | tuple | list) for size in shape):
                raise
            try:
                return self.reshape(*shape)
            except Exception:
                raise error from None

    replace(torch.Tensor, "view", viewed)


def _first_of_one() -> None:
    """`loss[0]`, in scripts that were seen to write it: with it torch takes every tensor for a list, in lists of numbers too."""
    get: Any = torch.Tensor.__getitem__

    def item(self: torch.Tensor, key: Any) -> Any:
        return self.item() if type(key) is int and key in (0, -1) and self.dim() == 0 else get(self, key)

    replace(torch.Tensor, "__getitem__", item)


def _one_number_as_an_array() -> None:
    to_array: Any = torch.Tensor.numpy

    @functools.wraps(to_array)
    def numpy(self: torch.Tensor, *args: Any, **how: Any) -> Any:
        made = to_array(self, *args, **how)
        return made.view(_Single) if type(made) is np.ndarray and made.ndim == 0 else made

    replace(torch.Tensor, "numpy", numpy)


def _with_flags(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def take(self: torch.Tensor, mask: Any, *args: Any, **how: Any) -> Any:
        is_bytes = isinstance(mask, torch.Tensor) and mask.dtype is torch.uint8
        return function(self, mask.bool() if is_bytes else mask, *args, **how)

    return take


def _without_flags(function: Any) -> Callable[..., Any]:
    def number(value: Any) -> Any:
        return value.to(torch.uint8) if isinstance(value, torch.Tensor) and value.dtype is torch.bool else value

    @functools.wraps(function)
    def take(self: torch.Tensor, other: Any, *args: Any, **how: Any) -> Any:
        return function(number(self), number(other), *args, **how)

    return take


def _of_any_shape(function: Any) -> Callable[..., Any]:
    """Targets of as many numbers as the input, in another shape."""

    @functools.wraps(function)
    def loss(input: torch.Tensor, target: torch.Tensor, *args: Any, **how: Any) -> Any:
        if target.shape != input.shape and target.numel() == input.numel():
            target = target.reshape(input.shape)
        return function(input, target, *args, **how)

    return loss


def _without_verbose(make: Any) -> Callable[..., None]:
    """Schedulers took a flag, the last of their arguments, that let them print."""

    taken = len(inspect.signature(make).parameters) - 1

    @functools.wraps(make)
    def init(self: Any, *args: Any, **how: Any) -> None:
        how.pop("verbose", None)
        make(self, *args[:taken], **how)

    return init


def _with_whole_betas(make: Any) -> Callable[..., None]:
    """Adam took whole numbers for its betas, as generators are trained with (0, 0.9)."""

    def whole(betas: Any) -> Any:
        return tuple(float(b) if isinstance(b, int) else b for b in betas) if isinstance(betas, tuple | list) else betas

    @functools.wraps(make)
    def init(self: Any, params: Any, *args: Any, **how: Any) -> None:
        if "betas" in how:
            how["betas"] = whole(how["betas"])
        make(self, params, *args[:1], *map(whole, args[1:2]), *args[2:], **how)

    return init


def _stft(function: Any) -> Callable[..., Any]:
    """Without a word on complex numbers it gave pairs of real ones."""

    @functools.wraps(function)
    def stft(input: torch.Tensor, *args: Any, return_complex: bool | None = None, **how: Any) -> Any:
        if return_complex is None and not input.is_complex():
            return torch.view_as_real(function(input, *args, return_complex=True, **how))
        return function(input, *args, return_complex=return_complex, **how)

    return stft


def _rfft(input: torch.Tensor, signal_ndim: int, normalized: bool = False, onesided: bool = True) -> torch.Tensor:
    transform = torch.fft.rfftn if onesided else torch.fft.fftn
    sides = tuple(range(-signal_ndim, 0))
    return torch.view_as_real(transform(input, dim=sides, norm="ortho" if normalized else "backward"))


def _irfft(
    input: torch.Tensor, signal_ndim: int, normalized: bool = False, onesided: bool = True, signal_sizes: Any = None
) -> torch.Tensor:
    sides, norm = tuple(range(-signal_ndim, 0)), "ortho" if normalized else "backward"
    values = torch.view_as_complex(input.contiguous())
    made: torch.Tensor
    if onesided:
        made = torch.fft.irfftn(values, s=signal_sizes or None, dim=sides, norm=norm)
    else:
        made = torch.fft.ifftn(values, dim=sides, norm=norm).real
    return made


def _symeig(input: torch.Tensor, eigenvectors: bool = False, upper: bool = True) -> Any:
    return torch.linalg.eigh(input, UPLO="U" if upper else "L")


def _solve(B: torch.Tensor, A: torch.Tensor) -> Any:
    return torch.linalg.solve(A, B), torch.linalg.lu_factor(A)[0]


_FORMER: Final = {"rfft": _rfft, "irfft": _irfft, "symeig": _symeig, "solve": _solve}
