"""What is kept beside a graph's file."""

from __future__ import annotations

from typing import Any

from foretell.graph import Graph
from foretell.text import plain


def about(graph: Graph) -> dict[str, Any]:
    """What is kept beside a graph's file."""
    return {
        "hash": graph.content_hash,
        "name": plain(graph.name),
        "ops": len(graph.ops),
        "training": graph.training,
        "precision": graph.precision.arithmetic,
    }
