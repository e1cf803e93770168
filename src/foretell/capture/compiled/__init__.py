"""Compiled steps: what torch's compiler would make of a step for a GPU, asked of its own scheduler on a machine without one.

Dynamo and AOTAutograd trace the step as they would, Inductor lowers and schedules each graph for the target (`target.py`,
`lowering.py`), and the step is recorded with its schedule in the place of the compiled code (`schedule.py`).
"""

from __future__ import annotations

from foretell.workload import Workload


def is_captured_compiled(workload: Workload) -> bool:
    """Whether a step that asks for it is captured compiled: one of a single device, which no trainer's plan cuts."""
    return bool(workload.compile) and workload.plan is None and workload.trainer is None and workload.kernels == "torch"
