"""Changes to torch's Python side: conversions, formatting, optimizer forms, and shapes it cannot tell by itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _foreach_utils as foreach_utils

_replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, original, replacement


def replace(owner: Any, name: str, value: Any) -> None:
    """Replace a function of torch, which TorchScript compiles as it was."""
    _replaced.append((owner, name, getattr(owner, name), value))
    setattr(owner, name, value)


def replace_everywhere(owner: Any, name: str, value: Any) -> None:
    """Also where modules of torch have taken the function over by name."""
    original = getattr(owner, name)
    for module in [m for key, m in list(sys.modules.items()) if key.startswith("torch.")]:
        if vars(module).get(name) is original:
            replace(module, name, value)
    if getattr(owner, name) is original:
        replace(owner, name, value)


def replaced() -> int:
    """How much has been replaced so far."""
    return len(_replaced)


def restore(since: int = 0) -> None:
    """Torch as it was when so much had been replaced, for a compiler that reads its functions."""
    for owner, name, original, _ in reversed(_replaced[since:]):  # some were replaced more than once
        setattr(owner, name, original)


def put_back(since: int = 0) -> None:
    for owner, name, _, replacement in _replaced[since:]:
        setattr(owner, name, replacement)


@contextmanager
def constructors_of_torch() -> Iterator[None]:
    """Functions of torch itself as they were, for a compiler that makes tensors on the device it is asked for."""
    names = {name: getattr(torch, name) for owner, name, _, _ in _replaced if owner is torch}
    for owner, name, original, _ in reversed(_replaced):
        if owner is torch:
            setattr(torch, name, original)
    try:
        yield
    finally:
        for name, function in names.items():
            setattr(torch, name, function)


def apply() -> None:
    _default_to_foreach()
    _convert_fake_tensors_in_place()
    _read_numbers_out_of_tensors()
    _compile_the_originals()
    # Nothing is compiled in this process; the guard against it is paid at every op.
    guarded = FakeTensorMode.__torch_dispatch__
    FakeTensorMode.__torch_dispatch__ = getattr(guarded, "_torchdynamo_orig_callable", guarded)  # type: ignore[method-assign]
    FakeTensor.__format__ = _formatted  # type: ignore[method-assign]
    torch.backends.mha.set_fastpath_enabled(False)


def let_fake_tensors_pass_as_real() -> None:
    """Transformers takes another path for fake tensors than for a GPU's; ours have the values it would ask for."""
    detection = sys.modules.get("transformers.utils.import_utils")
    if detection is not None:
        vars(detection)["is_fake_tensor"] = lambda value: False


def _formatted(tensor: Tensor, spec: str) -> str:
    """As a tensor of its own class does it: models look experts up by f"expert_{index}"."""
    return format(tensor.item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)


def _read_numbers_out_of_tensors() -> None:
    """Make `torch.tensor`, as on a GPU, read the numbers out of lists of one-element tensors, however deep."""
    for name, make in {"tensor": torch.tensor, "as_tensor": torch.as_tensor}.items():

        def tensor(data: Any, *args: Any, make: Any = make, **kwargs: Any) -> Any:
            return make(numbers_in(data) if isinstance(data, list | tuple) else data, *args, **kwargs)

        replace(torch, name, tensor)


def numbers_in(data: Any) -> Any:
    """A list with the numbers of the tensors in it, however deep."""
    if any(isinstance(value, FakeTensor | list | tuple) for value in data):
        return [
            value.item()
            if isinstance(value, FakeTensor)
            else numbers_in(value)
            if isinstance(value, list | tuple)
            else value
            for value in data
        ]
    return data


def _compile_the_originals() -> None:
    """A model may bring TorchScript functions that are compiled as it is built: what we replaced would not compile."""
    compile = torch.jit.script

    def script(obj: Any, optimize: Any = None, _frames_up: int = 0, **settings: Any) -> Any:
        restore()
        try:
            return compile(obj, optimize, _frames_up + 1, **settings)
        finally:
            put_back()

    replace(torch.jit, "script", script)  # itself too: compiling one function compiles those it calls


def _convert_fake_tensors_in_place() -> None:
    """A module may convert its parts as it runs; torch would swap fake parameters, which fails for those in use."""
    convert = torch.nn.Module._apply

    def apply(self: torch.nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
        own = [p for p in self._parameters.values() if p is not None]
        if not all(isinstance(p, FakeTensor) for p in own):
            return convert(self, fn, recurse)  # type: ignore[no-untyped-call,no-any-return]
        for child in self.children() if recurse else ():
            child._apply(fn)
        for parameter in own:
            with torch.no_grad():
                _take(parameter, fn(parameter))
                if parameter.grad is not None:
                    _take(parameter.grad, fn(parameter.grad))
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    replace(torch.nn.Module, "_apply", apply)


def _take(tensor: Tensor, made: Tensor) -> None:
    """Let a fake tensor be what was made of it, for all who know it."""
    if made is not tensor:
        tensor.data = made
        value = getattr(made, "_foretell_value", None)
        if value is None:
            tensor.__dict__.pop("_foretell_value", None)
        else:
            vars(tensor)["_foretell_value"] = value


def _default_to_foreach() -> None:
    """Optimizers and gradient clipping choose their foreach form for tensors on a GPU; do so for ours."""
    devices = [*foreach_utils._get_foreach_kernels_supported_devices(), "cpu"]
    optimizer, averaging = (importlib.import_module(f"torch.optim.{name}") for name in ("optimizer", "swa_utils"))
    for module in (foreach_utils, optimizer, averaging):
        vars(module)["_get_foreach_kernels_supported_devices"] = lambda: list(devices)
    for module in (foreach_utils, optimizer):
        module._foreach_supported_types.append(FakeTensor)  # the lists hold exact types


def _grouped_mm_shapes(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Grouped products run in every precision on a GPU; the shape rule that comes with torch knows bf16 only."""
    if a.dim() == 2 and b.dim() == 2:
        assert offs is not None
        sizes = [offs.shape[0], a.shape[0], b.shape[1]]
    else:
        sizes = [*a.shape[:-2], a.shape[-2], b.shape[-1]] if b.dim() == 3 else [a.shape[1], b.shape[1]]
    dtype = out_dtype or a.dtype
    aligned = 16 // dtype.itemsize
    row = -(-sizes[-1] // aligned) * aligned  # rows start at a multiple of 16 bytes
    strides = [sizes[1] * row, row, 1] if len(sizes) == 3 else [row, 1]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=a.device)


def _histc_shape(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """A GPU counts integers too."""
    return values.new_empty(bins)


SHAPES: Final[dict[str, Callable[..., Any]]] = {"_grouped_mm": _grouped_mm_shapes, "histc": _histc_shape}
