"""What every forecast obeys. One that does not is refused: something in its question is not what it says it is."""

from __future__ import annotations

import math
from typing import Final

from foretell.errors import InputError
from foretell.forecasting.result import Forecast
from foretell.hardware import Cluster
from foretell.units import Seconds, show_seconds

_MOST_USED: Final = 1.1  # of the published arithmetic: boards for games run up to a tenth above the clock it is of


def check_step(step: Seconds, workload: str, cluster: Cluster) -> None:
    """Refuse a step in which no time passes, before anything is divided by it."""
    if not 0 < step < math.inf:
        raise _refused(workload, str(cluster), f"a step takes {step:g} s")


def check_arithmetic(used: float, step: Seconds, workload: str, cluster: Cluster) -> None:
    """Refuse a step that does more arithmetic than its devices can; masked attention is none."""
    if not 0 <= used <= _MOST_USED:
        does = f"in {show_seconds(step)} its devices would do {used:.3g} times the arithmetic that they can"
        raise _refused(workload, str(cluster), does)


def possible(found: Forecast) -> Forecast:
    """The forecast, or an error about what broke it."""
    if (why := _impossible(found)) is not None:
        raise _refused(found.workload, found.cluster, why)
    return found


def _refused(workload: str, cluster: str, why: str) -> InputError:
    return InputError(
        f"a forecast of {workload!r} on {cluster} breaks what none can break: {why}. "
        "The graph, the profile or the device's file is not what it says. Capture the workload again; "
        "foretell devices --json lists the peaks that are counted with."
    )


def _impossible(found: Forecast) -> str | None:
    for name in ("device_time", "host_time", "exposed_communication", "bubble", "stragglers"):
        if not 0 <= (seconds := getattr(found, name).seconds) < math.inf:
            return f"{name} is {seconds:g} s"
    memory = found.memory
    if not 0 <= memory.allocated <= memory.reserved <= memory.total:
        return f"{memory.allocated:,} bytes are allocated, {memory.reserved:,} reserved, {memory.total:,} in all"
    return None
