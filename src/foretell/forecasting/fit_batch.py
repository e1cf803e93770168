"""The largest batch that fits: two captures show how a step grows, a search over continued graphs finds the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from foretell.capture import capture
from foretell.cost.model import ROOFLINE, CostModel
from foretell.errors import InputError, RequirementNotMet, check_number
from foretell.forecasting.conditions import Conditions
from foretell.forecasting.forecast import DEFAULT_MODEL, forecast
from foretell.forecasting.job import JobLength
from foretell.forecasting.result import Forecast
from foretell.forecasting.trainer import trainer_settings
from foretell.graph import Graph
from foretell.graph.rescale import extend, same_path
from foretell.hardware import Cluster
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.workload import Workload

_SIZES: Final = (8, 16)  # captured; between and beyond them every dimension is continued
_MAX_BATCH: Final = 2**24
_LIKELY: Final = 0.95  # probability that the step fits


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFit:
    """The largest batch that fits, with its forecast.

    Attributes:
        batch: What one replica processes in a micro-step.
        forecast: The forecast of that step.

    Examples:
        >>> fit = foretell.fit_batch("torchvision/resnet18", on="t4")
        >>> fit.forecast.memory.fits
        True
    """

    batch: int
    forecast: Forecast


def fit_batch(
    workload: str | Callable[..., Workload],
    on: str | Cluster,
    plan: Plan | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | CostModel = DEFAULT_MODEL,
    profile: Profile | str | Path | None = None,
    conditions: Conditions | None = None,
    job: JobLength | None = None,
    headroom: float | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> BatchFit:
    """Find the largest `batch` whose step fits on every device of the cluster.

    Args:
        workload: A SOURCE with a parameter `batch`, or a function that takes `batch=` and returns a Workload.
        on: The cluster, like `8xh100-sxm`.
        plan: How the step is parallelized; without one, data-parallel over all devices.
        settings: Parameters of the SOURCE.
        model: What prices operators; `profile`, `conditions` and `job` are as in `forecast`.
        headroom: The part of a device's memory that stays free; None: as much as makes a fit likely (0.95).
        cache: Whether captured graphs are kept on disk.
        progress: Is called with a line for each batch that is tried.

    Returns:
        The batch and its forecast.

    Raises:
        InputError: Not even a batch of 1 fits, or the SOURCE has no parameter `batch`.

    Examples:
        >>> foretell.fit_batch("torchvision/resnet18", on="t4").batch > 64
        True
    """
    name = _check(workload, settings)
    settings = trainer_settings(workload, settings, conditions)
    if headroom is not None:
        check_number("headroom", headroom, "a part of a device's memory, 0 to 0.9", InputError, most=0.9)
    report = progress or (lambda text: None)

    def captured(batch: int) -> Graph:
        report(f"capturing {name} at batch {batch}")
        if callable(workload):
            return capture(workload(batch=batch))
        return capture(workload, {**(settings or {}), "batch": batch}, cache=cache)

    first, second = (captured(size) for size in _SIZES)
    continues = same_path(first, second)

    def fits(batch: int) -> bool:
        report(f"trying batch {batch} on {on}")
        graph = _continued(first, second, batch) if continues else captured(batch)
        return roomy(forecast(graph, on, plan, model=ROOFLINE))  # memory does not depend on the model

    def roomy(answer: Forecast) -> bool:
        memory = answer.memory
        if headroom is None:
            return memory.fits and memory.fit_probability >= _LIKELY
        return memory.allocated + memory.context + memory.communicator <= (1 - headroom) * memory.capacity

    batch = _largest(fits)
    while batch:  # the search worked on continued graphs; the answer is captured for real
        answer = forecast(captured(batch), on, plan, model=model, profile=profile, conditions=conditions, job=job)
        if roomy(answer):
            return BatchFit(batch=batch, forecast=answer)
        batch = min(batch - 1, int(batch * 0.99))
    raise RequirementNotMet(
        f"{name} does not fit on {on} even with batch 1. Choose a device with more memory, a lower precision, or fewer "
        "parameters."
    )


def _continued(first: Graph, second: Graph, batch: int) -> Graph:
    graph = extend(first, second, sizes=_SIZES, to=batch)
    if (template := graph.facts.plan) is None:
        return graph
    # Micro-steps follow from the batch where a configuration says the samples of a whole step.
    return replace(graph, facts=replace(graph.facts, plan=replace(template, batch=batch)))


def _check(workload: object, settings: Mapping[str, Any] | None) -> str:
    """What the workload is called. The batch of a Workload or Graph is fixed, and settings are of a SOURCE."""
    if isinstance(workload, str) and not workload.endswith(".graph"):
        if settings and "batch" in settings:
            raise InputError(f"batch={settings['batch']} is set, but the batch is what is searched for. Leave it out.")
        return workload
    if not callable(workload):
        name = f"{type(workload).__name__} {workload.name!r}" if isinstance(workload, Workload | Graph) else workload
        raise InputError(
            f"the batch of {name} is fixed. Give a SOURCE with a parameter `batch`, like file.py:function, or a function "
            "that takes batch= and returns a Workload."
        )
    if settings:
        raise InputError("settings are for a SOURCE. Give a function its parameters with functools.partial.")
    return getattr(workload, "__name__", repr(workload))


def _largest(fits: Callable[[int], bool]) -> int:
    """0 where not even 1 fits; found to one part in 500."""
    low, high = 0, 1
    while fits(high) and high < _MAX_BATCH:
        low, high = high, high * 2
    while high - low > max(1, low // 500):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
