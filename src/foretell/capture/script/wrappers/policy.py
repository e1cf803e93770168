"""Policies of mixed precision that sharded modules take: parameters stay as they are, and copies are computed with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from foretell.capture.dtypes import FLOATS
from foretell.capture.script.session import Session
from foretell.precision import Precision
from foretell.sources.configs.keys import Keys
from foretell.sources.master_weights import Copies


def compute_in(session: Session, module: nn.Module, keys: Keys, name: str, policy: Any) -> None:
    """Let a module compute and communicate as the policy of that keyword says."""
    if getattr(policy, "keep_low_precision_grads", False):
        keys.say(f"{name}.keep_low_precision_grads", "gradients are taken to be kept as parameters are")
    dtype: torch.dtype | None = getattr(policy, "param_dtype", None)
    reduce: torch.dtype | None = getattr(policy, "reduce_dtype", None) or dtype
    kept = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if kept is None or {dtype, reduce} <= {None, kept}:
        return
    compute = FLOATS[dtype or kept]
    session.find(mixed=Precision(parameters=FLOATS[kept], compute=compute, reduce=FLOATS[reduce or kept]))
    if dtype is not None and dtype != kept:
        _compute_with_copies(session, module, dtype, getattr(policy, "output_dtype", None))


def _compute_with_copies(session: Session, module: nn.Module, dtype: torch.dtype, out: torch.dtype | None) -> None:
    session.find(copies=(*session.findings.copies, Copies(module, dtype)))

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map(cast, args), pytree.tree_map(cast, kwargs)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    if out is not None:
        module.register_forward_hook(
            lambda module, args, given: pytree.tree_map_only(torch.Tensor, lambda t: t.to(out), given)
        )
