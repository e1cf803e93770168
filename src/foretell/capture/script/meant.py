"""What the script's own settings say of its data: how many classes there are, and how large its pictures are."""

from __future__ import annotations

import argparse
import itertools
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from foretell.capture.reads import is_library

SIDES: Final = "width and height of pictures"  # what the guess about those of a set that nobody knows is called
_CLASSES: Final = re.compile(
    r"(num|n|nb|number)_?(of_)?(class|classes|cls|domains|labels|identities|categories)|nclass(es)?", re.IGNORECASE
)
_SIDES: Final = re.compile(
    r"(im(age)?|img|picture|photo|input|train|crop|fine|load)?_?(size|sz|shape|resolution|res)s?|"
    r"(im(age)?|img|picture|photo|crop)_?dims?|patch_?size",
    re.IGNORECASE,
)
_LENGTHS: Final = re.compile(
    r"max_?(seq(uence)?|text|source|src|token|pad|sent(ence)?)?_?len(gth)?|seq(uence)?_?(len(gth)?|size)|block_size|bptt|context_(len(gth)?|size)|"
    r"model_max_length|cutoff_len|pad_(size|len(gth)?)",
    re.IGNORECASE,
)
_THINGS: Final = re.compile(
    r"(\w+_)?(class(es|_?names?)?|categories|label_?(names?|map|dict)|labels_dict|name2(id|label)|cat2label)|"
    r"(\w+_)?(class|label|name|cat)\w*_(to|2)_(i|id|ind|index|idx|label|num|int)x?s?",
    re.IGNORECASE,
)
_BACKGROUND: Final = re.compile(r"_*(background|bg|ignored? ?regions?|ignore|others?)_*", re.IGNORECASE)
_SETTINGS: Final = frozenset("args arg opt opts options config cfg conf params hparams flags settings".split())
_LARGEST: Final = 100_000  # classes
_LONGEST: Final = 2**20  # tokens of a sequence
_LEAST, _GREATEST = 16, 4096  # points of a side
_PATCHES: Final = re.compile(r"patch", re.IGNORECASE)  # of a transformer as well, which cuts its pictures into them
_SIDES_OF_PICTURES: Final = re.compile(r"(im(age)?|img|picture|photo|crop|patch)", re.IGNORECASE)  # and not of anything
# One of two sides, by its first words and by what it is called.
_HEIGHT: Final = re.compile(
    r"((?:\w*_)?(?:im(?:age)?|img|picture|photo|input|train|crop|resized?|target)_?)(height|h)", re.IGNORECASE
)
_DEPTH: Final = 3  # of settings in settings


def classes_meant(frame: types.FrameType | None) -> int | None:
    """Of the innermost function that knows it, or of the module's names."""
    found: int | None = next(_meant(frame, _CLASSES, _counts), None)
    return found


def sides_meant(frame: types.FrameType | None) -> tuple[int, int] | None:
    """Height and width of pictures that a setting names."""
    return next(sides_named(frame), None)


def sides_named(frame: types.FrameType | None) -> Iterator[tuple[int, int]]:
    """Every height and width that settings name, the innermost function's first; of patches last."""
    patches: list[tuple[int, int]] = []
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            for name, sides in _sides_in(frame):
                if not _PATCHES.search(name):
                    yield sides
                else:
                    patches.append(sides)
        frame = frame.f_back
    yield from patches


def _sides_in(frame: types.FrameType) -> Iterator[tuple[str, tuple[int, int]]]:
    """What a function's names, its object's, its module's and their settings say of sides."""
    owner = getattr(frame.f_locals.get("self"), "__dict__", {})
    for names, named in ((frame.f_locals, None), (owner, _SIDES_OF_PICTURES), (frame.f_globals, None)):
        for name, value in list(names.items()):
            if _SIDES.fullmatch(name) and _is_size(value) and (named is None or named.match(name)):
                yield name, _both(value)
            else:
                yield from _sides_in_settings(name, value)


def _sides_in_settings(name: str, value: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    for settings in _settings(name, value):
        for key, inner in list(settings.items()):
            if not isinstance(key, str):
                continue
            key = key.rpartition(".")[2]
            if _SIDES.fullmatch(key) and _is_size(inner):
                yield key, _both(inner)
            elif (found := _HEIGHT.fullmatch(key)) and _is_size(inner) and isinstance(inner, int):
                other = found[1] + {"height": "width", "h": "w"}[found[2].lower()]
                width = next((v for k, v in settings.items() if str(k).lower() == other.lower()), None)
                if type(width) is int and _is_size(width):
                    yield key, (inner, width)


def _both(size: Any) -> tuple[int, int]:
    sides = [size, size] if isinstance(size, int) else [side for side in size if side >= _LEAST]
    return sides[0], sides[1]


def length_meant(frame: types.FrameType | None) -> int | None:
    """Of a sequence of tokens, where a setting names it."""
    found: int | None = next(_meant(frame, _LENGTHS, _counts), None)
    return found


def length_in(arguments: Sequence[str]) -> int | None:
    """Of a sequence of tokens, where the script's own arguments name it."""
    for at, argument in enumerate(arguments):
        name, joined, value = argument.partition("=")
        value = value if joined else next(iter(arguments[at + 1 : at + 2]), "")
        is_length = name.startswith("--") and _LENGTHS.fullmatch(name.lstrip("-").replace("-", "_"))
        if is_length and value.isdigit() and 1 < int(value) <= _LONGEST:
            return int(value)
    return None


def thing_meant(frame: types.FrameType | None) -> str | None:
    """What a thing in a picture is called, by the script's own list or table of classes."""
    names: Any = next(_meant(frame, _THINGS, _names_things), ())
    while frame is not None and not names:
        owner = getattr(frame.f_locals.get("self"), "__dict__", None)
        if isinstance(owner, Mapping) and not is_library(frame.f_code.co_filename):
            names = next(_values(owner, _THINGS, _names_things), ())
        frame = frame.f_back
    return next((name for name in names if not _BACKGROUND.fullmatch(name)), None)


def _meant(frame: types.FrameType | None, named: re.Pattern[str], fits: Callable[[Any], bool]) -> Iterator[Any]:
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield from _values(frame.f_locals, named, fits)
            yield from _values(frame.f_globals, named, fits)
        frame = frame.f_back


def _values(names: Mapping[str, Any], named: re.Pattern[str], fits: Callable[[Any], bool]) -> Iterator[Any]:
    for name, value in list(names.items()):
        if named.fullmatch(name) and fits(value):
            yield value
        else:
            for inner in itertools.islice(_settings(name, value), 1):
                yield from (v for k, v in list(inner.items()) if isinstance(k, str) and named.fullmatch(k) and fits(v))


def _settings(name: str, value: Any) -> Iterator[Mapping[Any, Any]]:
    """What a name has of settings, and what lies in these: of arguments, of a file, of an object."""
    if isinstance(value, argparse.Namespace) or (name.lower() in _SETTINGS and not isinstance(value, type)):
        yield from _nested(value, _DEPTH)


def _nested(value: Any, depth: int) -> Iterator[Mapping[Any, Any]]:
    inner = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    if not isinstance(inner, Mapping):
        return
    yield inner
    for part in list(inner.values()) if depth > 1 else ():
        if isinstance(part, Mapping | argparse.Namespace | types.SimpleNamespace):
            yield from _nested(part, depth - 1)


def _counts(value: Any) -> bool:
    return type(value) is int and 1 < value <= _LARGEST


def _names_things(value: Any) -> bool:
    if not isinstance(value, list | tuple | dict) or len(value) > _LARGEST:
        return False
    return any(not _BACKGROUND.fullmatch(name) for name in value) if _are_texts(value) else False


def _are_texts(value: Any) -> bool:
    return bool(value) and all(isinstance(name, str) for name in value)


def _is_size(value: Any) -> bool:
    """A side, or two of them with nothing else but channels."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        sides = [side for side in value if type(side) is int and _LEAST <= side <= _GREATEST]
        return len(sides) == 2 and len(value) <= 3
    return type(value) is int and _LEAST <= value <= _GREATEST
