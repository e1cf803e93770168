"""Compiled steps: what torch's compiler would make of a step for a GPU, asked of its own scheduler on a machine without one.

Dynamo and AOTAutograd trace the step as they would, Inductor lowers and schedules each graph for the target (`target.py`,
`lowering.py`), and the step is recorded with its schedule in the place of the compiled code (`schedule.py`).
"""

from __future__ import annotations

from typing import Final

from foretell.workload import Workload

COMPILES: Final = "compiling"  # what a capture reports where it first does, and why a script's next run does not


def is_captured_compiled(workload: Workload) -> bool:
    """Whether a step that asks for it is captured compiled: one of a single device, which no trainer's plan cuts."""
    return bool(workload.compile) and why_not_compiled(workload) is None


def why_not_compiled(workload: Workload) -> str | None:
    """What speaks against compiled kernels in a workload's step."""
    if workload.trainer is not None or workload.kernels != "torch":
        return "kernels of a trainer with its own are not compiled here"
    if workload.plan is not None:
        return "kernels of a plan that is read from a file are not compiled here"
    return None
