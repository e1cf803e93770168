"""Foretell: what a training step will cost, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretell.plan import Plan
from foretell.workload import Workload

if TYPE_CHECKING:
    from foretell.forecasting.assemble import forecast
    from foretell.forecasting.conditions import Conditions
    from foretell.forecasting.result import Forecast
    from foretell.graph import Graph
    from foretell.hardware import Cluster
    from foretell.profile import Profile

__version__ = "0.1.0"
__all__ = ["Cluster", "Conditions", "Forecast", "Graph", "Plan", "Profile", "Workload", "__version__", "forecast"]

# Names whose modules load numpy or torch are found on first use: `import foretell` does no work.
_LAZY = {
    "Cluster": "foretell.hardware",
    "Conditions": "foretell.forecasting.conditions",
    "Forecast": "foretell.forecasting.result",
    "Graph": "foretell.graph",
    "Profile": "foretell.profile",
    "forecast": "foretell.forecasting.assemble",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'foretell' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value
