"""Foretell: what a training step will cost, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretell.declared import opaque
from foretell.errors import ForetellError, InputError, RequirementNotMet
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.workload import Workload

if TYPE_CHECKING:
    from foretell.campaign.driver import run as run_campaign
    from foretell.campaign.executor import LocalExecutor
    from foretell.campaign.jobs import Campaign
    from foretell.capture import capture as capture_graph
    from foretell.forecasting.conditions import Conditions
    from foretell.forecasting.fit_batch import BatchFit, fit_batch
    from foretell.forecasting.forecast import forecast
    from foretell.forecasting.job import Interruptions, JobLength, Pause
    from foretell.forecasting.result import Forecast
    from foretell.forecasting.scale import ScalePoint, scale
    from foretell.graph import Graph
    from foretell.hardware import Cluster, Device, Market, Node, device, devices, host, instance, link, read_prices
    from foretell.hardware.catalog import cheapest as cheapest_instance
    from foretell.laws.suite import check_laws
    from foretell.learn.adapt.fit import fit_profile as adapt
    from foretell.learn.adapt.steps import Step as MeasuredStep
    from foretell.measure.instrument import measure as measure_step
    from foretell.measure.ranks.measure import join as join_ranks
    from foretell.measure.ranks.measure import measure_ranks
    from foretell.measure.record import Point
    from foretell.parallel import parallelize
    from foretell.planner.goal import Goal
    from foretell.planner.plan import plan
    from foretell.planner.result import Choice, PlanResult
    from foretell.planner.search import Search
    from foretell.planner.space import Space
    from foretell.profile import Profile
    from foretell.serve.client import Client
    from foretell.sources.objects import step
    from foretell.sources.scripts import Script
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store
    from foretell.watching.watch import Watch, watch

__version__ = "0.2.0"
__all__ = [
    "BatchFit",
    "Campaign",
    "Choice",
    "Client",
    "Cluster",
    "Conditions",
    "Device",
    "Forecast",
    "ForetellError",
    "Goal",
    "Graph",
    "InputError",
    "Interruptions",
    "JobLength",
    "LocalExecutor",
    "Market",
    "MeasuredStep",
    "Node",
    "Pause",
    "Plan",
    "PlanResult",
    "Point",
    "Precision",
    "Profile",
    "RecordFile",
    "RequirementNotMet",
    "ScalePoint",
    "Script",
    "Search",
    "Space",
    "Store",
    "Watch",
    "Workload",
    "__version__",
    "adapt",
    "capture_graph",
    "cheapest_instance",
    "check_laws",
    "device",
    "devices",
    "fit_batch",
    "forecast",
    "host",
    "instance",
    "join_ranks",
    "link",
    "measure_ranks",
    "measure_step",
    "opaque",
    "parallelize",
    "plan",
    "read_prices",
    "run_campaign",
    "scale",
    "step",
    "watch",
]

# Names whose modules load numpy or torch are found on first use: `import foretell` does no work.
_FOUND_IN = {
    "foretell.campaign.driver": "run_campaign=run",
    "foretell.campaign.executor": "LocalExecutor",
    "foretell.campaign.jobs": "Campaign",
    "foretell.capture": "capture_graph=capture",
    "foretell.forecasting.forecast": "forecast",
    "foretell.forecasting.conditions": "Conditions",
    "foretell.forecasting.fit_batch": "BatchFit fit_batch",
    "foretell.forecasting.job": "Interruptions JobLength Pause",
    "foretell.forecasting.result": "Forecast",
    "foretell.forecasting.scale": "ScalePoint scale",
    "foretell.graph": "Graph",
    "foretell.hardware": "Cluster Device Market Node device devices host instance link read_prices",
    "foretell.hardware.catalog": "cheapest_instance=cheapest",
    "foretell.laws.suite": "check_laws",
    "foretell.learn.adapt.fit": "adapt=fit_profile",
    "foretell.learn.adapt.steps": "MeasuredStep=Step",
    "foretell.measure.instrument": "measure_step=measure",
    "foretell.measure.ranks.measure": "join_ranks=join measure_ranks",
    "foretell.measure.record": "Point",
    "foretell.parallel": "parallelize",
    "foretell.planner.goal": "Goal",
    "foretell.planner.plan": "plan",
    "foretell.planner.result": "Choice PlanResult",
    "foretell.planner.search": "Search",
    "foretell.planner.space": "Space",
    "foretell.precision": "MixedPrecision=Precision",  # its name in 0.1
    "foretell.profile": "Profile",
    "foretell.forecasting.notebook": "load_ipython_extension=register",
    "foretell.serve.client": "Client",
    "foretell.sources.objects": "step",
    "foretell.sources.scripts": "Script",
    "foretell.store.lines": "RecordFile",
    "foretell.store.store": "Store",
    "foretell.watching.watch": "Watch watch",
}
_LAZY = {
    public: (module, name or public)
    for module, names in _FOUND_IN.items()
    for public, _, name in (entry.partition("=") for entry in names.split())
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'foretell' has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value
