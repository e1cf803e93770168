"""Pictures whose sides were made up, and that a net refuses: the net itself tells which sides it takes."""

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from foretell.capture.script.ended import Ended
from foretell.capture.script.guesses import Guesses
from foretell.capture.script.meant import SIDES, sides_named
from foretell.capture.script.shapes import ARRAY, PICTURE, is_made_up
from foretell.capture.script.unread import frames_in, is_of_data
from foretell.units import Seconds

TAKEN: Final = "sides that a net takes"  # what is known once a net has told
_LONGEST: Final[Seconds] = 12.0  # of the processor, that a net and its parts are tried
_CHANNELS: Final = (3, 1)  # of pictures of which nothing says them
_COLOURED: Final = (1, 3, 4, 6)  # channels of pictures, and of two of them on each other
# Sides that nets are made for, those that most have first; then height and width of those that are not square.
_USUAL: Final = (224, 256, 112, 128, 96, 64, 32, 28, 299, 384, 448, 512, 227, 84, 48, 105)
_OBLONG: Final = ((256, 128), (128, 64), (32, 100), (32, 128), (32, 320), (384, 128), (256, 192), (384, 288), (192, 640),
                  (288, 800), (256, 512), (48, 160), (512, 1024))  # fmt: skip
_NEAR: Final = (512, 512)  # to pictures as they are
_OTHERS: Final = range(16, 641, 8)
_Sides = tuple[int, int]
_Picture = tuple[int, int, int]  # channels, height and width


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a net that refused pictures whose sides were made up."""

    net: nn.Module
    given: tuple[Any, Any]  # arguments, and those by name
    pictures: tuple[_Picture, ...]

    def groups(self) -> Iterator[frozenset[_Picture]]:
        """Pictures that may be of one size: those that primes show to be made up of nothing, all, each."""
        invented = [picture for picture in self.pictures if all(map(is_made_up, picture[1:]))]
        groups = (invented, self.pictures, *([picture] for picture in self.pictures))
        yield from dict.fromkeys(frozenset(group) for group in groups if group)

    def takes(self, group: frozenset[_Picture], sides: _Sides, channels: int) -> bool:
        """Whether the net runs with pictures of these sides."""

        def another(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or (picture := _picture_of(value)) not in group:
                return value
            own = channels if is_made_up(picture[0]) else picture[0]
            return value.new_zeros((*value.shape[:-3], own, *sides))

        try:
            args, kwargs = pytree.tree_map(another, self.given)
            with torch.enable_grad():
                self.net(*args, **kwargs)
        except Exception:  # whatever comes of sides that do not fit
            return False
        return True


def pictures_that_a_net_takes(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """Pictures as large as the net runs with that has refused them."""
    if not ended.script.fake_data or not is_of_data(ended.error):
        return {}
    calls = [*_refused(ended.error, frozenset(picture for _, picture in _made_up(guesses)))]
    parts = [
        call for call in calls[1:] if not type(call.net).__module__.startswith("torch.")
    ]  # a layer takes any sides
    tried = calls[:1] + parts[-1:]
    for call in tried:
        for group, wanted in _taken(call, ended.error, _LONGEST / len(tried)):
            shown = _revised(guesses, group, wanted)
            is_new = all(guesses.is_new(what, made) for what, made in shown.items())
            return {TAKEN: True, **shown} if is_new else {}
    return {}


def _taken(call: _Call, error: BaseException, longest: Seconds) -> Iterator[tuple[frozenset[_Picture], _Picture]]:
    """What a net takes of which of its pictures, one after another, for so long."""
    began = time.process_time()
    for group in call.groups():
        channels = _CHANNELS if any(is_made_up(picture[0]) for picture in group) else (0,)
        for sides, count in itertools.product(dict.fromkeys(_candidates(error, group)), channels):
            if time.process_time() - began > longest:
                return
            if call.takes(group, sides, count):
                yield group, (count, *sides)


def _candidates(error: BaseException, group: frozenset[_Picture]) -> Iterator[_Sides]:
    """What the script says; then, where it cuts nothing out of pictures, what is as near as most nets can halve; what is usual."""
    yield from sides_named(frames_in(error)[-1][0])
    if any(picture[1:] == (PICTURE[1], PICTURE[0]) for picture in group):
        yield _NEAR
    yield from ((side, side) for side in _USUAL)
    yield from _OBLONG
    yield from ((side, side) for side in _OTHERS)


def _refused(error: BaseException, known: frozenset[_Picture]) -> Iterator[_Call]:
    """Calls of nets with pictures that were made up, the outermost first."""
    for frame, _ in frames_in(error):
        if (call := _call_in(frame)) is None:
            continue
        net, given = call
        leaves = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        pictures = tuple(dict.fromkeys(picture for picture in map(_picture_of, leaves) if _is_of(picture, known)))
        if pictures:
            yield _Call(net=net, given=given, pictures=pictures)


def _is_of(picture: _Picture, known: frozenset[_Picture]) -> bool:
    """Whether one of its sides, and of its channels where these are known, was made up."""
    return picture in known or (0, *picture[1:]) in known


def _call_in(frame: types.FrameType) -> tuple[nn.Module, tuple[Any, Any]] | None:
    """A call of a module, as torch makes it."""
    if frame.f_code is not nn.Module._call_impl.__code__:
        return None
    named = frame.f_locals
    return named["self"], (named["args"], named["kwargs"])


def _picture_of(tensor: torch.Tensor) -> _Picture:
    """Channels, height and width of pictures in a tensor; none of another tensor."""
    if tensor.dim() < 4 or not tensor.is_floating_point():
        return (0, 0, 0)
    channels, height, width = map(int, tensor.shape[-3:])
    return (channels, height, width) if channels in _COLOURED or is_made_up(channels) else (0, 0, 0)


def _made_up(guesses: Guesses) -> Iterator[tuple[str, _Picture]]:
    """Pictures that were made up, by the name of the guess; those in files have the channels that the script reads them with."""
    for what, made in guesses.made.items():
        if what.startswith(SIDES):
            yield what, (0, made[1], made[0])
        elif " in batches of " in what and isinstance(made, Mapping) and len(made["shape"]) > 3:
            channels, height, width = made["shape"][-3:]
            if what.startswith(ARRAY) or not is_made_up(channels):  # else the array that it is made of is to change
                yield what, (channels, height, width)


def _revised(guesses: Guesses, group: frozenset[_Picture], wanted: _Picture) -> dict[str, Any]:
    """Guesses of pictures of the group, with the sides that are wanted."""
    channels, height, width = wanted
    shown: dict[str, Any] = {}
    for what, own in _made_up(guesses):
        made = guesses.made[what]
        if what.startswith(SIDES) and any(own[1:] == picture[1:] for picture in group):
            shown[what] = [width, height]
        elif own in group:
            first = channels if is_made_up(own[0]) else own[0]
            shown[what] = {**made, "shape": [*made["shape"][:-3], first, height, width]}
    return shown
