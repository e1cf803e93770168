"""`foretell bench distributed`: measured steps of several devices beside what Foretell says, source by source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from foretell.bench import gpt_steps, llm_sweep, megatron, mpt, placements, submissions
from foretell.bench.figures import Figure
from foretell.bench.rows import Say, is_there
from foretell.errors import InputError, did_you_mean

SOURCES: Mapping[str, Callable[[Path, Say, int], list[Figure]]] = MappingProxyType(
    {
        placements.SOURCE: placements.figures,
        submissions.SOURCE: submissions.figures,
        llm_sweep.SOURCE: llm_sweep.figures,
        gpt_steps.SOURCE: gpt_steps.figures,
        mpt.SOURCE: mpt.figures,
        megatron.SOURCE: megatron.figures,
    }
)

MOST_ROWS = 2000


def run(data: Path, only: Sequence[str] = (), say: Say = lambda text: None, most: int = MOST_ROWS) -> list[Figure]:
    """The figures of every source in a folder of public measurements, or of some of them.

    `most` is how many rows are asked for, of sources where each takes a forecast of its own.
    """
    if not data.is_dir():
        raise InputError(f"{data} is no folder. Give --data the folder of public measurements (docs/data.md).")
    for name in only:
        if name not in SOURCES:
            raise InputError(f"no source {name!r}. {did_you_mean(name, SOURCES)}Sources: {', '.join(SOURCES)}.")
    found: list[Figure] = []
    for name, figures in SOURCES.items():
        if name in only or (not only and is_there(data, name)):
            found += figures(data, say, most)
        elif not only:
            found.append(Figure(source=name, measure="not run", value=None, note="the folder has no such file"))
    return found
