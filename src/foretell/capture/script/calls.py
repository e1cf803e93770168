"""A call of a module as it looks from outside: what goes in, what comes out, and how the one follows from the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from foretell.capture.script.placement import Placement
from foretell.capture.values import contents_of

_PLAIN: Final = (bool, str, bytes, torch.dtype, torch.device, torch.memory_format, type(None))
_POINTS: Final = 4  # calls of different sizes, from which the sizes of the next are found


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What goes into a module."""

    kind: Hashable  # its structure, its types, and how torch is set to compute
    sizes: tuple[float, ...]  # of tensors, and numbers
    learns: bool  # a gradient is wanted of something that goes in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Like:
    """A tensor as it was, without what is in it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    learns: bool
    on_device: bool
    contents: torch.Tensor | None  # those that are known
    real: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What comes out of it."""

    leaves: tuple[Any, ...]  # _Like for tensors
    structure: Any
    plain: bool  # it is tensors and plain values alone

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(itertools.chain.from_iterable(leaf.shape for leaf in self.leaves if isinstance(leaf, _Like)))

    @property
    def kind(self) -> Hashable:
        likes = [leaf for leaf in self.leaves if isinstance(leaf, _Like)]
        return (self.structure, *((len(like.shape), like.dtype, like.on_device) for like in likes))

    def of_sizes(self, sizes: Sequence[int]) -> Result:
        """The same with other shapes, whose contents nobody knows."""
        left = list(sizes)
        leaves: list[Any] = []
        for leaf in self.leaves:
            if isinstance(leaf, _Like):
                shape, left = tuple(left[: len(leaf.shape)]), left[len(leaf.shape) :]
                stride = tuple(torch.empty(shape, device="meta").stride())
                leaf = _Like(shape=shape, stride=stride, dtype=leaf.dtype, learns=leaf.learns, on_device=leaf.on_device,
                             contents=None, real=leaf.real)  # fmt: skip
            leaves.append(leaf)
        return Result(leaves=tuple(leaves), structure=self.structure, plain=self.plain)


def call_of(place: Placement, module: torch.nn.Module, args: Any, kwargs: Any) -> Call | None:
    """None where something goes in that may be changed by the call: a cache, an object of the script's own."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds: list[Any] = [structure, module.training, *_settings()]
    sizes: list[float] = []
    learns = False
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                return None
            learns = learns or leaf.requires_grad
            kinds.append((leaf.dtype, leaf.dim(), place.holds(leaf)))
            sizes += leaf.shape
        elif isinstance(leaf, _PLAIN):
            kinds.append(leaf)
        elif isinstance(leaf, int | float):
            kinds.append(type(leaf))
            sizes.append(leaf)
        else:
            return None
    return Call(kind=tuple(kinds), sizes=tuple(sizes), learns=learns)


def _settings() -> tuple[Any, ...]:
    casts = torch.is_autocast_enabled("cpu")
    kind = torch.get_autocast_dtype("cpu") if casts else None
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), kind


def result_of(place: Placement, out: Any) -> Result | None:
    """None for what has tensors of a kind that is not made anew."""
    leaves, structure = pytree.tree_flatten(out)
    plain = True
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or type(leaf) not in (torch.Tensor, FakeTensor):
                return None
            real = not isinstance(leaf, FakeTensor)
            with _disable_current_modes():
                contents = leaf.detach().clone() if real else contents_of(leaf)
            leaves[number] = _Like(
                shape=tuple(leaf.shape), stride=tuple(leaf.stride()), dtype=leaf.dtype, learns=leaf.requires_grad,
                on_device=place.holds(leaf), contents=contents, real=real,
            )  # fmt: skip
        else:
            plain = plain and isinstance(leaf, (*_PLAIN, int, float))
    return Result(leaves=tuple(leaves), structure=structure, plain=plain)


def make_again(place: Placement, result: Result, reached: Callable[[], None] | None = None) -> Any:
    """New tensors in place of those that came out; gradients that reach them go no further, and `reached` hears of them."""
    made = [_tensor(place, leaf) if isinstance(leaf, _Like) else leaf for leaf in result.leaves]
    wanted = [i for i, leaf in enumerate(result.leaves) if isinstance(leaf, _Like) and leaf.learns]
    if wanted and torch.is_grad_enabled():
        with place.making():
            source = torch.empty((), requires_grad=True)
        outputs = _EndOfGradients.apply(source, lambda: tuple(made[i] for i in wanted), reached)  # type: ignore[no-untyped-call]
        for i, tensor in zip(wanted, outputs, strict=True):
            made[i] = tensor
    return pytree.tree_unflatten(made, result.structure)


class _EndOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, make: Callable[[], tuple[torch.Tensor, ...]], reached: Callable[[], None] | None
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.reached = reached
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None, None]:
        if ctx.reached is not None:
            ctx.reached()
        return None, None, None


def _tensor(place: Placement, like: _Like) -> torch.Tensor:
    with _disable_current_modes():
        if like.real:
            return torch.zeros(like.shape, dtype=like.dtype) if like.contents is None else like.contents.clone()
        with place.making():
            made = torch.empty_strided(like.shape, like.stride, dtype=like.dtype)
        if like.contents is not None:
            place.values.give(made, like.contents.clone())
    if not like.on_device:
        place.keep_on_host(made)
    return made


def extrapolated(known: Sequence[tuple[tuple[float, ...], Result]], sizes: tuple[float, ...]) -> Result | None:
    """What comes out for other sizes: each side stays, or is as long as one that goes in, or grows with the one that varies."""
    points = dict(known)
    if not points or len({result.kind for result in points.values()}) > 1:
        return None
    courses = list(zip(*(result.sizes for result in points.values()), strict=True))
    found = _as_long(points, sizes, courses)
    if found is None and all(result.plain for result in points.values()):
        found = _grown(points, sizes, courses)
    return None if found is None else next(iter(points.values())).of_sizes(found)


def _as_long(
    points: Mapping[tuple[float, ...], Result], sizes: tuple[float, ...], courses: Sequence[tuple[int, ...]]
) -> list[int] | None:
    """Where what is another now was another before as well, and each side that went with it was as long."""
    went_in = dict[tuple[float, ...], float]()
    for course, size in zip(zip(*points, strict=True), sizes, strict=True):
        varied = len(set(course)) > 1
        if not varied and size != course[0]:
            return None
        if varied and went_in.setdefault(course, size) != size:
            return None  # two that were the same so far
    found = [course[0] if len(set(course)) == 1 else went_in.get(course) for course in courses]
    sides = [int(size) for size in found if size is not None and size == int(size)]
    return sides if len(sides) == len(found) else None


def _grown(
    points: Mapping[tuple[float, ...], Result], sizes: tuple[float, ...], courses: Sequence[tuple[int, ...]]
) -> list[int] | None:
    """Where all sizes have grown with one, as those of a text that gets longer do."""
    if len(points) < _POINTS:
        return None
    inputs = [*points, sizes]
    varies = next((i for i in range(len(sizes)) if len({each[i] for each in inputs}) > 1), None)
    if varies is None or len({each[varies] for each in inputs}) < len(inputs):
        return None
    places = [each[varies] for each in inputs]
    if not all(_on_line(places, [each[i] for each in inputs]) for i in range(len(sizes))):
        return None
    found: list[int] = []
    for course in courses:
        slope = (course[1] - course[0]) / (places[1] - places[0])
        size = course[0] + slope * (places[-1] - places[0])
        if size != int(size) or size < 0 or not _on_line(places[:-1], course):
            return None
        found.append(int(size))
    return found


def _on_line(places: Sequence[float], values: Sequence[float]) -> bool:
    slope = (values[1] - values[0]) / (places[1] - places[0])
    return all(value == values[0] + slope * (place - places[0]) for place, value in zip(places, values, strict=True))
