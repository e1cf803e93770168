"""Pipelines of torch: each rank builds one stage, so no replica is there to record. They are refused, with a way out."""

from __future__ import annotations

from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace, replace_everywhere
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    if torch.distributed.is_available():
        once_imported("torch.distributed.pipelining", _refuse)


def _refuse(pipelining: Any) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise StandInError(
            "torch.distributed.pipelining",
            "other stages than the one that this rank builds",
            "Run the script with one stage, by its own arguments, and give --plan dp=…,pp=… for the pipeline: Foretell cuts "
            "the whole model itself.",
        )

    replace_everywhere(pipelining, "pipeline", refuse)
    replace(pipelining.PipelineStage, "__init__", refuse)
