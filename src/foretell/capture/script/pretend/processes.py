"""The other processes of a script: a group of the size asked for, of which this one is the first rank.

What the ranks would exchange has the shapes that this rank has itself, so every collective answers with its own
tensors. What a plan communicates is the plan's to say, and is no part of the graph of one replica.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from foretell.capture.as_gpu.patches import replace_everywhere
from foretell.capture.script.session import Session

_FREE: Final = ("barrier", "monitored_barrier", "destroy_process_group")  # they send nothing of the step


class _Done:
    """The work of a collective, which is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def install(session: Session) -> None:
    """Let `torch.distributed` make a group of as many ranks with nobody else in it."""

    def quietly(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if session.recorder.recording and name not in _FREE:
                session.find_name("collectives", name)
            with session.recorder.pause():
                return function(*args, **kwargs)

        return run

    if not dist.is_available():
        return
    import torch.distributed.device_mesh
    import torch.distributed.fsdp  # noqa: F401  # which take functions over by name

    store: Any = vars(dist)["HashStore"]
    _start_groups(session)
    replace_everywhere(dist, "is_nccl_available", lambda: True)
    replace_everywhere(dist, "TCPStore", lambda *args, **kwargs: store())  # nobody else comes to it
    replace_everywhere(dist, "FileStore", lambda *args, **kwargs: store())
    for name in ("set_timeout", "_set_pg_timeout"):  # the first only in newer versions; nobody is waited for
        setattr(dist, name, lambda *args, **kwargs: None)
    for name, function in _collectives().items():
        if hasattr(dist, name):
            replace_everywhere(dist, name, quietly(name, function))


def _start_groups(session: Session) -> None:
    start = dist.init_process_group
    signature = inspect.signature(start)
    split = dist.new_group
    whose = inspect.signature(split)
    backends = ["nccl"]
    others: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of groups besides the first, by what they asked for

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        given = signature.bind(*args, **kwargs).arguments
        size = int(given.get("world_size") or -1)
        size = size if size > 0 else int(os.environ.get("WORLD_SIZE", session.ranks))
        if dist.is_initialized():  # a library has made it, and the script makes it too
            return
        backends[:] = [str(given.get("backend") or "nccl").rpartition(":")[2]]
        session.find(world=size)
        start(backend="fake", rank=0, world_size=size, store=FakeStore())

    def new_group(*args: Any, **kwargs: Any) -> Any:
        """A second group, as one on the host beside that of the accelerators: whatever it runs on, nobody else is in it."""
        given = whose.bind(*args, **kwargs).arguments
        wanted = given.pop("backend", None)
        made = split(**{name: value for name, value in given.items() if name not in ("pg_options", "device_id")})
        if wanted is not None and isinstance(made, dist.ProcessGroup):
            others[made] = str(wanted).rpartition(":")[2]
        return made

    replace_everywhere(dist, "init_process_group", init_process_group)
    replace_everywhere(dist, "new_group", new_group)
    replace_everywhere(dist, "get_backend", lambda group=None: others.get(group, backends[0]) if group else backends[0])


def _collectives() -> dict[str, Callable[..., Any]]:
    def own(*args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
        return _Done() if async_op else None

    def fill_each(outputs: Any, value: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
        for each in outputs or ():
            each.copy_(value)
        return _Done() if async_op else None

    def fill(output: torch.Tensor, value: torch.Tensor, *args: Any, async_op: bool = False, **kw: Any) -> _Done | None:
        flat = value.reshape(-1)
        whole = output.reshape(-1)
        repeats = -(-whole.numel() // max(flat.numel(), 1))
        whole.copy_(flat.repeat(repeats)[: whole.numel()])
        return _Done() if async_op else None

    def gather_objects(outputs: list[Any], value: Any, *args: Any, **kwargs: Any) -> None:
        outputs[:] = [value] * len(outputs)

    def gather_to(value: Any, outputs: Any = None, *args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
        return fill_each(outputs, value, async_op=async_op)

    def reduce_scatter(output: Any, inputs: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> _Done | None:
        output.copy_(inputs[0])
        return _Done() if async_op else None

    def scatter_objects(output: list[Any], inputs: list[Any], *args: Any, **kwargs: Any) -> None:
        output[0] = inputs[0]

    answers: dict[str, Callable[..., Any]] = dict.fromkeys(
        ("all_reduce", "reduce", "broadcast", "barrier", "all_reduce_coalesced", "send", "recv", "monitored_barrier"),
        own,
    )
    return answers | {
        "all_gather": fill_each,
        "all_gather_into_tensor": fill,
        "_all_gather_base": fill,
        "reduce_scatter": reduce_scatter,
        "reduce_scatter_tensor": fill,
        "all_to_all_single": fill,
        "all_to_all": lambda outputs, inputs, *a, async_op=False, **k: (
            [o.copy_(i) for o, i in zip(outputs, inputs, strict=False)] and None
        ),
        "gather": gather_to,
        "scatter": lambda output, inputs=None, *a, **k: output.copy_(inputs[0]) and None if inputs else None,
        "all_gather_object": gather_objects,
        "gather_object": lambda value, outputs=None, *a, **k: gather_objects(outputs, value) if outputs else None,
        "broadcast_object_list": lambda objects, *a, **k: None,
        "scatter_object_list": scatter_objects,
        "destroy_process_group": lambda group=None: None,
        "isend": lambda *args, **kwargs: _Done(),
        "irecv": lambda *args, **kwargs: _Done(),
        "batch_isend_irecv": lambda operations: [_Done() for _ in operations],
    }
