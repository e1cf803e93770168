"""The chosen plan for the tools that run it: launch lines, jobs of schedulers, configurations of trainers, setup code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.planner.handover.job import Handed, kubernetes, skypilot, slurm, torchrun
from foretell.planner.handover.setup import setup_code
from foretell.planner.handover.trainers import accelerate, deepspeed, torchtitan
from foretell.planner.result import Choice

__all__ = ["FORMATS", "hand_over", "known_tool"]

# Format → the file it is usually kept in, and who writes it.
FORMATS: Final[dict[str, tuple[str, Callable[[Handed], str]]]] = {
    "torchrun": ("launch.sh", torchrun),
    "slurm": ("job.sbatch", slurm),
    "skypilot": ("sky.yaml", skypilot),
    "kubernetes": ("job.yaml", kubernetes),
    "accelerate": ("accelerate.yaml", accelerate),
    "deepspeed": ("deepspeed.json", deepspeed),
    "torchtitan": ("torchtitan.toml", torchtitan),
    "fsdp": ("fsdp_setup.py", setup_code),
}


def hand_over(choice: Choice, to: str, *, command: str = "train.py", name: str = "job", precision: str = "bf16") -> str:
    """The choice as `to` takes it. A plan that a tool cannot say is refused, never cut short."""
    return FORMATS[known_tool(to)][1](Handed.of(choice, command=command, name=name, precision=precision))


def known_tool(name: str) -> str:
    """The name, if it is of a tool that plans can be handed over to."""
    if name not in FORMATS:
        raise InputError(f"no tool {name!r} to hand over to. {did_you_mean(name, FORMATS)}Known: {', '.join(FORMATS)}.")
    return name
