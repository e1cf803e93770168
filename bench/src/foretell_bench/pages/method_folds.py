"""Tables of the folds: every method's error of step time on each source, and over Foretell's row by row, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from foretell_bench.sources.drawn import OPEN_LEARNED
from foretell_bench.tables.folds import PRODUCT
from foretell_bench.tables.paired import Folds, Part, Range, together

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_PARTS: Final[dict[str, Part]] = {"open": "opened", "blind": "blind"}


def folds_tables(found: Folds) -> dict[str, Callable[[], Table]]:
    """`folds errors open`, `folds ratios blind`, and so on."""
    made: dict[str, Callable[[], Table]] = {}
    for name, part in _PARTS.items():
        made[f"folds errors {name}"] = partial(errors, found, part)
        made[f"folds ratios {name}"] = partial(ratios, found, part)
    return made


def errors(found: Folds, part: Part) -> Table:
    """Mean error of step time; † marks those that did not answer all rows."""
    sources = _sources(found, part)
    rows = []
    for method in _methods(found):
        cells = [found.mean(source, method, part) for source in sources]
        if any(cells):
            rows.append(
                (
                    method,
                    *(
                        _shown(cell, len(found.measured[source][part]))
                        for cell, source in zip(cells, sources, strict=True)
                    ),
                )
            )
    return ("method", *(f"{source} ({len(found.measured[source][part])})" for source in sources)), rows


def ratios(found: Folds, part: Part) -> Table:
    """Each method's mean error over Foretell's on the same rows; above 1, Foretell's is lower."""
    sources = _sources(found, part)
    rows = []
    for method in _methods(found):
        cells = [None if method == PRODUCT else found.ratio(source, method, PRODUCT, part) for source in sources]
        known = [cell for cell in cells if cell is not None]
        if known:
            lower = sum(cell.low > 1 for cell in known)
            higher = sum(cell.high < 1 for cell in known)
            rows.append((method, together(known), f"{lower} of {len(known)}", str(higher), *map(_ratio, cells)))
    rows.sort(key=lambda row: float(row[1]))
    return ("method", "all", "Foretell surely lower", "surely higher", *sources), rows


def _ratio(cell: Range | None) -> str:
    return "–" if cell is None else f"{cell.value:.2f} ({cell.low:.2f}–{cell.high:.2f})"


def _shown(cell: Range | None, every: int) -> str:
    if cell is None:
        return "–"
    return f"{cell.value:.1%} ({100 * cell.low:.1f}–{100 * cell.high:.1f})" + " †" * (cell.rows < every)


def _sources(found: Folds, part: Part) -> list[str]:
    return [
        source
        for source, rows in found.measured.items()
        if rows[part] and not (part == "opened" and source in OPEN_LEARNED)
    ]


def _methods(found: Folds) -> list[str]:
    return sorted({one.method for one in found.fits}, key=lambda name: (name != PRODUCT, name))
