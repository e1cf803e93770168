"""The chosen plan for the tools that run it: launch lines, jobs of schedulers, configurations of trainers, setup code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.planner.handover.fields import TOOLS
from foretell.planner.handover.job import Handed, kubernetes, skypilot, slurm, torchrun
from foretell.planner.handover.setup import setup_code
from foretell.planner.handover.trainers import accelerate, deepspeed, lightning, torchtitan
from foretell.planner.result import Choice

__all__ = ["TOOLS", "hand_over", "known_tool"]

_WRITERS: Final[dict[str, Callable[[Handed], str]]] = {
    "torchrun": torchrun, "slurm": slurm, "skypilot": skypilot, "kubernetes": kubernetes, "accelerate": accelerate,
    "deepspeed": deepspeed, "torchtitan": torchtitan, "lightning": lightning, "fsdp": setup_code,
}  # fmt: skip


def hand_over(choice: Choice, to: str, *, command: str = "train.py", name: str = "job") -> str:
    """The choice as `to` takes it. A plan that a tool cannot say is refused, never cut short."""
    handed = Handed.of(choice, command=command, name=name)
    TOOLS[known_tool(to)].refuse(handed.plan)
    return _WRITERS[to](handed)


def known_tool(name: str) -> str:
    """The name, if it is of a tool that plans can be handed over to."""
    if name not in TOOLS:
        raise InputError(f"no tool {name!r} to hand over to. {did_you_mean(name, TOOLS)}Known: {', '.join(TOOLS)}.")
    return name
