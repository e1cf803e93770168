"""A cluster drawn: nodes with their devices, the link inside a node, the network between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foretell.hardware import Cluster
from foretell.report.charts import svg
from foretell.report.page import for_both_widths

_WIDE, _NARROW = 720, 340
_APART, _PAD, _GAP = 14.0, 12.0, 5.0
_NAME, _WIRE = 20.0, 26.0  # heights of a node's name and of the network below a row
_MAX_NODES: Final = 8
_LARGEST: Final = 30.0  # side of a device
_MAX_SQUARES: Final = 144  # of a node that is drawn: a node may have thousands


def drawing(cluster: Cluster) -> str:
    return for_both_widths(_drawn(cluster, _WIDE, 4), _drawn(cluster, _NARROW, 2))


def _drawn(cluster: Cluster, width: int, columns: int) -> str:
    counts = [min(node.count, _MAX_SQUARES) for node in cluster.nodes]
    shown = counts if len(counts) <= _MAX_NODES else counts[: _MAX_NODES - 1]
    boxes = len(shown) + (len(shown) < len(counts))
    columns = min(boxes, columns)
    across = min(max(shown), 8 if max(shown) <= 16 else 12)
    alone = max(2 * _PAD + across * (_LARGEST + _GAP) - _GAP, 80)
    box = (width - _APART * (columns - 1)) / columns if boxes > 1 else min(width, alone)
    side = min(_LARGEST, (box - 2 * _PAD - _GAP * (across - 1)) / across)
    tall = _NAME + _PAD + max(-(-count // across) for count in shown) * (side + _GAP) + 8
    wired = boxes > 1
    row = tall + (_WIRE if wired else 0)
    parts: list[str] = []
    for number in range(boxes):
        left, top = (number % columns) * (box + _APART), (number // columns) * row
        if wired:
            parts.append(_wire(left + box / 2, top + tall, number % columns, box + _APART))
        if number < len(shown):
            parts += _node(left, top, box, tall, number + 1, shown[number], across, side)
        else:
            more = len(counts) - len(shown)
            parts.append(
                f'<rect class="outline" x="{left:.1f}" y="{top:.1f}" width="{box:.1f}" height="{tall:.1f}" rx="5"/>'
            )
            middle = f'x="{left + box / 2:.1f}" y="{top + tall / 2 + 4:.1f}"'
            parts.append(f'<text {middle} text-anchor="middle">{more:,} nodes more</text>')
    described = (
        f"{len(counts):,} nodes, {cluster.devices:,} devices." if wired else f"A node with {cluster.devices} devices."
    )
    height = -(-boxes // columns) * row
    return svg(width, height, "".join(parts), name=f"cluster-{width}", title=str(cluster), description=described)


def _node(
    left: float, top: float, box: float, tall: float, number: int, count: int, across: int, side: float
) -> Iterator[str]:
    yield f'<rect class="node" x="{left:.1f}" y="{top:.1f}" width="{box:.1f}" height="{tall:.1f}" rx="5"/>'
    yield f'<text x="{left + _PAD:.1f}" y="{top + _NAME:.1f}">node {number}</text>'
    for device in range(count):
        x = left + _PAD + (device % across) * (side + _GAP)
        y = top + _NAME + _PAD - 3 + (device // across) * (side + _GAP)
        yield f'<rect class="device" x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" rx="3"/>'
    if count > 1:  # what links them
        y = top + tall - 6
        yield f'<line class="link" x1="{left + _PAD:.1f}" x2="{left + box - _PAD:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _wire(x: float, bottom: float, column: int, across: float) -> str:
    """Down from a node to the network, and along it from the node to the left."""
    at = bottom + _WIRE / 2
    along = f'<line class="wire" x1="{x - across:.1f}" x2="{x:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>' if column else ""
    return f'<line class="wire" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{at:.1f}"/>{along}'
