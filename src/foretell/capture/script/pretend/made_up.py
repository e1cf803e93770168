"""What statements of the script's would have given that fail on stand-ins: values by the names that they get, and by who makes them.

The script is run again with the functions in which they failed changed so that they go on; each line that failed is listed.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import linecache
import re
import runpy
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.script import going_on, scalars, slow, waits
from foretell.capture.script.ended import shown
from foretell.capture.script.going_on import Place, changed
from foretell.capture.script.pretend.files.guessed import guessed, reads_one_sample
from foretell.capture.script.pretend.files.line_parts import Line, Word
from foretell.capture.script.pretend.files.unknown import Document, Record, value_of
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session
from foretell.capture.script.set_aside import SET_ASIDE
from foretell.capture.script.shapes import PICTURE, is_made_up
from foretell.capture.script.unread import GOES_ON, is_of_data

_ROWS: Final = 2048
_FEW: Final = 4  # parts of one sample
_COUNTS: Final = re.compile(
    r"^(n|num|nb|number|max|len)_|_(size|len|length|count|num)s?$|^(length|size|count|num|n)$", re.I
)
_SIDES: Final = {"width": PICTURE[0], "w": PICTURE[0], "height": PICTURE[1], "h": PICTURE[1]}
_NUMBERS: Final = re.compile(r"(^|_)(label|lbl|cls|class|target|category|idx|index|id|pid|cid|camid|key|num)\d*$", re.I)
_BY_NAME: Final = re.compile(r"bbox|box(es)?$|path|file|text|sentence|caption|name|word|title|url", re.I)
_PICTURES: Final = re.compile(r"im(a?)ge?s?|pic|frame|photo|mask|depth|(^|_)(gt|seg|rgb|hr|lr)\d*$", re.I)
_TEXTS: Final = frozenset("str join format lower upper strip rstrip replace basename dirname decode group read".split())
_READERS: Final = frozenset("loads unpackb unpack safe_load parse getroot next".split())
_OBJECTS: Final = re.compile(
    r"(^|\.)(?!\w*(Tensor|Image|Counter|Dict|Path)\b)[A-Z]\w*$"
)  # classes, as of loaders and models
_COUNTING: Final = 47  # a prime, so that a layer of as many, or of a multiple, shows where it is from


@dataclass(kw_only=True, slots=True)
class _Changes:
    """What is changed in one file when it is read."""

    places: list[Place] = field(default_factory=list)  # functions that go on
    loops: set[int] = field(default_factory=set)  # lines of those that end early
    waits: set[int] = field(default_factory=set)  # lines of conditions that training waits for
    scalars: set[int] = field(default_factory=set)  # lines that take an array of one number for a number

    def of(self, source: Any, path: str) -> Any:
        text = source.decode("utf-8", errors="replace") if isinstance(source, bytes | bytearray) else str(source)
        try:
            tree = slow.cut(changed(text, path, self.places), self.loops)
            return scalars.taken_out(waits.hurried(tree, self.waits), self.scalars)
        except SyntaxError:  # of a language that is read otherwise
            return source


def install(session: Session) -> None:
    """Change the functions that earlier runs have failed in, when they are read."""
    known = session.guesses.known
    aside = known.get(SET_ASIDE, [])
    files: defaultdict[str, _Changes] = defaultdict(_Changes)
    for place in map(Place.of, [*known.get(GOES_ON, []), *aside]):
        files[place.path].places.append(place)
    for path, line in known.get(slow.CUT, []):
        files[path].loops.add(line)
    for path, line in known.get(waits.WAITS, []):
        files[path].waits.add(line)
    for path, line in known.get(scalars.SCALARS, []):
        files[path].scalars.add(line)
    if not files:
        return
    rounds = slow.Rounds(lambda path, line: _ended_early(session, path, line))
    waiting = waits.Waiting(
        lambda path, line: _taken_to_hold(session, path, line), lambda: bool(session.updates.sequence)
    )
    makes = _Makes(session, {(path, line) for path, _, line in aside})
    for name, function in (
        (slow.ROUNDS, rounds.of),
        (slow.MORE, rounds.more),
        (waits.READY, waiting.ready),
        (scalars.SCALAR, scalars.scalar),
        (going_on.MADE, makes.value),
        (going_on.ROWS, makes.rows),
    ):
        setattr(builtins, name, function)
    _change_files(dict(files))


def _ended_early(session: Session, path: str, line: int) -> None:
    words = linecache.getline(path, line).strip()
    session.stand_in(f"the rest of the loop in line {line} of {shown(path)} ({words})", "left out", decides_size=True)


def _taken_to_hold(session: Session, path: str, line: int) -> None:
    words = linecache.getline(path, line).strip()
    session.stand_in(
        f"what training waits for in line {line} of {shown(path)} ({words})",
        "taken to have come: it said the same thousands of times",
    )


def _change_files(files: dict[str, _Changes]) -> None:
    compiled: Callable[..., Any] = getattr(runpy, "compile", compile)

    def read(source: Any, path: str) -> Any:
        return files[path].of(source, path) if path in files else source

    def of_script(source: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        return compiled(read(source, filename), filename, *args, **kwargs)

    runpy.compile = of_script  # type: ignore[attr-defined]
    loader: Any = importlib.machinery.SourceFileLoader
    convert, code = loader.source_to_code, loader.get_code

    def source_to_code(self: Any, data: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return convert(self, read(data, str(path)), path, *args, **kwargs)

    def get_code(self: Any, fullname: str) -> Any:
        """Of a file that is changed, what was compiled before does not count."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path) if path in files else code(self, fullname)

    loader.source_to_code, loader.get_code = source_to_code, get_code


class _Makes:
    """Makes values, and puts down what they stand for."""

    def __init__(self, session: Session, aside: Container[tuple[str, int]] = ()) -> None:
        self._session = session
        self._aside = aside  # lines that are passed over

    def value(self, error: BaseException, line: int, name: str | None, how: str) -> Any:
        """Without a name: put down that the line has failed, or let it."""
        frame = sys._getframe(1)
        if self._is_aside(frame, line):
            return self._pass_over(frame, line) if name is None else self._unneeded(name, how)
        if name is None:
            return self._go_on(error, line, frame, _OBJECTS.search(how) is None)
        return self._of(frame, name, how)

    def rows(self, give: Callable[[], Any], line: int, names: list[str]) -> Iterator[Any]:
        """What the script goes through; where that fails before the first of it, rows that are made up."""
        frame = sys._getframe(1)
        count = 0
        try:
            for row in give():
                count += 1
                yield row
        except Exception as error:
            self._go_on(error, line, frame)
            for _ in range(0 if count else _FEW if reads_one_sample(frame) else _ROWS):
                made = [self._of(frame, name, "") for name in names]
                yield tuple(made) if len(made) != 1 else made[0]

    def _is_aside(self, frame: types.FrameType, line: int) -> bool:
        return (frame.f_code.co_filename, line) in self._aside

    def _pass_over(self, frame: types.FrameType, line: int) -> None:
        file = frame.f_code.co_filename
        words = linecache.getline(file, line).strip()
        self._session.stand_in(f"line {line} of {shown(file)} ({words})", "passed over: it fails", decides_size=True)

    def _unneeded(self, name: str, how: str) -> Any:
        """Text where texts are made; else what fails where a number or a tensor is wanted of it."""
        last = how.rpartition(".")[2]
        return Word("0") if last in _TEXTS or _BY_NAME.search(name) else Unneeded(name)

    def _go_on(self, error: BaseException, line: int, frame: types.FrameType, can_be_made: bool = True) -> None:
        if not (can_be_made and is_of_data(error)) or _is_end(error, frame):
            raise error
        file = frame.f_code.co_filename
        words = linecache.getline(file, line).strip()
        self._session.stand_in(
            f"what line {line} of {shown(file)} gives ({words})",
            f"made up: {type(error).__name__} with what stands in",
            decides_size=True,
        )

    def _of(self, frame: types.FrameType, name: str, how: str) -> Any:
        """A value by what makes it, else by its name, else an array."""
        last = how.rpartition(".")[2]
        if how in _KINDS:
            self._session.guesses.invented.update({_COUNTING: name or how} if how in ("len", "max") else {})
            return _KINDS[how]()
        if last in _TEXTS:
            return Word("0")
        if last in _READERS or last == "load":
            return Document() if last == "load" else Record()
        if last.endswith("split"):
            return Line(f"{0:05}").split(" ")
        if how.startswith("["):
            element = self._of(frame, name.removesuffix("s"), how[1:-1])
            return [element] * (_FEW if reads_one_sample(frame) else _ROWS)
        if not how.startswith(("torch.", "np.", "numpy.")):
            if name.lower() in _SIDES:
                return _SIDES[name.lower()]
            if _COUNTS.search(name):
                self._session.guesses.invented[_COUNTING] = name
                return _COUNTING
            if _NUMBERS.search(name):
                return 0
            if _BY_NAME.search(name):
                return value_of(name.lower(), 0)
        return self._array(frame, name or last, how)

    def _array(self, frame: types.FrameType, name: str, how: str) -> Any:
        whole = bool(_NUMBERS.search(name.removesuffix("s")) or "Long" in how)
        one = reads_one_sample(frame)
        if how.startswith(("Image.", "PIL.")):
            from PIL import Image

            return Image.new("RGB", PICTURE)
        picture = (
            [PICTURE[1], PICTURE[0], 3] if one and _PICTURES.search(name) and not how.startswith("torch") else None
        )
        about = f"{name} of {frame.f_code.co_name} in {shown(frame.f_code.co_filename)}"
        array = guessed(self._session, about, picture, "int64" if whole else "float32")
        self._session.guesses.invented.update(dict.fromkeys(filter(is_made_up, np.shape(array)), about))
        array.may_be_tensor = True
        is_tensor = how.startswith("torch.") or self._session.guesses.made[str(array.about)].get("tensor")
        return torch.from_numpy(np.asarray(array)) if is_tensor else array


class Unneeded(Nothing):
    """What a statement that was passed over would have given: it takes whatever is done to it, and is no number."""

    def _no_number(self) -> Any:
        raise TypeError(f"{self.__name__} is not known")

    __index__ = __int__ = __float__ = __len__ = _no_number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("shape", "dtype", "device"):
            raise AttributeError(name)
        return Unneeded(f"{self.__name__}.{name}")


def _is_end(error: BaseException, frame: types.FrameType) -> bool:
    """Whether an index is the one at which whoever goes over samples ends."""
    if isinstance(error, StopIteration):
        return True
    code = frame.f_code
    if not isinstance(error, IndexError) or code.co_name != "__getitem__" or code.co_argcount < 2:
        return False
    owner, at = (frame.f_locals.get(name) for name in code.co_varnames[:2])
    try:
        return isinstance(at, int) and at >= len(owner)  # type: ignore[arg-type]
    except Exception:  # a length of the script's own that fails
        return True


_KINDS: Final[dict[str, Callable[[], Any]]] = {
    "int": lambda: 0, "len": lambda: _COUNTING, "max": lambda: _COUNTING, "float": lambda: 0.5, "{}": Record, "dict": Record,
    "set": set, "open": lambda: Line("0"),
}  # fmt: skip
