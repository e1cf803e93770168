"""Tensor and context parallelism as torch has them: the plan says how many ranks share a layer, and one replica runs whole.

A `DTensor` is then the whole tensor, and what a script asks it for is the tensor itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from foretell.capture.as_gpu.patches import replace, replace_everywhere
from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session
from foretell.graph import Caveat

_FACTORIES: Final = ("ones", "empty", "full", "rand", "randn", "zeros")


def install(session: Session) -> None:
    if not torch.distributed.is_available():
        return
    cut = _CutNumbers()
    once_imported("torch.distributed.tensor", _keep_tensors_whole)
    once_imported("torch.distributed.tensor.parallel", lambda module: _parallelize(module, session, cut))
    once_imported("torch.distributed.tensor.experimental", lambda module: _split_context(module, session))
    for name in ("full_tensor", "to_local", "redistribute"):
        setattr(torch.Tensor, name, lambda self, *args, **kwargs: self)


def _keep_tensors_whole(tensor: Any) -> None:
    def distribute_tensor(whole: Any, device_mesh: Any = None, *args: Any, **kwargs: Any) -> Any:
        kind = getattr(device_mesh, "device_type", "cuda")
        return whole if kind == "cpu" or whole.is_meta else whole.to(kind)

    def distribute_module(module: Any, *args: Any, **kwargs: Any) -> Any:
        return module

    def factory(make: Any) -> Any:
        def made(*size: Any, device_mesh: Any = None, placements: Any = None, **kwargs: Any) -> Any:
            return make(*size, device=getattr(device_mesh, "device_type", "cuda"), **kwargs)

        return made

    replace_everywhere(tensor, "distribute_tensor", distribute_tensor)
    replace_everywhere(tensor, "distribute_module", distribute_module)
    replace(tensor.DTensor, "from_local", staticmethod(lambda local, *args, **kwargs: local))
    for name in _FACTORIES:
        replace(tensor, name, factory(getattr(torch, name)))


def _parallelize(parallel: Any, session: Session, cut: _CutNumbers) -> None:
    def parallelize_module(
        module: nn.Module, device_mesh: Any = None, parallelize_plan: Any = None, *args: Any, **kwargs: Any
    ) -> nn.Module:
        ranks = int(device_mesh.size()) if device_mesh is not None else session.findings.world or session.ranks
        names = getattr(device_mesh, "mesh_dim_names", None) or ("tp",)
        degree = "ep" if names[-1] in ("ep", "expert") else "tp"
        plan = parallelize_plan if isinstance(parallelize_plan, dict) else {"": parallelize_plan}
        found: dict[str, Any] = {degree: ranks}
        if degree == "tp" and ranks > 1 and any(isinstance(s, parallel.SequenceParallel) for s in plan.values()):
            found["sequence_parallel"] = True
        session.find(degrees={**session.findings.degrees, **found})
        session.find_caveats(*_unknown_styles(plan.values()))
        cut.make_whole(module, ranks)
        return module

    replace_everywhere(parallel, "parallelize_module", parallelize_module)
    replace_everywhere(parallel, "loss_parallel", contextlib.nullcontext)


def _unknown_styles(styles: Iterable[Any]) -> list[Caveat]:
    kinds = (style for style in styles if not type(style).__module__.startswith(("torch.", "builtins")))
    names = sorted({type(style).__name__ for style in kinds})
    if not names:
        return []
    text = f"Styles of parallelize_module that are the script's own are taken for torch's: {', '.join(names)}."
    return [Caveat("parallel-style-not-modelled", text)]


def _split_context(experimental: Any, session: Session) -> None:
    def context_parallel(mesh: Any, **kwargs: Any) -> Any:
        ranks = int(mesh.size())
        gathers = {"cp_gather": True} if ranks > 1 else {}  # torch's usual rotation
        session.find(degrees={**session.findings.degrees, "cp": ranks, **gathers})
        return contextlib.nullcontext()

    replace_everywhere(experimental, "context_parallel", context_parallel)


class _CutNumbers:
    """Whole numbers of modules that a script divides by the ranks, such as heads, since a rank has so many of them."""

    def __init__(self) -> None:
        self._before: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()
        self._ranks: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._set: Any = nn.Module.__setattr__
        replace(nn.Module, "__setattr__", lambda module, name, value: self._take(module, name, value))

    def _take(self, module: nn.Module, name: str, value: Any) -> None:
        if type(value) is int and type(old := module.__dict__.get(name)) is int and 0 < value < old:
            if value * self._ranks.get(module, 1) == old:
                return
            self._before.setdefault(module, {}).setdefault(name, old)
        self._set(module, name, value)

    def make_whole(self, module: nn.Module, ranks: int) -> None:
        for each in module.modules():
            self._ranks[each] = ranks
            for name, old in self._before.pop(each, {}).items():
                if each.__dict__[name] * ranks == old:
                    self._set(each, name, old)
