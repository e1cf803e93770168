"""What a script does to the world, kept from happening: files it writes, trackers it reports to, machines it asks.

What it writes lies in a folder of its own (`overlay`), where it finds it again.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import shutil
import tempfile
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.session import Session
from foretell.sources.offline import refuse_connections

_SWITCHES: Final = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}  # fmt: skip


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
    refuse_connections()


def _save_nothing() -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    if importlib.util.find_spec("safetensors") is not None:
        import safetensors.torch

        vars(safetensors.torch).update(save_file=nothing, save_model=nothing)
    # Which looks at the addresses of its tensors first, and those of fake ones are all alike.
    once_imported("transformers.modeling_utils", lambda m: setattr(m.PreTrainedModel, "save_pretrained", nothing))
    once_imported("torch.distributed.checkpoint", lambda m: vars(m).update(save=nothing, async_save=nothing))
