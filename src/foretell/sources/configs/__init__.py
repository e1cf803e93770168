"""Configurations of trainers: what people have instead of a Workload, read into a model, its settings and a plan.

A format is a module with `TRAINER`, `recognises(entries)` and `read(keys, folder)`. Nothing of a file is run: recipes that are
functions of Python are read by their statements.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

from foretell.errors import SourceError
from foretell.graph import Caveat
from foretell.sources.configs.configuration import Configuration, Reader
from foretell.sources.configs.files import SUFFIXES, is_file, read_entries
from foretell.sources.configs.keys import Keys, shown
from foretell.sources.configs.python_recipes import read_recipe
from foretell.sources.configs.shell import Arguments

__all__ = ["Configuration", "configuration_of", "read_configuration"]

# Those that are told by the most particular keys come first.
_FORMATS: Final = (
    "torchtitan_recipe",
    "bridge",
    "torchtitan",
    "torchtune",
    "litgpt",
    "accelerate",
    "deepspeed",
    "megatron",
    "axolotl",
    "llamafactory",
    "lightning",
    "trainer",
)

_SHOWN: Final = 16  # variables that a caveat names


def configuration_of(source: str, settings: Mapping[str, Any] | None = None) -> Configuration | None:
    """What a trainer's configuration says; None for a source that is none, a Hugging Face config.json too.

    A `model` among the settings is taken before the name that the file has is looked up.
    """
    model = (settings or {}).get("model")
    given = None if model is None else str(model)
    if (recipe := _recipe(source)) is not None:
        return read_configuration(*recipe, given)
    path = Path(source)
    if path.suffix not in SUFFIXES or not is_file(path):
        return None
    about = path.stat()
    return _read(path, about.st_mtime_ns, about.st_size, frozenset(os.environ.items()), given)


def _recipe(source: str) -> tuple[Mapping[str, Any], Path] | None:
    """What a function of FILE.py:NAME makes, if it is a trainer's recipe, under a path that names both."""
    place, _, name = source.rpartition(":")
    path = Path(place)
    if path.suffix != ".py" or not is_file(path):
        return None
    entries = read_recipe(path, name)
    return None if entries is None else (entries, path.with_name(f"{path.name}:{name}"))


@lru_cache(maxsize=16)
def _read(
    path: Path, changed: int, size: int, environment: frozenset[tuple[str, str]], model: str | None
) -> Configuration | None:
    """Which of a launch script's variables are set by the environment may change too."""
    entries = read_entries(path)
    if path.suffix == ".json" and {"model_type", "architectures"} & entries.keys():
        return None
    return read_configuration(entries, path, model)


def read_configuration(entries: Mapping[str, Any], path: Path, model: str | None = None) -> Configuration:
    """By the first format that recognises its keys."""
    for name in _FORMATS:
        reader = _reader(name)
        if reader.recognises(entries):
            keys = Keys(entries, path.name, model=model)
            read = reader.read(keys, path.parent)
            return replace(read, caveats=(*read.caveats, *keys.caveats(), *_left_to_the_caller(entries, path)))
    trainers = ", ".join(dict.fromkeys(_reader(name).TRAINER for name in _FORMATS))
    raise SourceError(
        f"'{path}' is no configuration that is known here: {', '.join(list(entries)[:8]) or 'it is empty'}. "
        f"Known are those of {trainers}, and a Hugging Face config.json."
    )


def _left_to_the_caller(entries: Mapping[str, Any], path: Path) -> Iterator[Caveat]:
    """What was put in for variables that a launch script does not set itself."""
    taken = entries.taken if isinstance(entries, Arguments) else ()
    for origin, where in (("environment", "from the environment"), ("default", "by default, as nothing sets them")):
        if values := [f"{each.name}={shown(each.value)}" for each in taken if each.origin == origin]:
            text = f"{path.name} takes {where}: {', '.join(values[:_SHOWN])}{' …' if len(values) > _SHOWN else ''}."
            yield Caveat("variables-taken", text)


def _reader(name: str) -> Reader:
    return cast(Reader, importlib.import_module(f"{__name__}.{name}"))
