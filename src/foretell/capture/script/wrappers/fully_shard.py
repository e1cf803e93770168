"""`fully_shard`: FSDP2, which makes modules sharded ones as they are."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from foretell.capture.as_gpu.patches import replace, replace_everywhere
from foretell.capture.script.findings import FullyShard
from foretell.capture.script.session import Session
from foretell.capture.script.wrappers import check_whole_world, keywords
from foretell.capture.script.wrappers.policy import compute_in
from foretell.sources.configs.keys import Keys

FREE: Final = ("shard_placement_fn",)
NOT_MODELLED: Final = ("ignored_params", "dp_mesh_dims")
USED: Final = ("module", "mesh", "reshard_after_forward", "mp_policy", "offload_policy")


def install(session: Session) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import fsdp

    original = fsdp.fully_shard
    sharded = _ShardedParameters()
    _communicate_nothing(fsdp.FSDPModule, sharded)

    def fully_shard(*args: Any, **kwargs: Any) -> Any:
        keys = keywords(original, f"fully_shard in {session.script.name}", args, kwargs)
        module, found = keys.take("module"), _read(session, keys)
        policy = keys.take("mp_policy")
        for each in module if isinstance(module, list | tuple) else [module]:
            _make_sharded(each, fsdp.FSDPModule)
            sharded.add(each, kwargs.get("mesh"))
            if found.offload and not any(p.is_meta for p in each.parameters()):
                each.to("cuda")  # where it computes; the host keeps what the plan says
            compute_in(session, each, keys, "mp_policy", policy)
        session.find_wrapper(found, keys)
        return module

    replace_everywhere(fsdp, "fully_shard", fully_shard)
    replace_everywhere(fsdp, "register_fsdp_forward_method", lambda module, name: None)
    replace_everywhere(fsdp, "share_comm_ctx", lambda modules: None)


class _ShardedParameters:
    """What a parameter says of its shards: it is whole here, and a DTensor where the script runs."""

    def __init__(self) -> None:
        self._meshes = WeakIdKeyDictionary()
        kind: Any = torch.Tensor  # on the accelerator, a parameter is a fake tensor
        kind.placements = property(self._placements)
        kind.device_mesh = property(self._mesh)

    def add(self, module: nn.Module, mesh: Any = None) -> None:
        for parameter in module.parameters():
            self._meshes.setdefault(parameter, mesh)

    def _mesh_of(self, parameter: Any, name: str) -> Any:
        if parameter not in self._meshes:
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        return self._meshes[parameter]

    def _placements(self, parameter: Any) -> tuple[Any, ...]:
        from torch.distributed.tensor import Replicate, Shard

        mesh = self._mesh_of(parameter, "placements")
        return (Shard(0),) if mesh is None or mesh.ndim == 1 else (Replicate(), Shard(0))

    def _mesh(self, parameter: Any) -> Any:
        from torch.distributed import device_mesh

        mesh = self._mesh_of(parameter, "device_mesh")
        return device_mesh.init_device_mesh("cuda", (torch.distributed.get_world_size(),)) if mesh is None else mesh


def _communicate_nothing(kind: Any, sharded: _ShardedParameters) -> None:
    """What its methods set is about communication, which is the plan's."""
    for name in [n for n in vars(kind) if not n.startswith("_")]:
        replace(kind, name, lambda self, *args, **kwargs: None)
    replace(kind, "unshard", lambda self, async_op=False: _Gathered() if async_op else None)

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = super(kind, self)._apply(*args, **kwargs)
        sharded.add(module)  # which may have new parameters now
        return module

    replace(kind, "_apply", apply)


class _Gathered:
    def wait(self) -> None:
        return None


_CLASSES: dict[type, type] = {}  # of sharded modules, by those of plain ones


def _make_sharded(module: nn.Module, kind: Any) -> None:
    own = type(module)
    if not issubclass(own, kind):
        if own not in _CLASSES:
            _CLASSES[own] = type(f"FSDP{own.__name__}", (kind, own), {"__module__": own.__module__})
        module.__class__ = _CLASSES[own]


def _read(session: Session, keys: Keys) -> FullyShard:
    from torch.distributed.fsdp import CPUOffloadPolicy

    keys.free(*FREE)
    keys.not_modelled(*NOT_MODELLED)
    reshard = keys.take("reshard_after_forward")
    if isinstance(reshard, int) and not isinstance(reshard, bool):
        keys.say(
            "reshard_after_forward", f"{reshard} ranks; parameters are taken to be sharded among all of them again"
        )
    mesh, shards = keys.take("mesh"), None
    if mesh is not None and mesh.ndim == 2:
        shards = int(mesh.size(1)) if mesh.size(0) > 1 else None
    else:
        check_whole_world(session.findings.replicas, keys, "mesh")
    zero = 2 if reshard is False else 3
    offload = isinstance(keys.take("offload_policy"), CPUOffloadPolicy)
    if offload and zero != 3:
        keys.say("offload_policy", "parameters are taken to stay on the device")
    return FullyShard(zero=zero, shards=shards, offload=offload)
