"""When fake tensors will not do: run the step for real on a few samples and scale its shapes to the whole batch.

A step may refuse fake tensors: an operator with no shape rule, a conversion to NumPy, control flow on activations. Then it is run
on the CPU with the first few samples of the batch, at two sizes; every dimension that grows with the batch is
extended in proportion. Where the two sizes run different ops, one run scales what is a multiple of its size. Such a
graph has a caveat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from foretell.capture import sparse
from foretell.capture.as_gpu import behave_as_gpu
from foretell.capture.compiled import is_captured_compiled
from foretell.capture.explain import words_of
from foretell.capture.recorder import Recorder
from foretell.capture.step import Step, batch_sizes, prepare_model
from foretell.capture.trace import record, trace
from foretell.errors import ForetellError
from foretell.graph import Caveat, Graph
from foretell.graph.rescale import extend, same_path, scale
from foretell.units import GIB, show_bytes
from foretell.workload import Workload

_SIZES = (2, 4)
_MAX_PARAMETERS = 250_000_000
_MAX_BATCH = 4 * GIB  # which is made as a whole, before its first samples are taken
_RARE_SIZE = 13  # for a step whose path changes with the batch: a width that is a multiple of it would be taken for one


def trace_or_run(workload: Workload) -> Graph:
    """Record on fake tensors; where the workload does not allow it, run a small real step and extend it."""
    try:
        return trace(workload)
    except ForetellError:
        raise
    except Exception as refusal:
        if too_large := _too_large(workload):
            refusal.add_note(f"It was not run for real instead, because it has {too_large}.")
            raise
        try:
            first_line = words_of(refusal).partition("\n")[0][:200]
            return run_small(workload, why=f"{type(refusal).__name__}: {first_line}".removesuffix(": "))
        except ForetellError:
            raise
        except Exception:
            raise refusal from None  # the first failure is the one to explain


def _too_large(workload: Workload) -> str:
    """What would take this machine's memory, or all day; nothing where its size does not show on fake tensors."""
    with contextlib.suppress(Exception), torch.device("meta"):
        parameters = sum(p.numel() for p in workload.model().parameters())
        if parameters > _MAX_PARAMETERS:  # with gradients and two moments in fp32, a few gigabytes
            return f"{parameters:,} parameters, more than {_MAX_PARAMETERS:,}"
    with contextlib.suppress(Exception), FakeTensorMode(allow_non_fake_inputs=True):
        batch = sum(t.nbytes for t in pytree.tree_leaves(workload.batch()) if isinstance(t, torch.Tensor))
        if batch > _MAX_BATCH:
            return f"a batch of {show_bytes(batch)}, more than {show_bytes(_MAX_BATCH)}"
    return ""


def run_small(workload: Workload, why: str) -> Graph:
    behave_as_gpu()
    workload = _as_written(workload)
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its threads do not survive a fork, and it would wait for them forever
    batch = workload.batch()
    samples, tokens = batch_sizes(workload, batch)
    caveat = Caveat("ran-on-cpu", f"Captured from a small real step on the CPU, extended to the batch ({why}).")
    first = next((t for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor) and t.dim()), None)
    whole = first.shape[0] if first is not None else 1
    graph = _extended(lambda size: _run(workload, _first_samples(batch, whole, size)), whole)
    return replace(graph, samples=samples, tokens=tokens, caveats=(*graph.caveats, caveat))


def _extended(run: Callable[[int], Graph], whole: int) -> Graph:
    """The graph of the whole batch, from runs of a few samples."""
    if whole <= max(_SIZES):
        return run(whole)
    first, second = (run(size) for size in _SIZES)
    if same_path(first, second):
        return extend(first, second, sizes=_SIZES, to=whole)
    return run(whole) if whole <= _RARE_SIZE else scale(run(_RARE_SIZE), size=_RARE_SIZE, to=whole)


class StandIns:
    """Runs ops for real; one that no CPU kernel can do (cuDNN, flash attention) yields noise of the right shape."""

    def rewrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        with contextlib.suppress(NotImplementedError):
            return sparse.rewritten(func, args, kwargs)
        return None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except RuntimeError:  # a mistake of the user's fails on meta just the same
            on_meta = pytree.tree_map(lambda v: v.to("meta") if isinstance(v, torch.Tensor) else v, (args, kwargs))
            return pytree.tree_map(_noise, func(*on_meta[0], **on_meta[1]))


def _noise(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return tensor.normal_(std=0.1) if value.is_floating_point() else tensor.zero_()


def _run(workload: Workload, batch: Any) -> Graph:
    torch.manual_seed(0)
    model = prepare_model(workload, workload.model())
    recorder = Recorder(StandIns())
    with recorder:
        return record(Step.of(workload, model, batch), recorder)


def _as_written(workload: Workload) -> Workload:
    """A step that is run for real is not compiled."""
    if not is_captured_compiled(workload):
        return workload
    caveat = Caveat("compile-not-modelled", "The step had to be run for real; this is the eager step.")
    return replace(workload, compile=False, caveats=(*workload.caveats, caveat))


def _first_samples(batch: Any, whole: int, count: int) -> Any:
    def first(value: Any) -> Any:
        has_samples = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == whole
        return value[:count].clone() if has_samples else value

    return pytree.tree_map(first, batch)
