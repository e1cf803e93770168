"""Sources whose code has moved: stores keep the name a point was measured under, and hash it into the point's key."""

from __future__ import annotations

from typing import Final

# where it was when it was first measured → where it is now
_MOVED: Final = (
    ("foretell.measure.pool:", "foretell.design.pool.operators:"),
    ("foretell.measure.bundles:", "foretell_bench.bundles:"),
    ("foretell.design.generated.operators:", "foretell_bench.generated_operators:"),
    ("benchmarks/memory/workloads.py:", "foretell_bench.measuring.memory.workloads:"),
)


def current_source(source: str) -> str:
    """The name to load a stored source by."""
    return next((now + source.removeprefix(before) for before, now in _MOVED if source.startswith(before)), source)


def stored_source(source: str) -> str:
    """The name that stores know a source by."""
    return next((before + source.removeprefix(now) for before, now in _MOVED if source.startswith(now)), source)
