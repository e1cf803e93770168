"""Hydra before 1.0: a file's path in one argument, groups that name themselves, and `class` with `params`.

Its files are put together here, as the versions of today refuse them.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    once_imported("hydra", _adapt)
    once_imported("hydra.utils", _make_former)


def _adapt(hydra: Any) -> None:
    main = hydra.main

    @functools.wraps(main)
    def either(*args: Any, strict: Any = None, **how: Any) -> Any:
        path = str(args[0] if args else how.get("config_path", ""))
        return _former(path) if path.endswith((".yaml", ".yml")) else main(*args, **how)

    hydra.main = either


def _former(path: str) -> Callable[..., Any]:
    def decorate(function: Callable[[Any], Any]) -> Callable[[], Any]:
        folder = os.path.dirname(os.path.abspath(function.__code__.co_filename))
        return functools.wraps(function)(lambda: function(composed(os.path.join(folder, path), sys.argv[1:])))

    return decorate


def composed(path: str, words: list[str]) -> Any:
    """The settings of a file, of the groups that it takes by default or by a word, and of words like `a.b=c`."""
    settings: Any = importlib.import_module("omegaconf").OmegaConf
    own = settings.load(path)
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    parts = []
    for default in own.pop("defaults", None) or []:
        for group, choice in default.items() if hasattr(default, "items") else ():
            file = os.path.join(os.path.dirname(path), group, f"{chosen.pop(group, choice)}.yaml")
            parts += [settings.load(file)] if os.path.isfile(file) else []
    more = settings.from_dotlist([f"{name}={value}" for name, value in chosen.items() if not name.startswith("hydra")])
    made = settings.merge(*parts, own, more)
    made.pop("hydra", None)
    return made


def _make_former(utils: Any) -> None:
    make, folder = utils.instantiate, utils.get_original_cwd

    @functools.wraps(make)
    def instantiate(config: Any, *args: Any, **more: Any) -> Any:
        if (
            not hasattr(config, "get")
            or "_target_" in config
            or (path := config.get("class") or config.get("cls")) is None
        ):
            return make(config, *args, **more)
        return utils.get_object(path)(*args, **{**(config.get("params") or {}), **more})

    def original_folder() -> str:
        try:
            return str(folder())
        except ValueError:  # of a script that Hydra itself has not started
            return os.getcwd()

    utils.instantiate, utils.get_original_cwd = instantiate, original_folder
