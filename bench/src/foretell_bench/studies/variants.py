"""What parts of the published systems are worth: variants on the same folds and seeds, with intervals.

ScaleDL with its messages cut, its layers summed and no layers at all, on graphs of a rank with collectives as nodes;
PredictDDL with its embedding alone, random weights, other poolings and no embedding; DNNAbacus with and without tuning.
Kept fit by fit: what is there is not fitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from foretell_bench.sources.examples import FIVE_NETWORKS, five_networks, h200_steps
from foretell_bench.tables import variants
from foretell_bench.tables.classics import NETWORKS, SOURCE
from foretell_bench.tables.methods import ROWS, SOURCES, STORES

FIVE: Final = {"five": False, "five-batches": True}  # name → whether batches are left out, or whole networks
ALL_SOURCES: Final = (*SOURCES, *FIVE, SOURCE)


def run(
    source: str, data: Path | None, stores: Path, out: Path, *, only: Sequence[str], rows: int | None, seeds: int,
    workers: int, on: str, say: Callable[[str], None],
) -> None:  # fmt: skip
    """All variants, or only these, of one source; nothing where its data is not there."""
    if source in FIVE:
        examples, chosen = five_networks(stores / FIVE_NETWORKS, say), only or variants.OF_LAYERS
        variants.run(
            source, examples, out, only=chosen, rows=FIVE[source], seeds=seeds, on=on, workers=workers, say=say
        )
        return
    place = stores / source if source in (*STORES, SOURCE) else data
    if place is None:
        return
    if source == SOURCE:
        examples = [e for e in h200_steps(place, say, only=NETWORKS).items if e.measured]
    else:
        examples = [e for e in SOURCES[source](place, say, rows or ROWS.get(source)).items if e.measured]
    variants.run(source, examples, out, only=only, seeds=seeds, on=on, workers=workers, say=say)
