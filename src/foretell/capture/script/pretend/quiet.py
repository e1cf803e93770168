"""What a script does to the world, kept from happening: files it writes, trackers it reports to, machines it asks.

What it writes lies in a folder of its own (`overlay`), where it finds it again.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import types
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.pretend import overlay
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


def install(session: Session) -> None:
    os.environ.update(_SWITCHES)
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it logs the traceback that an error has anyway
    scratch = tempfile.mkdtemp(prefix="foretell-script-")
    tempfile.tempdir = scratch
    os.environ["TMPDIR"] = scratch
    remove = shutil.rmtree
    atexit.register(lambda: remove(scratch, ignore_errors=True))
    overlay.start(scratch)
    _save_nothing()
    _stand_in_for_missing_trackers()
    refuse_connections()


def _save_nothing() -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

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
