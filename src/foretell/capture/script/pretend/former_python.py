"""Names that Python 2 had: what they became, where a script that runs on both imports or calls them without a look."""

from __future__ import annotations

import builtins
import functools
import importlib
import itertools
import random
import sys
import types
from typing import Any, Final

from foretell.capture.script.imports import provide
from foretell.capture.script.session import Session

_MODULES: Final = {
    "cPickle": "pickle", "Queue": "queue", "ConfigParser": "configparser", "StringIO": "io", "cStringIO": "io",
    "urllib2": "urllib.request", "urlparse": "urllib.parse", "__builtin__": "builtins", "commands": "subprocess",
    "copy_reg": "copyreg", "thread": "_thread", "HTMLParser": "html.parser", "httplib": "http.client",
}  # fmt: skip
_BUILTINS: Final[dict[str, Any]] = {
    "xrange": range, "raw_input": input, "unicode": str, "basestring": (str, bytes), "long": int, "unichr": chr,
    "reduce": functools.reduce,
}  # fmt: skip
_ITERATORS: Final[dict[str, Any]] = {
    "izip": zip, "imap": map, "ifilter": filter, "izip_longest": itertools.zip_longest,
}  # fmt: skip


def install(session: Session) -> None:
    provide(_MODULES.__contains__, _module)
    for owner, names in ((builtins, _BUILTINS), (itertools, _ITERATORS)):
        for name, value in names.items():
            if not hasattr(owner, name):
                setattr(owner, name, value)
    _sample_sets()
    if not hasattr(sys, "maxint"):
        sys.maxint = sys.maxsize  # type: ignore[attr-defined]


def _sample_sets() -> None:
    """`random.sample` took sets before Python 3.11."""
    sample: Any = random.sample

    def of_anything(population: Any, k: int, **kwargs: Any) -> list[Any]:
        return list(sample(tuple(population) if isinstance(population, set | frozenset) else population, k, **kwargs))

    random.sample = of_anything


def _module(name: str) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update({k: v for k, v in vars(importlib.import_module(_MODULES[name])).items() if k[:2] != "__"})
    return made
