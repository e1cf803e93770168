"""`fully_shard`: FSDP2, which shards modules as they are."""

from __future__ import annotations

from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.findings import FullyShard
from foretell.capture.script.session import Session
from foretell.capture.script.wrappers import check_whole_world, keywords
from foretell.capture.script.wrappers.policy import compute_in
from foretell.sources.configs.keys import Keys

FREE: Final = ("shard_placement_fn",)
NOT_MODELLED: Final = ("ignored_params", "dp_mesh_dims")
USED: Final = ("module", "mesh", "reshard_after_forward", "mp_policy", "offload_policy")
_METHODS: Final = (  # that a sharded module has; all are about communication
    "set_requires_gradient_sync", "set_reshard_after_backward", "set_is_last_backward", "unshard", "reshard",
    "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "set_requires_all_reduce",
    "set_reshard_after_forward", "set_gradient_divide_factor", "set_unshard_in_backward",
)  # fmt: skip


def install(session: Session) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import fsdp

    original = fsdp.fully_shard

    def fully_shard(*args: Any, **kwargs: Any) -> Any:
        keys = keywords(original, f"fully_shard in {session.script.name}", args, kwargs)
        module, found = keys.take("module"), _read(session, keys)
        for each in module if isinstance(module, list | tuple) else [module]:
            for name in _METHODS:
                each.__dict__.setdefault(name, lambda *args, **kwargs: None)
            if found.offload and not any(p.is_meta for p in each.parameters()):
                each.to("cuda")  # where it computes; the host keeps what the plan says
            compute_in(session, each, keys, "mp_policy")
        session.find_wrapper(found, keys)
        return module

    replace(fsdp, "fully_shard", fully_shard)
    replace(torch.distributed.fsdp._fully_shard, "fully_shard", fully_shard)


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
        shards = int(mesh.size(1))
    else:
        check_whole_world(session.findings.world, keys, "mesh")
    zero = 2 if reshard is False else 3
    offload = isinstance(keys.take("offload_policy"), CPUOffloadPolicy)
    if offload and zero != 3:
        keys.say("offload_policy", "parameters are taken to stay on the device")
    return FullyShard(zero=zero, shards=shards, offload=offload)
