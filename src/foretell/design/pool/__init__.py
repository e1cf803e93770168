"""The pool: tiny workloads of one operator each, and the shapes of them worth a measurement."""

from typing import Final

POOL: Final = "foretell.design.pool.operators:"  # and the name of an operator: the SOURCE of a point of the pool
