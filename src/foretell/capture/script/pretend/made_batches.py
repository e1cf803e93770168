"""Loaders of a script's own data sets: what they give is put down, and made where an earlier run has shown that it leads nowhere."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from sys import _getframe
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset, dataloader

from foretell.capture.as_gpu.patches import replace
from foretell.capture.reads import is_library
from foretell.capture.script.batches import GIVEN, LAST, MADE, SIDES, class_name, name_of, part
from foretell.capture.script.meant import length_meant, sides_meant
from foretell.capture.script.parsed import tree_of
from foretell.capture.script.pretend import large
from foretell.capture.script.pretend.files.taken import stored, unpacked
from foretell.capture.script.pretend.sides_cut import sides_cut
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import arrays, free_primes, is_made_up
from foretell.capture.script.unread import is_of_data

_SAMPLES: Final = 2048  # of a data set that does not say how many it has
_ROUNDS: Final = 64  # batches of one that has no end
_COUNT: Final = 47  # a prime, so that a layer of as many, or of a multiple, shows where it is from
_NUMBERS: Final = re.compile(
    r"len(gth)?s?$|label|lbl|target|(^|_)(y|cls|class|id|idx|index|gt|age|score|rating)s?\d*$", re.I
)
_LENGTHS: Final = re.compile(r"len(gth)?s?$", re.IGNORECASE)
_TOKENS: Final = re.compile(
    r"ids$|token|text|caption|sent|word|(^|_)(seq|src|trg|tgt|question|query|doc)s?\d*$|attention_mask", re.I
)
_PICTURES: Final = re.compile(r"im(a?)ge?s?(\d|$|_)|pic|frame|photo|(^|_)(rgb|hr|lr)\d*$", re.I)
_COUNTS: Final = re.compile(
    r"^(n|num|nb|number|max|len)_|_(size|len|length|count|num|dim)s?$|^(length|size|count|num|n)$", re.I
)
_OF_TENSORS: Final = frozenset(name for name in dir(torch.Tensor) if not name.startswith("__"))


def install(session: Session) -> None:
    """Look at what loaders give; make what those of some data sets give."""
    if not session.script.fake_data:
        return
    names = session.guesses.known.get(MADE, [])
    batches = _Batches(session, frozenset(names))
    if names:
        subclass = Dataset.__init_subclass__

        def init_subclass(cls: Any, /, **kwargs: Any) -> None:
            subclass(**kwargs)
            if class_name(cls) in names:
                batches.guard(cls)

        Dataset.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment,method-assign]
    take = dataloader._SingleProcessDataLoaderIter._next_data
    replace(dataloader._SingleProcessDataLoaderIter, "_next_data", lambda own: batches.of(own, take))


class _Batches:
    def __init__(self, session: Session, names: frozenset[str]) -> None:
        self._session, self._names = session, names
        self._rounds: dict[int, int] = {}

    def of(self, loader: Any, take: Callable[[Any], Any]) -> Any:
        """The next batch of a loader: as it gives it, or made."""
        name = name_of(loader._dataset)
        if name is None:
            return take(loader)
        self._session.guesses.made[LAST] = name
        if name not in self._names or not loader._auto_collation:
            return self._looked_at(take(loader), name)
        samples = len(loader._next_index())
        if isinstance(loader._dataset, IterableDataset):
            self._rounds[id(loader)] = self._rounds.get(id(loader), 0) + 1
            if self._rounds[id(loader)] > _ROUNDS:
                raise StopIteration
        self._session.recorder.fetched(loader._dataset, samples)
        frame = _users()
        parts = _Parts(self._session, name, [samples], frame, loader._dataset)
        return parts.all(loader._dataset, _custom(loader._collate_fn), frame)

    def _looked_at(self, batch: Any, name: str) -> Any:
        """With tensors of other shapes or kinds where an earlier run has shown that these are wanted."""
        guesses = self._session.guesses

        def look(path: Any, leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
                return leaf
            about = f"{GIVEN}{pytree.keystr(path)} in batches of {name}"
            dtype = str(leaf.dtype).removeprefix("torch.")
            usual = {"shape": list(leaf.shape), "dtype": dtype}
            if about not in guesses.known:
                guesses.made[about] = usual
                return leaf
            made = guesses.about(about, usual)
            shape = (
                [*leaf.shape[:1], *made["shape"][1:]] if leaf.dim() else made["shape"]
            )  # other loaders give as many as they do
            words = f"{' × '.join(map(str, shape))} in place of {' × '.join(map(str, leaf.shape))}"
            self._session.stand_in(about.removeprefix(GIVEN), words, decides_size=True)
            kind = getattr(torch, made["dtype"])
            return large.made(self._session, shape, kind, lambda: torch.zeros(shape, dtype=kind))

        try:
            return pytree.tree_map_with_path(look, batch)
        except (TypeError, ValueError):  # a structure that torch cannot make anew
            return batch

    def guard(self, kind: Any) -> None:
        """Let a data set go on where it cannot read what stands in for its files."""
        session, name = self._session, class_name(kind)
        own = kind.__dict__
        if (make := own.get("__init__")) is not None:

            @functools.wraps(make)
            def init(data: Any, *args: Any, **kwargs: Any) -> None:
                try:
                    make(data, *args, **kwargs)
                except Exception as error:
                    if not is_of_data(error):
                        raise
                    session.stand_in(f"data set {name}", f"left as it was: {type(error).__name__}", decides_size=True)
                    data.__dict__["foretell_is_cut_short"] = True

            kind.__init__ = init
        count, take = own.get("__len__"), own.get("__getitem__")

        def length(data: Any) -> int:
            try:
                return int(count(data)) or _SAMPLES if count is not None else _SAMPLES
            except Exception:  # whatever comes of files that could not be read
                return _SAMPLES

        @functools.wraps(take or length)
        def item(data: Any, at: Any) -> Any:
            try:
                return take(data, at)
            except Exception as error:
                if not is_of_data(error) or (isinstance(at, int) and at >= len(data)):
                    raise
                frame = _users()
                return _Parts(session, name, [], frame, data).all(data, False, frame)

        if not issubclass(kind, IterableDataset):
            kind.__len__ = length
        if take is not None:
            kind.__getitem__ = item
        if "__getattr__" not in own:
            kind.__getattr__ = lambda data, name: self._lacking(data, name)

    def _lacking(self, data: Any, name: str) -> Any:
        """A count that the data set would have found in its files: a layer that is as wide shows it."""
        if not name.startswith("__") and data.__dict__.get("foretell_is_cut_short") and _COUNTS.search(name):
            self._session.guesses.invented[_COUNT] = f"{name} of {class_name(type(data))}"
            return _COUNT
        raise AttributeError(f"{type(data).__name__!r} object has no attribute {name!r}", name=name, obj=data)


class _Parts:
    """Tensors of one batch, or of one sample, by what they are called."""

    def __init__(
        self, session: Session, data: str, before: list[int], frame: types.FrameType | None, source: Any
    ) -> None:
        self._session, self._data, self._before = session, data, before
        self._sides, self._length = sides_cut(source) or sides_meant(frame) or SIDES, length_meant(frame)

    def all(self, data: Any, collates: bool, frame: types.FrameType | None) -> Any:
        """As the data set's own method says what a sample is of; else as the loop that asks for batches takes them."""
        returned = None if collates else _returned(getattr(type(data), "__getitem__", None))
        wanted = _target(frame)
        if isinstance(returned, dict):
            return {key: self.one(name) for key, name in returned.items()}
        if isinstance(returned, list) and (not isinstance(wanted, list) or len(wanted) == len(returned)):
            names = wanted if isinstance(wanted, list) and all(isinstance(name, str) for name in wanted) else returned
            return tuple(self.one(name) for name in names)
        if isinstance(wanted, list):
            return self._nested(wanted)
        return WholeOrParts(self, wanted or "batch")

    def _nested(self, names: Any) -> Any:
        return tuple(map(self._nested, names)) if isinstance(names, list) else self.one(names)

    def one(self, name: str) -> torch.Tensor:
        guesses = self._session.guesses
        about = part(self._data, name)
        taken = guesses.about(about, self._usual(name))
        shape = taken["shape"] if self._before else taken["shape"][1:]
        guesses.invented.update(dict.fromkeys(filter(is_made_up, taken["shape"][1:]), f"{name} of {self._data}"))
        self._session.stand_in(
            f"{name} in batches of {self._data}", " × ".join(map(str, shape)) or "a number each", decides_size=True
        )
        if taken["dtype"] != "int64":
            full = self._first(shape)
            return large.made(self._session, full, torch.float32, lambda: torch.rand(full))
        own = [each["shape"] for what, each in arrays(guesses).items() if what.endswith(f" in batches of {self._data}")]
        longest = max((shape[1] for shape in own if len(shape) > 1), default=1)
        return torch.full(self._first(shape), longest if _LENGTHS.search(name) else 0)

    def _first(self, shape: list[int]) -> list[int]:
        """As many samples as this loader gives: another's batches are of the same parts."""
        return [*self._before, *shape[1:]] if self._before else shape

    def _usual(self, name: str) -> dict[str, Any]:
        samples = self._before[0] if self._before else 1
        free = free_primes(self._session.guesses)[0]
        if _TOKENS.search(name):
            return {"shape": [samples, self._length or free], "dtype": "int64"}
        if _NUMBERS.search(name):
            return {"shape": [samples], "dtype": "int64"}
        if _PICTURES.search(name):
            return {"shape": [samples, 3, *self._sides], "dtype": "float32"}
        return {"shape": [samples, free], "dtype": "float32"}


class WholeOrParts:
    """A batch of which nothing says what it is of: parts where it is taken apart, by name or by number; else one tensor."""

    def __init__(self, parts: _Parts, name: str) -> None:
        self._parts, self._name = parts, name

    def __iter__(self) -> Iterator[Any]:
        frame = _getframe(1)
        count = unpacked(frame) or 0
        names = stored(frame)[:count]
        if count and len(names) == count:
            return iter([self._parts.one(name) for name in names])
        return iter([self[at] for at in range(count)] if count else self._parts.one(self._name))

    def keys(self) -> list[str]:
        """Those that the script asks for by name."""
        frame = _users()
        nodes = ast.walk(tree_of(frame.f_code.co_filename)) if frame else ()
        found = [n.slice.value for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)
                 and isinstance(n.slice.value, str) and _is(n.value, self._name)]  # fmt: skip
        return list(dict.fromkeys(found))

    def values(self) -> list[Any]:
        return [self[key] for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        return [(key, self[key]) for key in self.keys()]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._parts.one(key)
        return self._parts.one(f"{self._name}[{key}]") if isinstance(key, int) else self._parts.one(self._name)[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._parts.one(self._name), name) if name in _OF_TENSORS else self._parts.one(name)

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        def whole(value: Any) -> Any:
            return value._parts.one(value._name) if isinstance(value, WholeOrParts) else value

        return func(*map(whole, args), **{name: whole(value) for name, value in (kwargs or {}).items()})


def _custom(collate: Any) -> bool:
    return is_users(collate)


def is_users(function: Any) -> bool:
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if code is None:
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code is not None and not is_library(code.co_filename)


def _users() -> types.FrameType | None:
    """The innermost frame of the script's own."""
    frame: types.FrameType | None = _getframe(2)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _target(frame: types.FrameType | None) -> Any:
    """Names that a loop gives to a batch: one, or a list of them and of lists."""
    if frame is None:
        return None
    tree = tree_of(frame.f_code.co_filename)
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and node.lineno <= frame.f_lineno < node.body[0].lineno:
            target: ast.expr = node.target
            gone_through = _with_meanings(node.iter, tree)
            counts = "enumerate(" in gone_through
            if counts and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                target = target.elts[1]
            return None if "zip(" in gone_through else _names(target)
    return None


def _with_meanings(iterated: ast.expr, tree: ast.Module) -> str:
    """What a loop goes through; of a name, as of a bar that shows progress, with what was last given to it before."""
    text = ast.unparse(iterated)
    given = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.lineno < iterated.lineno
             and isinstance(iterated, ast.Name) and any(_is(each, iterated.id) for each in node.targets)]  # fmt: skip
    last = max(given, key=lambda node: node.lineno, default=None)
    return text if last is None else f"{text} {ast.unparse(last.value)}"


def _names(target: ast.expr) -> Any:
    if isinstance(target, ast.Tuple | ast.List):
        return [_names(each) for each in target.elts]
    return re.sub(r"\W+", "_", ast.unparse(target))


def _returned(method: Any) -> Any:
    """What a function returns, by its last line: {key: name} or a list of names."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]
    value = returns[-1] if returns else None
    if isinstance(value, ast.Name):
        given = [
            n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and any(_is(t, value.id) for t in n.targets)
        ]
        more = [t.slice for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets
                if isinstance(t, ast.Subscript) and _is(t.value, value.id)]  # fmt: skip
        value = next((each for each in given if isinstance(each, ast.Dict | ast.Tuple | ast.List)), None)
        if isinstance(value, ast.Dict):
            value = ast.Dict([*value.keys, *more], [*value.values, *more])
    if isinstance(value, ast.Dict) and value.keys and all(isinstance(k, ast.Constant) for k in value.keys):
        return {k.value: str(k.value) for k in value.keys if isinstance(k, ast.Constant)}
    if isinstance(value, ast.Tuple | ast.List) and not any(isinstance(each, ast.Starred) for each in value.elts):
        return [re.sub(r"\W+", "_", _base(each)) for each in value.elts]
    return None


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _base(node: ast.expr) -> str:
    """What an expression is about: the name that it works on."""
    while True:
        if isinstance(node, ast.Call):
            inner = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None
            node = inner or (node.args[0] if node.args else node.func)
        elif isinstance(node, ast.Subscript):
            return f"{ast.unparse(node.value)}" if not isinstance(node.slice, ast.Constant) else ast.unparse(node)
        else:
            return ast.unparse(node)
