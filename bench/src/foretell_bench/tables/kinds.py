"""`foretell bench accuracy --split kinds`: hand-written networks of the kinds that were predicted worst, open and blind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from foretell.cost.model import DEFAULT, load_model
from foretell.design.blind import is_blind
from foretell.errors import InputError
from foretell.learn.fit import families_of
from foretell_bench.errors import Errors
from foretell_bench.tables.accuracy import opened
from foretell_bench.tables.figures import Figure
from foretell_bench.tables.generated import Bars, BlindStep, by_kind, forecast_row, judged_rows, of_part

SPLIT: Final = "kinds"
OPEN: Final = "open kinds"  # fits may have seen them
BLIND: Final = "blind kinds"
_BARS: Final = Bars(device={"mean error": 0.065, "median error": 0.035}, allocated=0.025, reserved=0.05)


def predict(
    paths: Sequence[Path], model: str | None = None, *, progress: Callable[[str], None] = lambda text: None
) -> list[BlindStep]:
    """Every measured step of these networks, by a model as it is."""
    fitted, kinds = load_model(model or DEFAULT), families_of(*opened(paths))
    found = [
        forecast_row(row, graph, fitted, part=BLIND if is_blind(row.source) else OPEN, kind=kinds.get(row.source, ""))
        for row, graph in judged_rows(paths, fitted.device, _is_written_by_hand, progress)
    ]
    if not found:
        raise InputError("no store has steps of the hand-written kinds. Give --data bench/data/h200-kinds.")
    return found


def _is_written_by_hand(source: str) -> bool:
    return ".kinds." in source.partition(":")[0]


def figures(steps: Sequence[BlindStep]) -> list[Figure]:
    """Both parts, and the device time of each kind in each."""
    found: list[Figure] = []
    for part in (BLIND, OPEN):
        own = [s for s in steps if s.part == part]
        found += of_part(part, own, _BARS)
        found += [
            Figure(source=f"{part}: {kind}: {what}", measure="mean error", value=errors.mean, rows=errors.count)
            for kind, what, errors in _of_kinds(own)
        ]
    return found


def _of_kinds(steps: Sequence[BlindStep]) -> list[tuple[str, str, Errors]]:
    device = [(kind, "device time", errors) for kind, errors, _ in by_kind(steps)]
    reserved = []
    for kind in sorted({s.kind for s in steps}):
        known = [s.reserved for s in steps if s.kind == kind and s.reserved[0]]
        if known:
            reserved.append((kind, "peak reserved", Errors.of([p for _, p in known], [m for m, _ in known])))
    return device + reserved
