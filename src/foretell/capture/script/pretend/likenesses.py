"""Small packages that are not installed and that scripts read their settings, texts and files with: what stands in does the same.

Many are another's likeness: what is taken of them is what Python or NumPy have under the same names.
"""

from __future__ import annotations

import fnmatch
import importlib
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.capture.script.imports import provide
from foretell.capture.script.pretend.kernels.package import goes_on_without
from foretell.capture.script.session import Session

_LIKE: Final[dict[str, str]] = {
    "importlib_metadata": "importlib.metadata", "importlib_resources": "importlib.resources", "bottleneck": "numpy",
    "simplejson": "json", "ujson": "json", "rapidjson": "json", "json5": "json", "dill": "pickle", "cloudpickle": "pickle",
    "cPickle": "pickle", "pickle5": "pickle", "regex": "re", "re2": "re", "contextlib2": "contextlib", "multiprocess":
    "multiprocessing", "pathlib2": "pathlib", "configargparse": "argparse", "typing_extensions": "typing", "tomli": "tomllib",
    "toml": "tomllib", "ConfigParser": "configparser", "Queue": "queue", "autograd.numpy": "numpy",
}  # fmt: skip


def install(session: Session) -> None:
    provide(lambda name: _is_wanted(name, _LIKE), _Likeness)
    provide(lambda name: _is_wanted(name, _MADE), _module)


def _is_wanted(name: str, of: Mapping[str, Any]) -> bool:
    return name in of and goes_on_without(sys._getframe(3)) is False


class _Likeness(types.ModuleType):
    """Gives what the other module has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(_LIKE[self.__name__]), name)


class Settings(dict[str, Any]):
    """Values by name, as keys and as attributes, with those inside of them; with a name that it lacks as its user wants."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        for name, value in dict(*(given if given and given[0] is not None else ()), **named).items():
            self[name] = value

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, self._inner(value))

    def _inner(self, value: Any) -> Any:
        if isinstance(value, dict) and not isinstance(value, Settings):
            return type(self)(value)
        return type(value)(map(self._inner, value)) if type(value) in (list, tuple) else value

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def update(self, *given: Any, **named: Any) -> None:
        for name, value in dict(*given, **named).items():
            self[name] = value

    def to_dict(self) -> dict[str, Any]:
        return {name: value.to_dict() if isinstance(value, Settings) else value for name, value in self.items()}

    toDict = to_dict

    @classmethod
    def fromDict(cls, given: Any) -> Settings:
        return cls(given)

    def copy(self) -> Settings:
        return type(self)(self)


class _Growing(Settings):
    """Has settings of its own under every name."""

    def __missing__(self, name: Any) -> Settings:
        self[name] = made = type(self)()
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


class PathText(str):
    """A path that is a text, with what is done to paths."""

    def __truediv__(self, part: Any) -> PathText:
        return PathText(os.path.join(self, part))

    def __rtruediv__(self, before: Any) -> PathText:
        return PathText(os.path.join(before, self))

    def __getattr__(self, name: str) -> Any:
        """As `os.path` or `os` has it: `exists`, `basename`, `makedirs`, `makedirs_p`, ..."""
        made = getattr(os.path, name, None) or getattr(os, name.removesuffix("_p"), None)
        if not callable(made) or name.startswith("_"):
            raise AttributeError(name)
        more = {"exist_ok": True} if name == "makedirs_p" else {}
        return lambda *args, **kwargs: _as_path(made(self, *args, **{**more, **kwargs}))

    @property
    def parent(self) -> PathText:
        return PathText(os.path.dirname(self))

    @property
    def name(self) -> str:
        return str(os.path.basename(self))

    @property
    def stem(self) -> str:
        return str(os.path.splitext(self.name)[0])

    ext = property(lambda self: os.path.splitext(self)[1])
    namebase = stem

    def listdir(self, pattern: str = "*") -> list[PathText]:
        return [self / each for each in sorted(os.listdir(self)) if fnmatch.fnmatch(each, pattern)]

    def files(self, pattern: str = "*") -> list[PathText]:
        return [each for each in self.listdir(pattern) if os.path.isfile(each)]

    def dirs(self, pattern: str = "*") -> list[PathText]:
        return [each for each in self.listdir(pattern) if os.path.isdir(each)]


def _as_path(value: Any) -> Any:
    return PathText(value) if isinstance(value, str) else value


def _background(*args: Any, **kwargs: Any) -> Any:
    """A decorator of a generator that would run ahead of who reads it."""
    return args[0] if args and callable(args[0]) else lambda function: function


def _in_front(generator: Any, *args: Any, **kwargs: Any) -> Any:
    return iter(generator)


_MADE: Final[dict[str, Mapping[str, Callable[..., Any]]]] = {
    "easydict": {"EasyDict": Settings}, "attrdict": {"AttrDict": Settings, "AttrMap": Settings}, "edict": {"EasyDict": Settings},
    "munch": {"Munch": Settings, "DefaultMunch": _Growing, "munchify": Settings, "unmunchify": lambda given: given.to_dict()},
    "addict": {"Dict": _Growing}, "dotmap": {"DotMap": _Growing}, "bunch": {"Bunch": Settings}, "dotdict": {"dotdict": Settings},
    "prefetch_generator": {"BackgroundGenerator": _in_front, "background": _background},
    "path": {"Path": PathText, "path": PathText},
    "chardet": {"detect": lambda given: {"encoding": "utf-8", "confidence": 1.0, "language": ""}},
    "unidecode": {"unidecode": lambda text, *args: text, "unidecode_expect_ascii": lambda text, *args: text},
}  # fmt: skip


def _module(name: str) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(_MADE[name])
    return made
