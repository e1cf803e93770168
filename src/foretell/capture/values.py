"""Values for what a fake tensor does not hold: integers and flags that decide which ops run.

Fake tensors have shapes and no contents, yet a step may ask: which tokens went to expert 3, is the mask all
true, how long is the sequence. Integer and boolean tensors whose contents follow from the batch or from constants are
computed for real next to the fake ones; so are float ones that are small or hold whole numbers alone, as masks do.
Where contents depend on activations, a typical value is drawn and remembered as an assumption: routing is uniform, a
comparison holds half of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from foretell.capture import sparse
from foretell.errors import ForetellError

aten = torch.ops.aten
UNKNOWN = 0.5  # a number that is read: no loss so small, and no accuracy so high, that training would stop
_MAX_NUMBERS = 2**24
_FEW_FLOATS = 4096  # more than these are kept only where they are whole numbers
_KEY = "_foretell_value"
_FORGOTTEN = "_foretell_forgotten"  # of a storage into which something unknown was written
_FILLED = 2**20  # numbers that are made for a tensor of one number alone
# What they fill with; None: their last argument.
_FILLS = {aten.zeros_like.default: 0, aten.ones_like.default: 1, aten.new_zeros.default: 0, aten.new_ones.default: 1,
          aten.full_like.default: None, aten.new_full.default: None}  # fmt: skip
_ROUTERS = {aten.topk.default, aten.sort.default, aten.sort.stable, aten.argsort.default, aten.multinomial.default,
            aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim}  # fmt: skip
_COMPARISONS = {aten.gt.Scalar, aten.lt.Scalar, aten.ge.Scalar, aten.le.Scalar, aten.gt.Tensor, aten.lt.Tensor,
                aten.ge.Tensor, aten.le.Tensor}  # fmt: skip
_MASKED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor,
           aten._unsafe_index_put.default, aten._index_put_impl_.default}  # fmt: skip
_FINITE = {aten.eq.Tensor, aten.ne.Tensor, aten.eq.Scalar, aten.ne.Scalar, aten.isnan.default, aten.isinf.default}
_ASSUMABLE = _ROUTERS | _COMPARISONS | _FINITE
_SUMS = {
    aten.avg_pool2d.default: 1,
    aten.avg_pool3d.default: 1,
    aten.convolution.default: 1,
}  # where their window stands
_LONGEST_SUMS = 2**26  # products in all: more take a processor seconds, for fractions that are hardly ever kept
_UNINITIALISED = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default, aten.new_empty.default,
                  aten.new_empty_strided.default}  # fmt: skip


class Values:
    """Runs ops on fake tensors and keeps with them the contents that control flow may ask for."""

    def __init__(self, fake: FakeTensorMode, seed: int = 0) -> None:
        self.assumptions: dict[str, None] = {}  # what was assumed, in order, once each
        self._fake = fake
        self._random = torch.Generator().manual_seed(seed)

    def rewrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """An op the dispatcher should see in another form: indexing by a mask is nonzero, then indexing."""
        if (dense := sparse.rewritten(func, args, kwargs)) is not None:
            return dense
        if func not in _MASKED or not any(_is_mask(index) for index in args[1]):
            return None

        def by_positions() -> Any:
            indices: list[Any] = []
            for index in args[1]:
                indices += _positions(index) if _is_mask(index) else [index]
            return func(args[0], indices, *args[2:], **kwargs)

        return by_positions

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            with _disable_current_modes():
                return self._run_with_contents(func, args, kwargs)
        if func is sparse.MAKES:
            sparse.keep_numbers(out, args[3])
        made = out if isinstance(out, tuple | list) else (out,)
        followed = any(isinstance(o, FakeTensor) and _may_be_worth_keeping(o, func) for o in made)
        if followed and func in _FILLS and not (isinstance(args[0], torch.nn.Parameter) and out.is_floating_point()):
            self._fill(func, args, out)  # an optimizer's state is no mask
        elif followed and func not in _UNINITIALISED and (func in _ASSUMABLE or self._all_known(args)):
            if func in _SUMS and _is_long(args[_SUMS[func]], out):
                return out
            with _disable_current_modes():
                self._follow(func, args, kwargs, out)
        elif args and getattr(args[0], _KEY, None) is not None and func._schema.is_mutable:
            _forget(args[0])  # something unknown was written into it
        return out

    def _fill(self, func: Any, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Contents that follow from a shape alone, whatever is in the tensor that has it."""
        number = args[-1] if _FILLS[func] is None else _FILLS[func]
        if out.numel() <= _FILLED and isinstance(number, int | float):
            with _disable_current_modes():
                self.give(out, torch.full(out.shape, number, dtype=out.dtype))

    def give(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Attach known contents, as of the integer tensors of a batch."""
        if _worth_keeping(value):
            setattr(tensor, _KEY, value)

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        known = self._contents((args, kwargs))
        if known is None:
            value = self._assumed(func, args, out)
        else:
            real_args, real_kwargs = known
            real_kwargs.pop("pin_memory", None)
            try:
                value = func(*real_args, **real_kwargs)
            except (NotImplementedError, RuntimeError, ForetellError):  # a kernel that CPUs, or stand-ins, do not have
                return
        if value is None:
            return
        for fake, real in zip(pytree.tree_leaves(out), pytree.tree_leaves(value), strict=True):
            if isinstance(fake, FakeTensor) and isinstance(real, torch.Tensor):
                self.give(fake, real)

    @staticmethod
    def _all_known(args: tuple[Any, ...]) -> bool:
        """A quick look at the direct arguments: most ops read an activation and are done here."""
        return all(contents_of(a) is not None for a in args if isinstance(a, FakeTensor))

    def _contents(self, tree: Any) -> Any:
        """The same arguments with contents in place of fake tensors, or None if some are unknown."""
        leaves, spec = pytree.tree_flatten(tree)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, FakeTensor):
                leaves[i] = value = contents_of(leaf)
                if value is None:
                    return None
        return pytree.tree_unflatten(leaves, spec)

    def _assumed(self, func: Any, args: tuple[Any, ...], out: Any) -> Any:
        """Typical contents of integers that depend on activations."""
        if func in _ROUTERS:
            return pytree.tree_map(lambda o: self._any_order(func, args, o) if _is_index(o) else None, out)
        if (usual := _usually(func, args)) is not None:
            return torch.full(out.shape, usual)
        if func in _COMPARISONS and isinstance(out, FakeTensor) and out.dtype == torch.bool:
            self.assumptions["a comparison of activations holds for half of the elements"] = None
            return torch.rand(out.shape, generator=self._random) < 0.5
        return None

    def _any_order(self, func: Any, args: tuple[Any, ...], index: torch.Tensor) -> torch.Tensor:
        """Indices as if every choice were equally likely and, along the chosen dimension, distinct."""
        self.assumptions["choices made by activations (routing, top-k, arg-max) are uniform"] = None
        source = args[0]
        dim = next((a for a in reversed(args[1:]) if isinstance(a, int) and not isinstance(a, bool)), -1)
        if func in (aten.topk.default, aten.multinomial.default):
            dim = args[2] if func is aten.topk.default and len(args) > 2 else -1
        over_all = func in (aten.argmax.default, aten.argmin.default) and (len(args) < 2 or args[1] is None)
        one_choice = source.dim() == 0 or index.dim() != source.dim() or index.shape[dim] == 1
        if one_choice or source.numel() > _MAX_NUMBERS:
            high = source.numel() if over_all or source.dim() == 0 else source.shape[dim]
            return torch.randint(max(high, 1), index.shape, generator=self._random)
        order = torch.rand(source.shape, generator=self._random).argsort(dim)
        return order.narrow(dim, 0, index.shape[dim]).contiguous()

    def _run_with_contents(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is aten._local_scalar_dense.default:
            return self._scalar(args[0])
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, FakeTensor):
                leaves[i] = self._contents_or_typical(leaf)
        real_args, real_kwargs = pytree.tree_unflatten(leaves, spec)
        value = func(*real_args, **real_kwargs)

        def as_fake(real: Any) -> Any:
            if not isinstance(real, torch.Tensor):
                return real
            with self._fake:
                fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
            self.give(fake, real)
            return fake

        return pytree.tree_map(as_fake, value)

    def _contents_or_typical(self, tensor: FakeTensor) -> torch.Tensor:
        value = contents_of(tensor)
        if value is not None:
            return value
        if tensor.dtype == torch.bool:
            self.assumptions["an unknown mask is true for half of the elements"] = None
            mask = torch.rand(tensor.shape, generator=self._random) < 0.5
            self.give(tensor, mask)  # whatever else it chooses from has as many
            return mask
        if tensor.is_floating_point():
            return torch.rand(tensor.shape, generator=self._random).to(tensor.dtype)
        self.assumptions["unknown integers that shape the step are taken as zero"] = None
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    def _scalar(self, tensor: torch.Tensor) -> Any:
        value = contents_of(tensor)
        if value is not None:
            return value.item()
        if tensor.is_floating_point():
            return UNKNOWN
        self.assumptions["an unknown number read by the program is taken as zero"] = None
        return torch.zeros((), dtype=tensor.dtype).item()


def _usually(func: Any, args: tuple[Any, ...]) -> bool | None:
    """Numbers are finite: what isnan, isinf and isfinite ask, as the operators they are made of."""
    if func in (aten.isnan.default, aten.isinf.default):
        return False
    itself = func in (aten.eq.Tensor, aten.ne.Tensor) and args[0] is args[1]
    infinite = func in (aten.eq.Scalar, aten.ne.Scalar) and isinstance(args[1], float) and math.isinf(args[1])
    if itself:
        return func is aten.eq.Tensor
    return func is aten.ne.Scalar if infinite else None


def contents_of(tensor: torch.Tensor) -> torch.Tensor | None:
    value: torch.Tensor | None = getattr(tensor, _KEY, None)
    if value is not None and hasattr(value.untyped_storage(), _FORGOTTEN):
        return None
    return value if value is not None else getattr(tensor, "constant", None)


def _forget(tensor: torch.Tensor) -> None:
    """Contents, and those of every view of the same storage: what they had before stands in it no longer."""
    setattr(getattr(tensor, _KEY).untyped_storage(), _FORGOTTEN, True)
    delattr(tensor, _KEY)


def _may_be_worth_keeping(out: torch.Tensor, func: Any) -> bool:
    """Whether contents should be computed: random numbers in plenty are no mask."""
    random = out.is_floating_point() and torch.Tag.nondeterministic_seeded in func.tags
    return out.numel() <= (_FEW_FLOATS if random else _MAX_NUMBERS)


def _is_long(window: Any, out: torch.Tensor) -> bool:
    """Whether sums over a window, of pixels or of weights, are too many to be made for a mask."""
    each = math.prod(window.shape[1:] if isinstance(window, torch.Tensor) else window)
    return out.numel() > _FEW_FLOATS and out.numel() * each > _LONGEST_SUMS


def _worth_keeping(value: torch.Tensor) -> bool:
    if not value.is_floating_point() or value.numel() <= _FEW_FLOATS:
        return value.numel() <= _MAX_NUMBERS
    # By contents, not by size: a mask must not be forgotten because the batch has grown.
    return value.numel() <= _MAX_NUMBERS and torch.equal(value, value.round())


def _positions(mask: torch.Tensor) -> Sequence[torch.Tensor]:
    """Where a mask is true; one that is real, as of a list of flags, is looked at as it is."""
    if isinstance(mask, FakeTensor):
        positions: torch.Tensor = aten.nonzero.default(mask)
        return positions.unbind(1)
    with _disable_current_modes():
        return mask.nonzero().unbind(1)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _is_index(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.int64
