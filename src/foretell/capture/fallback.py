"""When fake tensors will not do: run the step for real on a few samples and scale its shapes to the whole batch.

A step may refuse fake tensors: an operator with no shape rule, a conversion to NumPy, control flow on activations. Then it is run
on the CPU with the first few samples of the batch, at two sizes; every dimension that grows with the batch is
extended in proportion. Such a graph carries a caveat.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from foretell.capture.as_gpu import behave_as_gpu
from foretell.capture.recorder import Recorder
from foretell.capture.rescale import extend
from foretell.capture.step import Step, batch_sizes, make_scaler, prepare_batch, prepare_model, prepare_optimizer
from foretell.capture.trace import record, trace
from foretell.errors import ForetellError
from foretell.graph import Caveat, Graph
from foretell.workload import Workload


def trace_or_run(workload: Workload) -> Graph:
    """Record on fake tensors; where the workload does not allow it, run a small real step and extend it."""
    try:
        return trace(workload)
    except ForetellError:
        raise
    except Exception as refusal:
        try:
            return run_small(workload, why=f"{type(refusal).__name__}: {str(refusal).splitlines()[0][:200]}")
        except ForetellError:
            raise
        except Exception:
            raise refusal from None  # the first failure is the one to explain


def run_small(workload: Workload, why: str) -> Graph:
    behave_as_gpu()
    batch = workload.batch()
    samples, tokens = batch_sizes(workload, batch)
    caveat = Caveat("ran-on-cpu", f"Captured from a small real step on the CPU, extended to the batch ({why}).")
    first = next((t for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor) and t.dim()), None)
    whole = first.shape[0] if first is not None else 1
    sizes = [size for size in (2, 4) if size < whole] or [whole]
    graphs = [_run(workload, _first_samples(batch, whole, size)) for size in sizes]
    if sizes[-1] == whole:
        graph = graphs[-1]
    elif len(graphs) == 2:
        graph = extend(graphs[0], graphs[1], sizes=(sizes[0], sizes[1]), to=whole)
    else:
        graph = extend(graphs[0], _run(workload, _first_samples(batch, whole, 1)), sizes=(sizes[0], 1), to=whole)
    fields = {name: getattr(graph, name) for name in Graph.__dataclass_fields__}
    return Graph(**{**fields, "samples": samples, "tokens": tokens, "caveats": (*graph.caveats, caveat)})


class StandIns:
    """Runs ops for real; one that has no CPU kernel (cuDNN, flash attention) yields noise of the right shape."""

    def rewrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        return None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
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
        step = Step(workload=workload, model=model, batch=prepare_batch(workload, batch),
                    optimizer=prepare_optimizer(workload, model), scaler=make_scaler(workload, "cpu"), device="cpu")  # fmt: skip
        return record(step, recorder)


def _first_samples(batch: Any, whole: int, count: int) -> Any:
    return pytree.tree_map(
        lambda value: value[:count].clone() if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == whole else value,
        batch,
    )
