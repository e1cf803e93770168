"""`--host`: what feeds the devices of a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from foretell.cli.terminal import note, progress

if TYPE_CHECKING:
    from foretell import Cluster

_THIS: Final = "this"  # machine


def read_host(written: str | None) -> str | float | None:
    """As it is written; of this machine, what it takes to dispatch an op."""
    if written != _THIS:
        return written
    from foretell.measure.host_speed import host_speed

    with progress() as report:
        report("measuring how fast this machine issues work")
        found = host_speed("cpu")
    note(f"This machine takes {found.op_seconds * 1e6:.1f} µs per op")
    return found.op_seconds


def compared(written: Sequence[Cluster], host: str | float | None) -> tuple[Cluster, ...]:
    """Clusters of one question, on one host unless they are named; who feeds them is said."""
    from foretell.hardware import host_shared, on_hosts

    found = on_hosts(written, host)
    if host is None and (shared := host_shared(found, written)):
        note(shared)
    return found
