"""Batches of a script's own data sets that lead nowhere: the next run makes them, as the model and the loss take them.

Where a data set cannot read what stands in for its files, its loader gives tensors that are made up by what they are called; where
it can, and a module or a loss refuses what it gives, tensors of another shape or kind come in their place. How many samples a batch
has is the loader's to say, and stays.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, dataloader

from foretell.capture.reads import is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.meant import sides_meant
from foretell.capture.script.shapes import ARRAY, FRAMES, free_primes, is_made_up, with_rank
from foretell.capture.script.taking import Given, contradictions, indexed, taken_apart
from foretell.capture.script.unread import GOES_ON, frames_in, is_of_data

MADE: Final = "data sets whose batches are made"  # what the guess about them is called
GIVEN: Final = "batch "  # begins the name of a tensor that a loader gave
LAST: Final = "the data set of the last batch"
SIDES: Final = (224, 224)  # height and width of pictures of which nothing else says them
_MANY: Final = 3  # functions that read data and go on, after which batches are made at once
_VOLUME: Final = (16, 112, 112)  # frames, height and width
_WHOLE: Final = re.compile(r"\blong\b|int64|\bindices\b|index tensor|integer|LongTensor", re.IGNORECASE)
_FLOAT: Final = re.compile(
    r"Found dtype Long|Input type \(long|got:? long|same dtype, but got|only (floating|Tensors of floating)",
    re.IGNORECASE,
)
_PADDED: Final = re.compile(r"padding \((\d+), \d+\) at dimension \d+ of input (?:torch\.Size\()?\[([\d, ]+)\]")
_SOUND: Final = 32_000  # numbers of one, where a spectrum is made of it
_RANGE: Final = re.compile(r"expected to be in range of \[-(\d+), \d+\], but got (-?\d+)")
_ORDER: Final = re.compile(r"input\.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)")
_PARTS: Final = re.compile(r"not enough values to unpack \(expected (\d+), got (\d+)\)")
_PAST: Final = re.compile(r"index (\d+) is out of bounds for dimension \d+ with size (\d+)")
_ONE_NUMBER: Final = re.compile(r"Tensor with (\d+) elements cannot be converted to Scalar")
_TARGETS: Final = re.compile(r"input batch_size \((\d+)\) to match target batch_size \((\d+)\)")
_Made = dict[str, Any]


def name_of(data: Any) -> str | None:
    """Of a data set of the script's own, or of tensors that it has put together; None for those of libraries."""
    while isinstance(data, Subset | ConcatDataset):
        data = data.dataset if isinstance(data, Subset) else next(iter(data.datasets), None)
    kind = type(data)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<none>"
    is_script = kind.__module__ == "__main__"  # whose place another program has again when the script has ended
    if kind is not TensorDataset and not is_script and (is_library(file) or kind.__module__ == "builtins"):
        return None
    return class_name(kind)


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def part(data: str, name: str) -> str:
    """What the guess about a tensor of a batch is called."""
    return f"{ARRAY}{name} in batches of {data}"


def batches_wanted(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The data set whose batches are to be made: that in which the error came, or that of the batch which was refused."""
    known: list[str] = guesses.known.get(MADE, [])
    if not ended.script.fake_data or not ended.stand_ins or not is_of_data(ended.error):
        return {}
    name = _failing(ended.error) or guesses.made.get(LAST)
    return {MADE: [*known, name]} if name and name not in known else {}


def batches_wanted_soon(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The same, where the data set has failed in many of its functions already."""
    many = len(guesses.known.get(GOES_ON, [])) >= _MANY
    return batches_wanted(ended, guesses) if many and _failing(ended.error) else {}


def _failing(error: BaseException) -> str | None:
    """The data set of the script's own in which an error came."""
    for frame, _ in frames_in(error):
        owner = frame.f_locals.get("self")
        if isinstance(owner, dataloader._BaseDataLoaderIter):
            owner = owner._dataset
        if isinstance(owner, Dataset) and (name := name_of(owner)) is not None:
            return name
    return None


def refused_made_batches(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Tensors of batches that were made, as a module, a loss or a line of the script takes them."""
    return _refused(ended, guesses, ARRAY)


def refused_batches(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The same of batches that a data set gave, of what stands in for its files."""
    return _refused(ended, guesses, GIVEN)


def _refused(ended: Ended, guesses: Guesses, prefix: str) -> dict[str, Any]:
    made = {what: one for what, one in guesses.made.items() if what.startswith(prefix) and " in batches of " in what}
    if not made or not ended.script.fake_data or not ended.stand_ins:
        return {}
    for shown in _revisions(ended, guesses, made):
        if shown and all(guesses.is_new(what, one) for what, one in shown.items()):
            return shown
    return {}


def _revisions(ended: Ended, guesses: Guesses, made: Mapping[str, _Made]) -> Iterator[dict[str, Any]]:
    frames = frames_in(ended.error)[::-1]
    for frame, line in frames:
        yield from _for_a_module(frame, guesses, made)
        yield from _for_a_loss(frame, made)
        yield from _for_an_operator(frame, made)
        yield from _in_line(frame, line, made, guesses)
        for given in (*contradictions(frame), *taken_apart(frame, line), *indexed(frame, line, ended.error)):
            for what, one in _of_shape(made, given.shape):
                yield {what: {**one, "shape": _changed(one["shape"], given, guesses)}}
            yield from _side_by_side(given, made)
    words = str(ended.error)
    kind = "float32" if _FLOAT.search(words) else "int64" if _WHOLE.search(words) else None
    for frame, _ in frames if kind else ():
        for what, one in _in_frame(frame, made):
            yield {what: {**one, "dtype": kind}} if one["dtype"] != kind else {}
    yield from _in_words(words, guesses, made)


def _for_a_module(frame: types.FrameType, guesses: Guesses, made: Mapping[str, _Made]) -> Iterator[dict[str, Any]]:
    """A convolution takes pictures, a recurrent layer sequences, an embedding whole numbers."""
    module, tensor = frame.f_locals.get("self"), frame.f_locals.get("input")
    if not isinstance(tensor, torch.Tensor) or not isinstance(module, nn.Module):
        return
    if isinstance(module, nn.RNNBase):
        for what, one in (*_of_shape(made, tensor.squeeze(1).shape), *_of_shape(made, tensor.squeeze(0).shape)):
            if len(one["shape"]) < 3:  # which it has taken for one sequence
                times = one["shape"][1:2] or free_primes(guesses)[:1]
                yield {what: {**one, "shape": [*one["shape"][:1], *times, module.input_size]}}
    for what, one in _of_shape(made, tuple(tensor.shape)):
        shape = one["shape"]
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and one["dtype"] != "int64":
            yield {what: {**one, "dtype": "int64"}}
        elif isinstance(module, _ConvNd) and len(shape) < len(module.kernel_size) + 2:
            sides = {1: (FRAMES,), 2: sides_meant(frame) or SIDES, 3: _VOLUME}[len(module.kernel_size)]
            yield {what: {**one, "shape": [*shape[:1], module.in_channels, *sides]}}


def _for_a_loss(frame: types.FrameType, made: Mapping[str, _Made]) -> Iterator[dict[str, Any]]:
    """A target is of the output's shape, or has a class for each position of it."""
    output, target = frame.f_locals.get("input"), frame.f_locals.get("target")
    if frame.f_globals.get("__name__") != nn.functional.__name__ or not isinstance(output, torch.Tensor):
        return
    if isinstance(target, torch.Tensor) and output.dim() > 1:
        is_of_classes = frame.f_code.co_name in ("cross_entropy", "nll_loss")
        wanted = [output.shape[0], *output.shape[2:]] if is_of_classes else list(output.shape)
        for what, one in _of_shape(made, tuple(target.shape)):
            if one["shape"][:1] == wanted[:1]:
                yield {what: {**one, "shape": list(map(int, wanted)), "dtype": "int64" if is_of_classes else "float32"}}


def _for_an_operator(frame: types.FrameType, made: Mapping[str, _Made]) -> Iterator[dict[str, Any]]:
    """What is computed with number by number, for as many samples, has as many dimensions."""
    func, args = frame.f_locals.get("func"), frame.f_locals.get("args")
    if not isinstance(func, torch._ops.OpOverload) or torch.Tag.pointwise not in func.tags:
        return
    shapes = [tuple(arg.shape) for arg in pytree.tree_leaves(args) if isinstance(arg, torch.Tensor)]
    for first, second in (shapes, shapes[::-1]) if len(shapes) == 2 else ():
        if len(first) < len(second) and first[:1] == second[:1]:
            yield from ({what: {**one, "shape": list(second)}} for what, one in _of_shape(made, first))


def _in_line(
    frame: types.FrameType, line: int, made: Mapping[str, _Made], guesses: Guesses
) -> Iterator[dict[str, Any]]:
    """Of a line of the script's that compares two shapes, or takes one apart that has too few sides."""
    if is_library(frame.f_code.co_filename):
        return
    text = linecache.getline(frame.f_code.co_filename, line)
    named = [frame.f_locals.get(name) for name in re.findall(r"(\w+)\.(?:shape|size\()", text)]
    tensors = [value for value in named if isinstance(value, torch.Tensor)]
    if len(tensors) == 2 and "==" in text:
        for one, other in (tensors, tensors[::-1]):
            for what, taken in _of_shape(made, tuple(one.shape)) if one.shape[:1] == other.shape[:1] else ():
                yield {what: {**taken, "shape": list(map(int, other.shape))}}
    for tensor in tensors if "=" in text and "," in text.partition("=")[0] else ():
        lacks = len(text.partition("=")[0].split(",")) - tensor.dim()
        for what, taken in made.items() if lacks > 0 else ():
            if tuple(tensor.shape) in (tuple(taken["shape"]), tuple(taken["shape"][1:])):
                yield {what: {**taken, "shape": with_rank(taken["shape"], len(taken["shape"]) + lacks, guesses)}}


def _side_by_side(given: Given, made: Mapping[str, _Made]) -> Iterator[dict[str, Any]]:
    """Features of which some are those of a tensor that was made, and the others of something else: its own change."""
    for got, wanted in given.extents:
        if is_made_up(wanted):
            continue  # it is the other that must change
        for extent in {n for one in made.values() for n in one["shape"][1:] if is_made_up(n) and got % n}:
            if extent < got and (own := wanted - (got - extent)) > 0:
                yield {what: {**one, "shape": [*one["shape"][:1], *(own if n == extent else n for n in one["shape"][1:])]}
                       for what, one in made.items() if extent in one["shape"][1:]}  # fmt: skip


def _of_shape(made: Mapping[str, _Made], shape: tuple[int, ...]) -> list[tuple[str, _Made]]:
    return [(what, one) for what, one in made.items() if tuple(one["shape"]) == tuple(shape)]


def _in_frame(frame: types.FrameType, made: Mapping[str, _Made]) -> Iterator[tuple[str, _Made]]:
    """Tensors of batches that a function has in its hands, as far as their shapes say it."""
    for value in list(frame.f_locals.values()):
        if isinstance(value, torch.Tensor):
            whole = "int64" if not value.is_floating_point() else "float32"
            yield from ((what, one) for what, one in _of_shape(made, tuple(value.shape)) if one["dtype"] == whole)


def _changed(shape: list[int], given: Given, guesses: Guesses) -> list[int]:
    if given.more:
        return with_rank(shape, max(len(shape) + given.more, 1), guesses)
    changes = dict(given.extents)
    return [*shape[:1], *(changes.get(extent, extent) for extent in shape[1:])]


def _in_words(words: str, guesses: Guesses, made: Mapping[str, _Made]) -> Iterator[dict[str, Any]]:
    """What an error's words say of the dimensions that a tensor has and should have."""
    have = want = 0
    if found := _RANGE.search(words):
        have, at = map(int, found.groups())
        want = at + 1 if at >= 0 else -at
    elif found := _ORDER.search(words):
        have, want = map(int, found.groups())
    elif found := _PARTS.search(words):
        want, have = map(int, found.groups())
    elif found := _PAST.search(words):
        at, extent = map(int, found.groups())
        for what, one in made.items():
            if extent in one["shape"][1:]:
                yield {
                    what: {
                        **one,
                        "shape": [*one["shape"][:1], *(at + 1 if n == extent else n for n in one["shape"][1:])],
                    }
                }
    elif found := _PADDED.search(words):
        sides = [int(side) for side in found[2].split(",")]
        for what, one in made.items():
            if one["shape"][-1] in sides[-1:] and len(one["shape"]) > 1:
                yield {what: {**one, "shape": [*one["shape"][:-1], _SOUND]}}
    elif found := _ONE_NUMBER.search(words):
        for what, one in made.items():
            if one["shape"][1:] and math.prod(one["shape"]) == int(found[1]):
                yield {what: {**one, "shape": one["shape"][:1]}}
    elif found := _TARGETS.search(words):
        rows = int(found[1])
        for what, one in made.items():
            if len(one["shape"]) == 1 and one["dtype"] == "int64" and rows % one["shape"][0] == 0:
                yield {what: {**one, "shape": [*one["shape"], rows // one["shape"][0]]}}
    for what, one in made.items() if want else ():
        if len(one["shape"]) == have:
            yield {what: {**one, "shape": with_rank(one["shape"], want, guesses)}}
