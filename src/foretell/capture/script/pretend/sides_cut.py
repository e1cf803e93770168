"""How large a data set's own transforms make its pictures: the last of them that cuts or resizes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch.utils.data import ConcatDataset, Subset

from foretell.capture.script.parsed import tree_of

_Sides = tuple[int, int]
_CUTS: Final = re.compile(r"(Crop|Resize|LongestMaxSize|PadIfNeeded)", re.IGNORECASE)
_NO_SIZE: Final = re.compile(r"Ratio|Factor|Percent", re.IGNORECASE)  # of one that cuts by parts
_DEPTH: Final = 4  # of transforms in transforms
_LEAST: Final = 16  # points of a side


def sides_cut(data: Any) -> _Sides | None:
    """Height and width, by the transforms that a data set holds, else by the numbers that its class, or its file, cuts with."""
    while isinstance(data, Subset | ConcatDataset):
        data = data.dataset if isinstance(data, Subset) else next(iter(data.datasets), None)
    cut_to = [sides for value in list(getattr(data, "__dict__", {}).values()) for sides in _of_transform(value, _DEPTH)]
    if cut_to:
        return cut_to[-1]
    written = [*_of_class(type(data))]
    return written[-1] if written else None


def _of_transform(value: Any, depth: int) -> Iterator[_Sides]:
    """Of a transform, those that it makes one after another."""
    named = getattr(value, "__dict__", None)
    if depth == 0 or not isinstance(named, Mapping) or isinstance(value, type):
        return
    if _CUTS.search(type(value).__name__) and not _NO_SIZE.search(type(value).__name__):
        size = named.get("size", named.get("output_size"))
        yield from _sides(size if size is not None else (named.get("height"), named.get("width")))
    for inner in list(named.values()):
        for part in inner if isinstance(inner, list | tuple) else [inner]:
            yield from _of_transform(part, depth - 1)


def _sides(size: Any) -> Iterator[_Sides]:
    """Two sides of a size; one, as of a crop, is of both."""
    sides = [size] if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else []
    if sides and len(sides) < 3 and all(type(side) is int and side >= _LEAST for side in sides):
        yield sides[0], sides[-1]


def _of_class(kind: type) -> Iterator[_Sides]:
    """By the calls in a class; where it has none that name a size, by those in its file."""
    try:
        own = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return
    found = [*_of_calls(own)]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    yield from found or (_of_calls(tree_of(file)) if file else ())


def _of_calls(tree: ast.AST) -> Iterator[_Sides]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0)):  # as they are made
        name = ast.unparse(node.func).rpartition(".")[2]
        if not _CUTS.search(name) or _NO_SIZE.search(name):
            continue
        for given in [*node.args, *(k.value for k in node.keywords if k.arg in ("size", "dsize"))]:
            try:
                sides = next(_sides(ast.literal_eval(given)), None)
            except (ValueError, TypeError, SyntaxError):
                continue
            if sides is not None:
                yield sides if name[:1].isupper() else sides[::-1]  # functions of pictures take the width first
                break
