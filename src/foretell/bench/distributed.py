"""`foretell bench distributed`: measured steps of several devices beside what Foretell says, source by source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from foretell.bench import placements, submissions
from foretell.bench.figures import Figure
from foretell.errors import InputError, did_you_mean

Say = Callable[[str], None]

SOURCES: Mapping[str, Callable[[Path], list[Figure]]] = MappingProxyType(
    {
        placements.SOURCE: placements.figures,
        submissions.SOURCE: submissions.figures,
    }
)

# What the table of accuracy holds and cannot be run yet: the plans or schedules these need are not in the program.
WAITING: Mapping[str, str] = MappingProxyType(
    {
        "llm_h100_sweep": "needs tensor and pipeline parallel plans",
        "vtrain_single_node": "needs tensor and pipeline parallel plans",
        "fsdp_mpt": "needs activation checkpointing as a plan",
        "megatron_memory": "needs tensor and pipeline parallel plans",
    }
)


def run(data: Path, only: Sequence[str] = (), say: Say = lambda text: None) -> list[Figure]:
    """The figures of every source in a folder of public measurements, or of some of them."""
    if not data.is_dir():
        raise InputError(f"{data} is no folder. Give --data the folder of public measurements (docs/data.md).")
    known = [*SOURCES, *WAITING]
    for name in only:
        if name not in known:
            raise InputError(f"no source {name!r}. {did_you_mean(name, known)}Sources: {', '.join(known)}.")
    found: list[Figure] = []
    for name, figures in SOURCES.items():
        if not only or name in only:
            say(f"comparing with {name}")
            found += figures(data)
    found += [
        Figure(source=name, measure="not run", value=None, note=why)
        for name, why in WAITING.items()
        if not only or name in only
    ]
    return found
