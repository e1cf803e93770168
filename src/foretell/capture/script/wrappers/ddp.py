"""DistributedDataParallel: gradients are averaged in buckets, by a communication hook where one is registered."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Final

from torch import nn

from foretell.capture.as_gpu.patches import replace as put_in_place
from foretell.capture.script.findings import Ddp
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session
from foretell.capture.script.wrapped import Wrapper
from foretell.capture.script.wrappers import check_whole_world, hook_not_modelled, keywords
from foretell.precision import Float
from foretell.units import MIB

TORCH_CLASS: Final = nn.parallel.DistributedDataParallel
FREE: Final = (
    "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "check_reduction", "static_graph",
    "forward_sync_buffers",
)  # fmt: skip
NOT_MODELLED: Final = (
    "find_unused_parameters", "gradient_as_bucket_view", "delay_all_reduce_named_params", "param_to_hook_all_reduce",
    "mixed_precision", "skip_all_reduce_unused_params", "bucket_cap_mb_list", "batched_grad_copy",
)  # fmt: skip
USED: Final = ("module", "bucket_cap_mb", "process_group", "device_mesh")


def install(session: Session) -> None:
    class DistributedDataParallel(Wrapper):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            keys = keywords(TORCH_CLASS, f"DistributedDataParallel in {session.script.name}", args, kwargs)
            module: nn.Module = keys.take("module")
            if not any(p.requires_grad for p in module.parameters()):
                raise RuntimeError(
                    "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient."
                )
            flags = {name: bool(kwargs.get(name, False)) for name in ("static_graph", "find_unused_parameters")}
            super().__init__(
                module, device_ids=keys.take("device_ids"), require_backward_grad_sync=True,
                require_forward_param_sync=True, reducer=Nothing("reducer"), logger=Nothing("logger"), **flags,
            )  # fmt: skip
            keys.free(*FREE)
            keys.not_modelled(*NOT_MODELLED)
            check_whole_world(session.findings.replicas, keys, "process_group", "device_mesh")
            size = keys.take("bucket_cap_mb")
            session.find_wrapper(Ddp(bucket_bytes=None if size is None else int(size * MIB) or 1), keys)

        def join(self, *args: Any, **kwargs: Any) -> Any:
            return contextlib.nullcontext()

        def _set_static_graph(self) -> None:
            return None

        def _get_ddp_logging_data(self) -> dict[str, Any]:
            return {}

        def register_comm_hook(self, state: object, hook: Any) -> None:
            _find_hook(session, hook)

        def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
            _find_hook(session, comm_hook_type)

    put_in_place(nn.parallel, "DistributedDataParallel", DistributedDataParallel)
    put_in_place(nn.parallel.distributed, "DistributedDataParallel", DistributedDataParallel)


def _find_hook(session: Session, hook: Any) -> None:
    from torch._C._distributed_c10d import BuiltinCommHookType as builtin
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    known: dict[Any, Float | None] = {
        default_hooks.allreduce_hook: None,
        default_hooks.fp16_compress_hook: "fp16",
        default_hooks.bf16_compress_hook: "bf16",
        builtin.ALLREDUCE: None,
        builtin.FP16_COMPRESS: "fp16",
    }
    if hook not in known:
        session.find_caveats(hook_not_modelled("DistributedDataParallel", hook))
    elif isinstance(found := session.findings.wrapper, Ddp):
        session.find(wrapper=replace(found, reduce=known[hook]))
