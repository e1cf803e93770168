"""`foretell bench distributed`: measured steps of several devices beside what Foretell says, source by source."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType

from foretell.errors import InputError, did_you_mean
from foretell.units import Seconds
from foretell_bench.sources import gpt_steps, llm_sweep, megatron, mpt, placements, submissions
from foretell_bench.sources.rows import Say, is_there
from foretell_bench.tables.figures import Figure

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one source gave, when, and how long that took."""

    source: str
    figures: tuple[Figure, ...]
    seconds: Seconds = 0.0
    date: str = ""


def run(data: Path, only: Sequence[str] = (), say: Say = lambda text: None, most: int = MOST_ROWS) -> Iterator[Found]:
    """The figures of every source in a folder of public measurements, or of some of them, as they are found.

    `most` is how many rows are asked for, of sources where each takes a forecast of its own.
    """
    if not data.is_dir():
        raise InputError(
            f"{data} is no folder. Give --data the folder of public measurements (docs/internals/data.md)."
        )
    for name in only:
        if name not in SOURCES:
            raise InputError(f"no source {name!r}. {did_you_mean(name, SOURCES)}Sources: {', '.join(SOURCES)}.")
    return _run(data, only, say, most)


def _run(data: Path, only: Sequence[str], say: Say, most: int) -> Iterator[Found]:
    for name, figures in SOURCES.items():
        if name in only or (not only and is_there(data, name)):
            began = time.monotonic()
            found = tuple(figures(data, say, most))
            yield Found(source=name, figures=found, seconds=time.monotonic() - began, date=date.today().isoformat())
        elif not only:
            missing = Figure(source=name, measure="not run", value=None, note="the folder has no such file")
            yield Found(source=name, figures=(missing,))


def save(found: Found, path: Path) -> None:
    """Keep what a source gave; other sources there stay."""
    kept = {each.source: each for each in read(path)} if path.exists() else {}
    kept[found.source] = found
    lines = [json.dumps(asdict(kept[source])) for source in SOURCES if source in kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read(path: Path) -> list[Found]:
    try:
        return [
            Found(**{**each, "figures": tuple(Figure(**f) for f in each["figures"])})
            for each in json.loads(path.read_text())
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds no results of this benchmark ({error}). Make some: foretell bench distributed --save"
        ) from error
