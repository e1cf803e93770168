"""Modules of transformers, and names in them, where they were when a script was written."""

from __future__ import annotations

import importlib
import os
import re
import sys
import types
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.session import Session

_MOVED: Final = {
    "transformers.deepspeed": "transformers.integrations.deepspeed",
    "transformers.generation_utils": "transformers.generation.utils",
    "transformers.generation_logits_process": "transformers.generation.logits_process",
}
_PART: Final = re.compile(
    r"transformers\.(modeling|configuration|tokenization)_([a-z0-9_]+)"
)  # before models had folders
_FAST: Final = re.compile(r"(transformers\.models\.\w+\.tokenization_\w+)_fast")  # tokenizers are all fast
_FROM_TORCH_UTILS: Final = ("apply_chunking_to_forward", "prune_linear_layer", "Conv1D")


def install(session: Session) -> None:
    provide(lambda name: _now(name) is not None, _made, to_everyone=True)
    once_imported("transformers.pytorch_utils", _add_pruning)
    once_imported("transformers.modeling_utils", _add_what_moved)
    for library in ("transformers", "diffusers"):  # examples want the version that they were published with
        once_imported(f"{library}.utils", lambda module: setattr(module, "check_min_version", _nothing))
    once_imported("transformers.utils.versions", lambda module: setattr(module, "require_version", _nothing))


def _now(name: str) -> str | None:
    """The module that one of an older version became."""
    if name in _MOVED:
        return _MOVED[name]
    if fast := _FAST.fullmatch(name):
        return fast[1]
    if (part := _PART.fullmatch(name)) is None or (package := sys.modules.get("transformers")) is None:
        return None
    kind, model = part.groups()
    there = os.path.join(os.path.dirname(str(package.__file__)), "models", model, f"{kind}_{model}.py")
    return f"transformers.models.{model}.{kind}_{model}" if os.path.isfile(there) else None


def _made(name: str) -> types.ModuleType:
    module: Any = types.ModuleType(name)

    def there(wanted: str) -> Any:
        now = importlib.import_module(str(_now(name)))
        if wanted == "__all__":  # older modules had none: all that was in them was imported
            return sorted({each for each in vars(now) if not each.startswith("_")} | {*getattr(now, "__all__", ())})
        return getattr(now, wanted) if hasattr(now, wanted) else getattr(now, wanted.removesuffix("Fast"))

    module.__getattr__ = there
    return module  # type: ignore[no-any-return]


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _add_pruning(module: Any) -> None:
    if not hasattr(module, "find_pruneable_heads_and_indices"):
        module.find_pruneable_heads_and_indices = _heads_to_prune


def _add_what_moved(module: Any) -> None:
    there = importlib.import_module("transformers.pytorch_utils")
    for name in (*_FROM_TORCH_UTILS, "find_pruneable_heads_and_indices"):
        if not hasattr(module, name) and hasattr(there, name):
            setattr(module, name, getattr(there, name))


def _heads_to_prune(heads: Any, n_heads: int, head_size: int, already_pruned: Any) -> tuple[set[int], torch.Tensor]:
    """Those of the list that are still there, and the columns of all others."""
    left = set(heads) - set(already_pruned)
    gone = {head - sum(other < head for other in already_pruned) for head in left}
    return left, torch.tensor([i for i in range(n_heads * head_size) if i // head_size not in gone])
