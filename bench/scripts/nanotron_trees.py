"""Grows the trees that judge memory and crashes of the LLM sweep, from the folder of public measurements.

python bench/scripts/nanotron_trees.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from foretell_bench.sources.llm_memory import grow, memory_figures, ship, shipped
from foretell_bench.sources.llm_sweep import SOURCE, all_held


def main(folder: str) -> None:
    rows = all_held(Path(folder))
    ship(grow(rows))
    shipped.cache_clear()
    for figure in memory_figures(SOURCE, rows):
        print(f"{figure.measure}: {figure.value:.3f} of {figure.rows} ({figure.note})")


if __name__ == "__main__":
    main(sys.argv[1])
