"""Hydra as its users had it: before 1.0, with its plugins, and with errors as they are.

Before 1.0 a file's path was one argument, groups named themselves, and there was `class` with `params`: such files are put
together here, as the versions of today refuse them. A plugin that is missing only launches, sweeps or colours lines.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_MEANT: Final = re.compile(r"Could not override '([^']+)'\.\s+Did you mean to override ([^\s?]+)\?")
_PLAIN: Final = {"job_logging": "default", "hydra_logging": "default", "launcher": "basic", "sweeper": "basic"}


def install(session: Session) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else it prints what happened and exits
    once_imported("hydra", _adapt)
    once_imported("hydra._internal.config_repository", _do_without_plugins)
    once_imported("hydra._internal.config_loader_impl", _override_what_is_meant)
    once_imported("hydra.utils", _make_former)


def _adapt(hydra: Any) -> None:
    main = hydra.main

    @functools.wraps(main)
    def either(*args: Any, strict: Any = None, **how: Any) -> Any:
        path = str(args[0] if args else how.get("config_path", ""))
        return _former(path) if path.endswith((".yaml", ".yml")) else main(*args, **how)

    hydra.main = either


def _do_without_plugins(module: Any) -> None:
    load = module.ConfigRepository.load_config

    def load_config(self: Any, config_path: str) -> Any:
        found = load(self, config_path)
        own, _, group = os.path.dirname(config_path).partition("/")
        return (
            load(self, f"hydra/{group}/{_PLAIN[group]}") if not found and own == "hydra" and group in _PLAIN else found
        )

    module.ConfigRepository.load_config = load_config


def _override_what_is_meant(module: Any) -> None:
    """`group=choice` was enough for a group that lies in one package only (`group@package`)."""
    load = module.ConfigLoaderImpl.load_configuration

    def load_configuration(self: Any, config_name: Any, overrides: list[str], *args: Any, **how: Any) -> Any:
        try:
            return load(self, config_name, overrides, *args, **how)
        except module.ConfigCompositionException as error:
            if not (found := _MEANT.search(str(error))):
                raise
            given, meant = found.groups()
        renamed = [re.sub(rf"^{re.escape(given)}=", f"{meant}=", word) for word in overrides]
        return load(self, config_name, renamed, *args, **how)

    module.ConfigLoaderImpl.load_configuration = load_configuration


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
