"""What a script does to the world, kept from happening: files it writes, trackers it reports to, machines it asks.

Files and folders that it makes lie in a folder of their own, where it finds them again; files that are there are
neither changed nor removed. Native code that writes files by itself is not stopped, apart from torch's and
safetensors' own.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import inspect
import io
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.session import Session
from foretell.sources.offline import refuse_connections

_SWITCHES: Final = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "WANDB_SILENT": "true", "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug", "DISABLE_MLFLOW_INTEGRATION": "TRUE", "CLEARML_OFFLINE_MODE": "1", "SWANLAB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "MPLBACKEND": "Agg",
}  # fmt: skip
_TRACKERS: Final = tuple("wandb tensorboard tensorboardX mlflow comet_ml neptune clearml aim trackio".split())
_BOARD: Final = "torch.utils.tensorboard"
_RETURNED: Final = {f"{_BOARD}.summary.hparams": 3}  # values, which are taken apart
_WRITING: Final = frozenset("wax+")


def install(session: Session) -> None:
    os.environ.update(_SWITCHES)
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it logs the traceback that an error has anyway
    scratch = tempfile.mkdtemp(prefix="foretell-script-")
    tempfile.tempdir = scratch
    os.environ["TMPDIR"] = scratch
    remove = shutil.rmtree
    atexit.register(lambda: remove(scratch, ignore_errors=True))
    _TemporaryFolder(scratch).apply()
    _save_nothing()
    _stand_in_for_missing_trackers()
    refuse_connections()


class _TemporaryFolder:
    """Paths that a script makes, as paths in a folder of our own."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch

    def there(self, path: Any) -> str | None:
        """Where a path of the script's own making lies; None for what is no path, or is free to be written."""
        try:
            text = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return None
        if text.startswith((self.scratch, "/dev/", "/proc/")):
            return None
        return os.path.join(self.scratch, "made", text.lstrip(os.sep).replace(":", "_"))

    def apply(self) -> None:
        self._open()
        for name in ("stat", "listdir", "scandir", "lstat", "access"):
            self._look(os, name)
        for name in ("mkdir", "makedirs"):
            self._make(name)
        for name in ("remove", "unlink", "rmdir", "chmod", "utime"):
            self._change(os, name, "path")
        for name in ("rename", "replace", "symlink", "link"):
            self._change(os, name, "src", "dst")
        self._change(shutil, "rmtree", "path")
        for name in ("copy", "copyfile", "copy2", "copytree", "move"):
            setattr(shutil, name, lambda src, dst, *args, **kwargs: dst)

    def _open(self) -> None:
        real: Callable[..., Any] = builtins.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            other = self.there(file) if not isinstance(file, int) else None
            if other is None:
                return real(file, mode, *args, **kwargs)
            if _WRITING & set(mode):
                if "w" not in mode and "x" not in mode and not os.path.exists(other) and os.path.isfile(file):
                    os.makedirs(os.path.dirname(other), exist_ok=True)
                    with real(file, "rb") as old, real(other, "wb") as copy:
                        copy.write(old.read())
                self._folder(other)
                return real(other, mode, *args, **kwargs)
            return real(other if self._real["stat_exists"](other) else file, mode, *args, **kwargs)

        self._real: dict[str, Callable[..., Any]] = {"stat_exists": os.path.lexists, "makedirs": os.makedirs}
        builtins.open = io.open = opened
        pathlib.io.open = opened  # type: ignore[attr-defined]

    def _folder(self, other: str) -> None:
        self._real["makedirs"](os.path.dirname(other), exist_ok=True)

    def _look(self, owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def look(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            try:
                found = real(path, *args, **kwargs)
            except FileNotFoundError:
                if isinstance(path, int) or (other := self.there(path)) is None or not self._real["stat_exists"](other):
                    raise  # of the path that the script knows
                return real(other, *args, **kwargs)
            if name == "access" and not found and not isinstance(path, int) and (other := self.there(path)) is not None:
                return real(other, *args, **kwargs)
            return found

        setattr(owner, name, look)

    def _make(self, name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)
        signature = inspect.signature(real)

        def make(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs).arguments
            path = next(iter(given.values()))
            if (other := self.there(path)) is None:
                real(*args, **kwargs)
            elif not os.path.isdir(path):
                self._real["makedirs"](other, exist_ok=True)
            elif not given.get("exist_ok"):
                raise FileExistsError(17, "File exists", os.fspath(path))

        setattr(os, name, make)

    def _change(self, owner: Any, name: str, *paths: str) -> None:
        """Let only what the script has made itself be changed; `paths` are the names of the arguments that say what."""
        real: Callable[..., Any] = getattr(owner, name)

        def change(*args: Any, **kwargs: Any) -> None:
            given = [*args[: len(paths)], *(kwargs.pop(path) for path in paths[len(args) :])]
            first, *others = moved = [self.there(path) or path for path in given]
            if self._real["stat_exists"](first):
                for other in others:
                    self._folder(os.fspath(other))
                real(*moved, *args[len(paths) :], **kwargs)

        setattr(owner, name, change)


def _save_nothing() -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    torch.save = nothing
    if importlib.util.find_spec("safetensors") is not None:
        import safetensors.torch

        vars(safetensors.torch).update(save_file=nothing, save_model=nothing)
    # Which looks at the addresses of its tensors first, and those of fake ones are all alike.
    once_imported("transformers.modeling_utils", lambda m: setattr(m.PreTrainedModel, "save_pretrained", nothing))
    if torch.distributed.is_available():
        import torch.distributed.checkpoint as shared

        vars(shared).update(save=nothing, async_save=nothing)


class _Nothing(types.ModuleType):
    """A module, class and function that takes everything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self,) * _RETURNED[self.__name__] if self.__name__ in _RETURNED else self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __fspath__(self) -> str:
        return tempfile.gettempdir()

    def __iter__(self) -> Any:
        return iter(())

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def __getitem__(self, key: Any) -> Any:
        return self


def _stand_in_for_missing_trackers() -> None:
    """Modules of trackers that are not installed, so that a script that imports one runs."""
    missing = importlib.util.find_spec("tensorboard") is None  # then torch's own part would ask for it
    provide(_is_missing_tracker, _Nothing, first=missing, to_libraries=True)


def _is_missing_tracker(name: str) -> bool:
    """One that a library has imported for real keeps its own parts."""
    there = sys.modules.get(name.partition(".")[0])
    real = there is not None and not isinstance(there, _Nothing)
    return name.startswith(_BOARD) or (name.startswith(_TRACKERS) and not real)
