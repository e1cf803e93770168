"""The rows that methods are compared on: an open part, which anybody may look at, and a blind part, which is scored once.

Rows are drawn by hashes of what they say, never by how well they are predicted. The blind part of each source is fixed by a
hash in `bench/results/methods-blind.json`, so that a row that was changed or exchanged is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from foretell.design.blind import is_blind
from foretell.errors import InputError
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, JOB_TIME, MEMORY, STEP_TIME, Example
from foretell.store.importers import Selection
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources import examples as sources
from foretell_bench.sources.emulated import host_jobs

_TARGETS: Final = (STEP_TIME, JOB_TIME, DEVICE_TIME, MEMORY, HOST_TIME)  # the last is learned from and not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRows:
    """Examples with a graph and a step time; blind ones are predicted, never fitted on."""

    source: str
    opened: tuple[Example, ...]
    blind: tuple[Example, ...] = ()


Read = Callable[[Path, Say], SourceRows]


def _public(
    source: str, loader: Callable[..., Selection[Example]], opened: int, blind: int, data: Path, say: Say
) -> SourceRows:
    """What is drawn next after the open rows is blind."""
    rows = loader(data, say, opened + blind).items
    return SourceRows(source=source, opened=_usable(rows[:opened]), blind=_usable(rows[opened:]))


def _emulated(source: str, store: Path, say: Say) -> SourceRows:
    return SourceRows(source=source, opened=_usable(host_jobs(store, say).items))


def _h200(source: str, store: Path, say: Say) -> SourceRows:
    return SourceRows(source=source, opened=_usable(sources.h200_steps(store, say, 300, whole=True).items))


def _generated(source: str, store: Path, say: Say) -> SourceRows:
    """Networks that nobody named; those that are blind for the shipped model are blind here."""
    from foretell.store.store import Store

    every = {row.source for row in Store(store).steps("kind = 'step' AND outcome = 'ok' AND world_size = 1")}
    order = sorted(every, key=lambda name: hashlib.sha256(name.encode()).digest())
    opened = [name for name in order if not is_blind(name)][:160]
    blind = [name for name in order if is_blind(name)][:120]
    found = (_usable(sources.h200_steps(store, say, only=some).items) for some in (opened, blind))
    return SourceRows(source=source, opened=next(found), blind=next(found))


STORES: Final[Mapping[str, Read]] = MappingProxyType(
    {
        "box": partial(_emulated, "box"),
        "box-cnns": partial(_emulated, "box-cnns"),
        "h200": partial(_h200, "h200"),
        "h200-generated": partial(_generated, "h200-generated"),
    }
)
_CNN: Final = partial(sources.cnn_many_gpus, precisions=("fp32",))
PUBLIC: Final[Mapping[str, Read]] = MappingProxyType(
    {
        "cnn_many_gpus": partial(_public, "cnn_many_gpus", _CNN, 240, 48),
        "timm_train": partial(_public, "timm_train", sources.timm_train, 100, 60),
        "ddp_step_times": partial(_public, "ddp_step_times", sources.ddp_step_times, 360, 360),
        "llm_h100_sweep": partial(_public, "llm_h100_sweep", sources.llm_h100_sweep, 240, 240),
    }
)
SOURCES: Final = (*STORES, *PUBLIC)
LEARNED_FROM: Final = frozenset(("h200",))  # by the shipped model: here a forecast starts without it, as all others do
OPEN_LEARNED: Final = frozenset(("h200-generated",))  # its open rows, so that only its blind ones judge anybody


def read(source: str, data: Path | None, stores: Path, say: Say = quiet) -> SourceRows:
    if source in STORES:
        return STORES[source](stores / source, say)
    if data is None:
        raise InputError(f"{source} needs the folder of public measurements: --data FOLDER.")
    return PUBLIC[source](data, say)


def key_of(example: Example) -> str:
    """What a row says and what was measured of it, in a few letters."""
    query = example.query
    parts = [query.architecture, str(query.plan), str(query.cluster), query.batch, sorted(query.settings.items())]
    text = json.dumps([*parts, sorted(example.measured.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def seal(examples: Sequence[Example]) -> dict[str, Any]:
    """How many rows, and a hash of all of them in any order."""
    keys = sorted(map(key_of, examples))
    return {"rows": len(keys), "sha256": hashlib.sha256("\n".join(keys).encode()).hexdigest()}


def check(drawn: SourceRows, seals: Path) -> None:
    """Refuses blind rows that are not those that were drawn before anything was compared."""
    known = json.loads(seals.read_text()).get(drawn.source)
    if drawn.blind and known != seal(drawn.blind):
        raise InputError(
            f"the blind rows of {drawn.source} are not those of {seals}: {seal(drawn.blind)} instead of {known}. Take the data "
            "and the libraries that they were drawn with."
        )


def _usable(rows: Sequence[Example]) -> tuple[Example, ...]:
    kept = []
    for e in rows:
        measured = {target: e.measured[target] for target in _TARGETS if e.measured.get(target, 0.0) > 0}
        if STEP_TIME in measured and e.query.graph is not None:
            kept.append(replace(e, measured=measured))
    return tuple(kept)
