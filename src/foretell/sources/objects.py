"""A Workload from objects that are there already, as in a notebook."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foretell.errors import WorkloadError
from foretell.workload import Workload

if TYPE_CHECKING:
    import torch


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    *,
    name: str | None = None,
    **settings: Any,
) -> Workload:
    """The step `loss(model, batch).backward(); optimizer.step()` of live objects, which stay as they are.

    Args:
        model: The module.
        optimizer: Made of its parameters; None: inference.
        loss: Called as `loss(model, batch)`; a loss of torch's own as `loss(model(x), y)` of a batch `(x, y)`.
        batch: What one step is given.
        name: Of the workload; None: the model's class.
        settings: A Workload's: precision, grad_accumulation, clip_grad_norm and so on.

    Returns:
        The Workload.

    Raises:
        InputError: Objects that a step cannot be made of.

    Examples:
        >>> import torch
        >>> net = torch.nn.Linear(8, 2)
        >>> workload = foretell.step(net, torch.optim.SGD(net.parameters()), torch.nn.MSELoss(),
        ...                          (torch.randn(4, 8), torch.randn(4, 2)))
        >>> foretell.forecast(workload, on="h200").memory.fits
        True
    """
    from torch.utils import _pytree as pytree

    def at_home(tensor: Any) -> Any:
        return tensor.detach().cpu() if hasattr(tensor, "detach") else tensor

    return Workload(
        name=name or type(model).__name__,
        model=lambda: copy.deepcopy(model).cpu(),
        batch=lambda: pytree.tree_map(at_home, batch),
        loss=_of_outputs(loss, batch) if _is_torchs(loss) else loss,
        optimizer=None if optimizer is None else lambda params: same_optimizer(model, optimizer)(params),
        **settings,
    )


def _is_torchs(loss: Any) -> bool:
    import torch

    return isinstance(loss, torch.nn.Module) or str(getattr(loss, "__module__", "")).partition(".")[0] == "torch"


def _of_outputs(loss: Callable[[Any, Any], Any], batch: Any) -> Callable[[Any, Any], Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise WorkloadError(
            f"a loss of torch's own takes what the model makes of x, and y, but the batch is no pair (x, y): got "
            f"{type(batch).__name__}. Give a function of model and batch instead."
        )
    return lambda model, pair: loss(model(pair[0]), pair[1])


def same_optimizer(model: torch.nn.Module, optimizer: Any) -> Callable[[Any], Any]:
    """Makes an optimizer of the same class with the same groups, of the parameters that it is given."""
    places = {id(p): i for i, p in enumerate(p for p in model.parameters() if p.requires_grad)}
    groups = [
        ({k: v for k, v in group.items() if k != "params"}, [places[id(p)] for p in group["params"] if id(p) in places])
        for group in optimizer.param_groups
    ]
    kind = type(optimizer)
    taken = inspect.signature(kind.__init__).parameters
    defaults = {k: v for k, v in optimizer.defaults.items() if k in taken}

    def make(parameters: Any) -> Any:
        new = list(parameters)
        return kind([{**how, "params": [new[i] for i in members]} for how, members in groups if members], **defaults)

    return make
