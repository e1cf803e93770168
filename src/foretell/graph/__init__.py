"""What one step runs: ops in order, the tensors they read and write, the storages those lie in; and its file."""

from foretell.graph.file import VERSION
from foretell.graph.graph import Graph
from foretell.graph.types import ITEM_BYTES, PHASES, ROLES, Caveat, Input, Layout, Op, Signature, Storage, Tensor, Value

__all__ = [
    "ITEM_BYTES", "PHASES", "ROLES", "VERSION", "Caveat", "Graph", "Input", "Layout", "Op", "Signature", "Storage", "Tensor",
    "Value",
]  # fmt: skip
