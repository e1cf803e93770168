"""Which host feeds boards: the one they are usually sold with, one that is named, and for a comparison one for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foretell.errors import InputError, check_number
from foretell.hardware import catalog
from foretell.hardware.cluster import Cluster
from foretell.hardware.device import Host
from foretell.units import parse_seconds, show_seconds

USUAL: Final = "usual"  # each board's own
_QUICKEST, _SLOWEST = 1e-7, 1.0  # seconds to dispatch an op


def host_named(given: str | float) -> Host | None:
    """A host of the catalog by its name, or one that takes so long for an op: seconds, or `12us`. None: the usual ones."""
    if given == USUAL:
        return None
    if isinstance(given, str) and not given[:1].isdigit():
        return catalog.host(given)
    seconds = parse_seconds(given)
    allowed = "seconds to dispatch an op, from 1e-7 to 1, or like '12us'"
    check_number("host", seconds, allowed, InputError, least=_QUICKEST, most=_SLOWEST)
    name = f"{show_seconds(seconds)} per op"
    return Host(name=name, title="A host as given", cores=1, op_seconds=seconds, source="given")


def on_hosts(clusters: Sequence[Cluster], given: str | float | None = None) -> tuple[Cluster, ...]:
    """Clusters of one question on the host that is named; without one, all on the slowest of their usual ones.

    So a board is not slower than another because of what it is sold with. Instances have hosts of their own, and so have
    processors and boards that a host is built into.
    """
    host = _slowest(clusters) if given is None else host_named(given)
    if host is None:
        return tuple(clusters)
    return tuple(c if given is None and not _is_plugged_in(c) else c.on_host(host) for c in clusters)


def host_shared(clusters: Sequence[Cluster], before: Sequence[Cluster]) -> str:
    """Which host clusters were put on that did not name it, for whoever reads the answer; "" where none was."""
    moved = next((c.nodes[0].host for c, own in zip(clusters, before, strict=True) if c != own), None)
    if moved is None:
        return ""
    return (
        f"Compared on one host, {moved.name}, {show_seconds(moved.op_seconds)} per op: the slowest that these boards are sold "
        "with. --host NAME takes another, --host usual each board's own."
    )


def _slowest(clusters: Sequence[Cluster]) -> Host | None:
    """None where all have the same."""
    hosts = {node.host.name: node.host for c in clusters if _is_plugged_in(c) for node in c.kinds}
    return max(hosts.values(), key=lambda host: (host.op_seconds, host.name)) if len(hosts) > 1 else None


def _is_plugged_in(cluster: Cluster) -> bool:
    """Whether other hosts could feed it."""
    own = (node.host.built_in or node.device.kind == "cpu" for node in cluster.kinds)
    return cluster.host is None and not cluster.is_rented and not any(own)
