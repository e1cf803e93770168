"""Distributed checkpoints and state dicts: nothing is written or read, and one replica has the whole state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from foretell.capture.as_gpu.patches import replace_everywhere
from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    if torch.distributed.is_available():
        once_imported("torch.distributed.checkpoint", _neither_write_nor_read)
        once_imported("torch.distributed.checkpoint.state_dict", _give_whole_states)


def _neither_write_nor_read(checkpoint: Any) -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def saved(*args: Any, **kwargs: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future

    for name in ("save", "load", "save_state_dict", "load_state_dict"):
        replace_everywhere(checkpoint, name, nothing)
    replace_everywhere(checkpoint, "async_save", saved)


def _give_whole_states(states: Any) -> None:
    def of_model(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return model.state_dict()

    def of_optimizers(model: Any, optimizers: Any, *args: Any, **kwargs: Any) -> Any:
        each = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
        return {"state": {}, "param_groups": [group for o in each for group in o.state_dict()["param_groups"]]}

    def load_model(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(p.is_meta for p in model.parameters()):
            model.to_empty(device="cuda")
        return nn.modules.module._IncompatibleKeys([], [])

    def load_all(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return load_model(model)

    answers: dict[str, Any] = {
        "get_model_state_dict": of_model,
        "get_optimizer_state_dict": of_optimizers,
        "get_state_dict": lambda model, optimizers, **kwargs: (of_model(model), of_optimizers(model, optimizers)),
        "set_model_state_dict": load_model,
        "set_optimizer_state_dict": lambda *args, **kwargs: None,
        "set_state_dict": load_all,
    }
    for name, function in answers.items():
        replace_everywhere(states, name, function)
