"""What parts of the published systems are worth: variants on the same folds and seeds, with intervals.

    python bench/scripts/methods_variants.py --data FOLDER [--source box] [--only "ScaleDL, messages cut"] [--seeds 5]
        [--workers 16] [--on cuda]
    python bench/scripts/methods_variants.py --source five --source five-batches   networks or batches of ScaleDL's five left out
    python bench/scripts/methods_variants.py --show

ScaleDL with its messages cut, its layers summed and no layers at all, on graphs of a rank with collectives as nodes;
PredictDDL with its embedding alone, random weights, other poolings and no embedding; DNNAbacus with and without tuning.
Kept fit by fit in bench/results/variants.json: what is there is not fitted again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "src")]

from foretell_bench.sources.examples import FIVE_NETWORKS, five_networks, h200_steps
from foretell_bench.tables import variants
from foretell_bench.tables.classics import NETWORKS, SOURCE
from foretell_bench.tables.methods import ROWS, SOURCES, STORES

FIVE = {"five": False, "five-batches": True}  # name → whether batches are left out, or whole networks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="public measurements; without it, the project's own alone")
    parser.add_argument("--source", action="append", choices=(*SOURCES, *FIVE, SOURCE), help="only this data")
    parser.add_argument("--only", action="append", choices=variants.VARIANTS, help="only this variant")
    parser.add_argument("--rows", type=int, help="at most so many rows of a source")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="fits that run side by side")
    parser.add_argument("--on", default="cpu", help="where ScaleDL's networks are trained: cpu or cuda")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "variants.json")
    parser.add_argument("--show", action="store_true", help="what is there, nothing computed")
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    how = {"seeds": options.seeds, "on": options.on, "workers": options.workers}
    for source in (options.source or (*SOURCES, *FIVE, SOURCE)) if not options.show else ():
        if source in FIVE:
            examples = five_networks(HERE / "data" / FIVE_NETWORKS, say)
            only, rows = options.only or variants.OF_LAYERS, FIVE[source]
            variants.run(source, examples, options.out, only=only, rows=rows, **how, say=say)
            continue
        place = HERE / "data" / source if source in (*STORES, SOURCE) else options.data
        if place is None:
            continue
        drawn = options.rows or ROWS.get(source)
        taken = SOURCES[source](place, say, drawn) if source in SOURCES else h200_steps(place, say, only=NETWORKS)
        examples = [e for e in taken.items if e.measured]
        variants.run(source, examples, options.out, only=options.only or (), **how, say=say)
    for row in variants.table(variants.read(options.out)):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
