"""Graphs of the networks that jobs in a box train, beside their measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import foretell
from foretell.capture import capture


def save_graphs(
    folder: Path, network: Callable[[str, int], foretell.Workload], wanted: Iterable[tuple[str, int]]
) -> None:
    """Of each name and batch that has none there."""
    (folder / "graphs").mkdir(parents=True, exist_ok=True)
    for name, batch in wanted:
        path = folder / "graphs" / f"{name}-{batch}.graph"
        if not path.exists():
            capture(network(name, batch)).save(path)
            print(path.name, flush=True)
