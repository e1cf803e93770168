"""Shapes that are made up for arrays of which nobody knows them.

Every extent that is made up is a prime, and no two arrays of different files share one: where a module or an operator refuses a
tensor, its extents say which array it was made of, and along which of its dimensions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from foretell.capture.script.guesses import Guesses

ROWS: Final = 2039  # of an array that has every sample in it: the first prime below 2,048
PRIMES: Final = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157)
# What extents are where a script cuts out more than they have: primes that are four times as large.
LARGER: Final = dict(zip(PRIMES, (
    251, 269, 283, 293, 317, 331, 353, 389, 401, 409, 431, 433, 449, 509, 521, 547, 557, 593, 601, 631,
), strict=True))  # fmt: skip
PICTURE: Final = (500, 375)  # width and height of most of ImageNet
FRAMES: Final = 400  # of a sound's spectrum, and of curves along it
ARRAY: Final = "array "  # what a guess about one begins with
_SPLITS: Final = re.compile(r"train(ing)?|val(id(ation)?)?|test(ing)?|dev|trn|tst|eval", re.IGNORECASE)
_FEWER: Final = 257  # rows, of more numbers each
_SMALL: Final = (17, 19, 23, 29, 31)  # extents of arrays that have many dimensions
_LARGEST: Final = 2**26  # numbers of an array


def alike(path: str) -> str:
    """What files have in common that differ by a number, or by the part of a data set that they have."""
    return _SPLITS.sub("", re.sub(r"[0-9]+", "#", path))


def arrays(guesses: Guesses) -> dict[str, dict[str, Any]]:
    """What arrays were taken to be in this run."""
    return {about: made for about, made in guesses.made.items() if about.startswith(ARRAY)}


def free_primes(guesses: Guesses) -> list[int]:
    taken = {extent for made in arrays(guesses).values() for extent in made["shape"]}
    return [prime for prime in PRIMES if prime not in taken] or list(PRIMES)


def is_made_up(extent: int) -> bool:
    return extent in (ROWS, _FEWER, FRAMES) or extent in PRIMES or extent in _SMALL or extent in LARGER.values()


def enlarged(extent: int, least: int) -> int:
    """One that was made up, several times as large, so that it is as large as it must be."""
    larger = LARGER.get(extent, extent)
    return larger if larger >= least else larger * 2 ** math.ceil(math.log2(least / larger))


def with_rank(shape: list[int], rank: int, guesses: Guesses) -> list[int]:
    """Of more dimensions, of which new ones come last, or of fewer: as large as before along those that stay."""
    rank = max(rank, 0)
    made = [*shape, *free_primes(guesses)[: max(rank - len(shape), 0)]][:rank]
    if math.prod(made) > _LARGEST and made[0] == ROWS:
        made[0] = _FEWER
    if math.prod(made) > _LARGEST:
        small = iter(_SMALL)
        made = [next(small, n) if is_made_up(n) and n not in (ROWS, _FEWER) else n for n in made]
    return made


def reshaped(shape: list[int], wanted: list[int]) -> list[int]:
    """The shape of an array of the same first dimensions that can be taken apart as wanted."""
    same = 0
    while same < min(len(shape), len(wanted)) and shape[same] == wanted[same]:
        same += 1
    rest = [n for n in wanted[same:] if n != -1]
    if -1 not in wanted[same:] and len(shape) == len(wanted):
        return list(wanted)
    if -1 not in wanted:
        return [*shape[:same], math.prod(rest)] if len(shape) > same else list(wanted)
    inner = math.prod(rest)
    return [*shape[:-1], inner] if len(shape) > 1 else [inner * 64]


def replaced(guesses: Guesses, got: int, wanted: int) -> dict[str, Any]:
    """Arrays as they must be for an extent that they led to, so that it is what is wanted: alone, or as a part of a product."""
    found = {extent for made in arrays(guesses).values() for extent in made["shape"] if is_made_up(extent)}
    parts = [extent for extent in sorted(found, reverse=True) if extent != 1 and got % extent == 0]
    rest = got // math.prod(parts)
    if not parts or wanted % rest:
        return {}
    new = _factors(wanted // rest, len(parts))
    changes = dict(zip(parts, new, strict=True))
    return {
        about: {**made, "shape": [changes.get(extent, extent) for extent in made["shape"]]}
        for about, made in arrays(guesses).items()
        if set(made["shape"]) & set(changes)
    }


def picture_of(guesses: Guesses, about: str, before: int) -> dict[str, Any]:
    """The array with bytes of three channels, which come last, after as many dimensions."""
    shape = guesses.made[about]["shape"]
    sides = [*shape[before:], *(prime for prime in free_primes(guesses) if prime not in shape)][:2]
    return {"shape": [*shape[:before], *sides, 3], "dtype": "uint8"}


def apart(guesses: Guesses, got: int, wanted: int) -> dict[str, Any]:
    """Of arrays that were taken to have the same extent, and that lead to two which differ: all but the first with one of their own."""
    for extent in PRIMES:
        holders = [about for about, made in arrays(guesses).items() if extent in made["shape"]]
        if got % extent == 0 and wanted % extent == 0 and len(holders) > 1:
            own = free_primes(guesses)[0]
            made = arrays(guesses)
            return {
                about: {**made[about], "shape": [own if n == extent else n for n in made[about]["shape"]]}
                for about in holders
                if _part_of(about) != _part_of(holders[0])
            }
    return {}


def _part_of(about: str) -> str:
    """What an array is called in its file."""
    return about.rpartition(": ")[2]


def _factors(number: int, count: int) -> list[int]:
    """As many, which are as near to each other as they can be."""
    if count == 1:
        return [number]
    root = round(number ** (1 / count))
    first = next((n for n in range(root, 0, -1) if number % n == 0), 1)
    return [*_factors(number // first, count - 1), first]


def ranked(guesses: Guesses, shape: Sequence[int], more: int) -> dict[str, Any]:
    """Arrays that a tensor of that shape was made of, with more dimensions, or with fewer."""
    return {
        about: {**made, "shape": with_rank(made["shape"], len(made["shape"]) + more, guesses)}
        for about, made in arrays(guesses).items()
        if any(extent in made["shape"] and is_made_up(extent) for extent in shape) and len(made["shape"]) + more > 0
    }
