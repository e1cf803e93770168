"""FullyShardedDataParallel: parameters are gathered where they are used, among all ranks or those of a node."""

from __future__ import annotations

import contextlib
from typing import Any, Final, Literal

import torch
from torch import nn

from foretell.capture.as_gpu.patches import replace_everywhere
from foretell.capture.script.findings import Fsdp
from foretell.capture.script.session import Session
from foretell.capture.script.wrapped import Wrapper
from foretell.capture.script.wrappers import check_whole_world, hook_not_modelled, keywords
from foretell.capture.script.wrappers.flat import Flat, Handle
from foretell.capture.script.wrappers.policy import compute_in
from foretell.sources.configs.keys import Keys

FREE: Final = (
    "auto_wrap_policy", "param_init_fn", "sync_module_states", "use_orig_params",  # each repeated block is a unit
)  # fmt: skip
NOT_MODELLED: Final = ("ignored_modules", "ignored_states", "forward_prefetch")
USED: Final = (
    "module", "process_group", "sharding_strategy", "cpu_offload", "backward_prefetch", "mixed_precision", "device_id",
    "limit_all_gathers", "device_mesh",
)  # fmt: skip
_ZERO_OF_STRATEGY: Final = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "_HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip
_HYBRID: Final = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def install(session: Session) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import fsdp

    original = fsdp.FullyShardedDataParallel

    class FullyShardedDataParallel(Wrapper):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            keys = keywords(original, f"FullyShardedDataParallel in {session.script.name}", args, kwargs)
            module = keys.take("module")
            if isinstance(module, FullyShardedDataParallel):
                module = module.module
            super().__init__(module)
            found = _read(session, keys)
            if (device := keys.take("device_id")) is not None or found.offload:
                module.to(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")
            self.mixed_precision = policy = keys.take("mixed_precision")
            compute_in(session, module, keys, "mixed_precision", policy)
            session.find_wrapper(found, keys)
            for parameter in module.parameters():
                vars(parameter)["_fsdp_flattened"] = True

        _is_root = True

        @property
        def _has_params(self) -> bool:
            return any(True for _ in self.parameters())

        @property
        def _flat_param(self) -> Flat:
            kind = next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.float32)
            return Flat(self, self._convert, kind)

        @property
        def _handle(self) -> Handle:
            return Handle(self._flat_param)

        @property
        def _fsdp_wrapped_module(self) -> nn.Module:
            return self.module

        def _convert(self, dtype: torch.dtype) -> None:
            """Libraries keep parameters in another precision than they were loaded in, and compute as before."""
            self.module.to(dtype)
            compute_in(session, self.module, Keys({}, session.script.name), "mixed_precision", self.mixed_precision)

        def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
            return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

        def register_comm_hook(self, state: object, hook: Any) -> None:
            session.find_caveats(hook_not_modelled("FullyShardedDataParallel", hook))

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("module"), name)

        def __getitem__(self, key: int) -> Any:
            return self.module[key]  # type: ignore[index]

        def check_is_root(self) -> bool:
            return True

        @staticmethod
        def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[nn.Module]:
            return [each for each in module.modules() if isinstance(each, FullyShardedDataParallel)]

        @staticmethod
        def summon_full_params(*args: Any, **kwargs: Any) -> Any:
            return contextlib.nullcontext()

        @staticmethod
        def set_state_dict_type(*args: Any, **kwargs: Any) -> None:
            return None

        @staticmethod
        def state_dict_type(*args: Any, **kwargs: Any) -> Any:
            return contextlib.nullcontext()

        @staticmethod
        def get_state_dict_type(module: nn.Module) -> Any:
            return fsdp.StateDictSettings(
                fsdp.StateDictType.FULL_STATE_DICT, fsdp.FullStateDictConfig(), fsdp.FullOptimStateDictConfig()
            )

        @staticmethod
        def optim_state_dict(model: Any, optim: Any, *args: Any, **kwargs: Any) -> Any:
            return optim.state_dict()

        full_optim_state_dict = sharded_optim_state_dict = optim_state_dict

        @staticmethod
        def optim_state_dict_to_load(model: Any, optim: Any, optim_state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            return optim_state_dict

        @staticmethod
        def shard_full_optim_state_dict(full: Any, *args: Any, **kwargs: Any) -> Any:
            return full

        scatter_full_optim_state_dict = rekey_optim_state_dict = shard_full_optim_state_dict

    replace_everywhere(fsdp, "FullyShardedDataParallel", FullyShardedDataParallel)


def _read(session: Session, keys: Keys) -> Fsdp:
    keys.free(*FREE)
    keys.not_modelled(*NOT_MODELLED)
    if "backward_prefetch" in keys:  # and is not BACKWARD_PRE, torch's own choice
        keys.take("backward_prefetch")
        keys.say("backward_prefetch", "the next block is taken to be gathered early")
    if "limit_all_gathers" in keys:
        keys.take("limit_all_gathers")
        keys.say("limit_all_gathers", "two blocks at most are taken to be gathered at once")
    strategy = getattr(keys.take("sharding_strategy"), "name", "FULL_SHARD")
    zero = _ZERO_OF_STRATEGY[strategy]
    offload = bool(getattr(keys.take("cpu_offload"), "offload_params", False))
    if offload and zero != 3:
        keys.say("cpu_offload", "parameters are taken to stay on the device")
    return Fsdp(zero=zero, shards=_shards(session, keys, strategy), offload=offload)


def _shards(session: Session, keys: Keys, strategy: str) -> int | Literal["node"] | None:
    """Ranks that share a copy of the model."""
    if strategy not in _HYBRID:
        check_whole_world(session.findings.replicas, keys, "process_group", "device_mesh")
        return None
    groups, mesh = keys.take("process_group"), keys.take("device_mesh")
    if mesh is not None:
        return int(mesh.size(1))
    return int(groups[0].size()) if isinstance(groups, tuple) else "node"
