"""What wraps a model to run it on many devices: recognised, noted for the plan, and left out of the replica's graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu.patches import replace
from foretell.capture.dtypes import FLOATS
from foretell.precision import Precision
from foretell.sources.master_weights import Copies

_ZERO_OF_STRATEGY = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "_HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip


class Wrapper(nn.Module):
    """Runs the module inside; its other attributes are those of a wrapper of many devices."""

    def __init__(self, module: nn.Module, **attributes: Any) -> None:
        super().__init__()
        self.module = module
        self.__dict__.update(attributes)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


def unwrapped(module: nn.Module) -> nn.Module:
    while isinstance(module, Wrapper):
        module = module.module
    return module


def recognise(noted: dict[str, Any]) -> None:
    """Put stand-ins in place of torch's wrappers; what they are asked for is noted."""
    replace(nn.parallel, "DistributedDataParallel", _data_parallel(noted))
    replace(nn.parallel.distributed, "DistributedDataParallel", nn.parallel.DistributedDataParallel)
    replace(nn, "DataParallel", _single_process(noted))
    replace(nn.parallel, "DataParallel", nn.DataParallel)
    _synchronised_norms(noted)
    _fully_sharded(noted)


def _data_parallel(noted: dict[str, Any]) -> type:
    class DistributedDataParallel(Wrapper):
        def __init__(
            self, module: nn.Module, device_ids: Any = None, output_device: Any = None, *args: Any, **how: Any
        ) -> None:
            if not any(p.requires_grad for p in module.parameters()):
                raise RuntimeError(
                    "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
                )
            super().__init__(
                module,
                device_ids=device_ids,
                require_backward_grad_sync=True,
                static_graph=how.get("static_graph", False),
            )
            noted["data_parallel"] = "ddp"
            noted["bucket_bytes"] = int((how.get("bucket_cap_mb") or 25) * 2**20)

        def join(self, *args: Any, **kwargs: Any) -> Any:
            return contextlib.nullcontext()

        def _set_static_graph(self) -> None:
            return None

        def _get_ddp_logging_data(self) -> dict[str, Any]:
            return {}

        def register_comm_hook(self, state: Any, hook: Any) -> None:
            noted["comm_hook"] = getattr(hook, "__qualname__", str(hook))

    return DistributedDataParallel


def _single_process(noted: dict[str, Any]) -> type:
    class DataParallel(Wrapper):
        def __init__(self, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
            super().__init__(module, device_ids=device_ids)
            noted["data_parallel"] = "dp"

    return DataParallel


def _fully_sharded(noted: dict[str, Any]) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import fsdp

    class FullyShardedDataParallel(Wrapper):
        def __init__(
            self, module: nn.Module, process_group: Any = None, sharding_strategy: Any = None, *a: Any, **how: Any
        ) -> None:
            if isinstance(module, FullyShardedDataParallel):
                module = module.module
            super().__init__(module)
            noted["zero"] = _ZERO_OF_STRATEGY.get(getattr(sharding_strategy, "name", "FULL_SHARD"), 3)
            noted["hybrid"] = "HYBRID" in getattr(sharding_strategy, "name", "")
            if (device := how.get("device_id")) is not None:
                module.to(device)
            _compute_in(noted, module, how.get("mixed_precision"))

        def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
            return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

        @staticmethod
        def set_state_dict_type(*args: Any, **kwargs: Any) -> None:
            return None

        @staticmethod
        def state_dict_type(*args: Any, **kwargs: Any) -> Any:
            return contextlib.nullcontext()

        @staticmethod
        def optim_state_dict(model: Any, optim: Any, *args: Any, **kwargs: Any) -> Any:
            return optim.state_dict()

    def fully_shard(
        module: Any, *, mesh: Any = None, reshard_after_forward: Any = None, mp_policy: Any = None, **how: Any
    ) -> Any:
        noted["zero"] = 2 if reshard_after_forward is False else 3
        if mesh is not None and mesh.ndim == 2:
            noted["hybrid_shard"] = mesh.size(1)
        for each in module if isinstance(module, list | tuple) else [module]:
            _be_sharded(each)
            _compute_in(noted, each, mp_policy)
        return module

    replace(fsdp, "FullyShardedDataParallel", FullyShardedDataParallel)
    replace(fsdp.fully_sharded_data_parallel, "FullyShardedDataParallel", FullyShardedDataParallel)
    if hasattr(fsdp, "fully_shard"):
        replace(fsdp, "fully_shard", fully_shard)
        replace(torch.distributed.fsdp._fully_shard, "fully_shard", fully_shard)


def _be_sharded(module: nn.Module) -> None:
    """The methods that `fully_shard` gives a module; all are about communication."""
    for name in ("set_requires_gradient_sync", "set_reshard_after_backward", "set_is_last_backward", "unshard", "reshard",
                 "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "set_requires_all_reduce",
                 "set_reshard_after_forward", "set_gradient_divide_factor", "set_unshard_in_backward"):  # fmt: skip
        module.__dict__.setdefault(name, lambda *args, **kwargs: None)


def _compute_in(noted: dict[str, Any], module: nn.Module, policy: Any) -> None:
    """A policy of mixed precision: parameters stay as they are, and copies of them are computed with."""
    dtype = getattr(policy, "param_dtype", None)
    kept = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if dtype is None or kept in (None, dtype):
        return
    noted.setdefault("copies", []).append(Copies(module, dtype))
    reduced = getattr(policy, "reduce_dtype", None) or dtype
    noted["mixed"] = Precision(parameters=FLOATS[kept], compute=FLOATS[dtype], reduce=FLOATS[reduced])

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map(cast, args), pytree.tree_map(cast, kwargs)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    if (out := getattr(policy, "output_dtype", None)) is not None:
        module.register_forward_hook(
            lambda module, args, given: pytree.tree_map_only(torch.Tensor, lambda t: t.to(out), given)
        )


def _synchronised_norms(noted: dict[str, Any]) -> None:
    """On one replica a batch norm that is synchronised is a batch norm; what it communicates is left out, and noted."""

    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        noted["sync_batch_norm"] = True
        return nn.BatchNorm2d.forward(self, input)

    replace(nn.SyncBatchNorm, "forward", forward)
    replace(nn.BatchNorm2d, "_check_input_dim", lambda self, input: None)
