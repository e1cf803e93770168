"""The tables behind every claim: public measurements beside what Foretell says, one file a source."""

from foretell.bench.distributed import SOURCES, run
from foretell.bench.figures import Figure

__all__ = ["SOURCES", "Figure", "run"]
