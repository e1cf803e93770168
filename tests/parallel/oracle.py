"""torch's own parallel code as the oracle: it runs under the fake process group, and what it says is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.program import Collective

Said = tuple[str, int, int]  # kind, bytes of the whole tensor, ranks

_KINDS = {
    "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter", "allreduce_": "all-reduce",
    "all_reduce": "all-reduce", "all_gather_into_tensor": "all-gather", "reduce_scatter_tensor": "reduce-scatter",
    "all_to_all_single": "all-to-all", "alltoall_base_": "all-to-all", "send": "send-recv", "recv_": "send-recv",
    "broadcast_": "broadcast", "broadcast": "broadcast",
}  # fmt: skip


@contextmanager
def fake_ranks(world: int, rank: int = 0) -> Iterator[None]:
    dist.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Listener(TorchDispatchMode):
    """Writes down every collective: kind, bytes of the whole tensor, ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Said] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # what it does inside comes by again
        out = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.split("::")[1]
            if name in _KINDS:
                tensors = [t for a in (*args, out) for t in _tensors(a)]
                ranks = next((_ranks(a) for a in args if _ranks(a)), 0)
                self.said.append((_KINDS[name], max(t.numel() * t.element_size() for t in tensors), ranks))
        return out


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []


def _ranks(value: Any) -> int:
    if isinstance(value, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(value).size()
        except RuntimeError:
            return 0
    if isinstance(value, str):
        try:
            return dist.distributed_c10d._resolve_process_group(value).size()
        except Exception:
            return 0
    return 0


def listen(step: Any) -> list[Said]:
    """What a step says, once it has run before: the first builds state."""
    step()
    with Listener() as listener:
        step()
    return listener.said


def planned(collectives: tuple[Collective, ...]) -> list[Said]:
    return [(c.kind, c.nbytes, c.group.size) for c in collectives]
