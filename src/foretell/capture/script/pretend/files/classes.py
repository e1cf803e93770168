"""How many classes the script's own settings say that there are: folders that are named by a class are as many."""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from foretell.capture.reads import is_library

_NAMES: Final = re.compile(
    r"(num|n|nb|number)_?(of_)?(class|classes|cls|domains|labels|identities|categories)|nclass(es)?", re.IGNORECASE
)
_SETTINGS: Final = frozenset("args arg opt opts options config cfg conf params hparams flags settings".split())
_LARGEST: Final = 100_000


def classes_meant(frame: types.FrameType | None) -> int | None:
    """Of the innermost function that knows it, or of the module's names."""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            found = next(_numbers(frame.f_locals), None) or next(_numbers(frame.f_globals), None)
            if found is not None:
                return found
        frame = frame.f_back
    return None


def _numbers(names: Mapping[str, Any]) -> Iterator[int]:
    for name, value in list(names.items()):
        if _NAMES.fullmatch(name) and _counts(value):
            yield value
        elif isinstance(value, argparse.Namespace) or (name.lower() in _SETTINGS and not isinstance(value, type)):
            inner = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
            inner = inner if isinstance(inner, Mapping) else {}
            yield from (v for k, v in list(inner.items()) if isinstance(k, str) and _NAMES.fullmatch(k) and _counts(v))


def _counts(value: Any) -> bool:
    return type(value) is int and 1 < value <= _LARGEST
