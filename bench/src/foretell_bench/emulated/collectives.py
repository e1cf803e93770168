"""Collectives on emulated hosts: a profile's links fitted on a few times, compared at sizes and hosts they had not seen.

    python -m foretell_bench.emulated.collectives OUT      one rank, which measures every size and kind

The forecast takes every link to have the listed rate until it is fitted on three sizes of all-reduce among a few hosts.
Errors are of all-reduce, all-gather and broadcast at other sizes, among every number of hosts.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from foretell.learn.adapt.collectives import Timed, fit_collectives, timed
from foretell.measure.record import Record
from foretell.profile import AS_LISTED, Links
from foretell.units import KIB
from foretell_bench.emulated import namespaces
from foretell_bench.emulated.launch import started
from foretell_bench.emulated.steps import read
from foretell_bench.sources.emulated import emulated_cluster

FIT_SIZES: Final = tuple(KIB * 4**i for i in (1, 5, 7))  # 4 KiB, 1 MiB, 16 MiB
TEST_SIZES: Final = tuple(KIB * 2**i for i in (0, 5, 8, 11, 13))  # 1, 32, 256 KiB, 2, 8 MiB
LONG: Final = 250_000  # bytes from which the wire decides, and not the scheduler of a machine that is all hosts
KINDS: Final = ("all-reduce", "all-gather", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Mean errors of one kind among so many hosts, with links as listed and as fitted."""

    rate: float  # bits per second
    hosts: int
    kind: str
    long: bool
    bandwidth: float  # factor that was fitted
    latency: float  # factor that was fitted
    before: float
    after: float


def measure_rank(out: str) -> None:
    """One rank: everything that is compared, on the links as they are."""
    from foretell.measure.ranks.collectives import measure_collectives
    from foretell.measure.ranks.world import join

    with join(backend="gloo") as world:
        records = measure_collectives(world, sizes=sorted({*FIT_SIZES, *TEST_SIZES}), kinds=KINDS, seconds=1.0)
        if records:
            Path(out).write_text("".join(record.to_line() + "\n" for record in records), encoding="utf-8")


def measured(hosts: int, rate: float) -> list[Record]:
    with (
        tempfile.TemporaryDirectory(prefix="foretell-hosts-") as folder,
        namespaces.cluster(hosts, bits_per_second=rate) as made,
    ):
        out = Path(folder) / "out.jsonl"
        with started(made, ["-m", "foretell_bench.emulated.collectives", str(out)], Path(folder)) as programs:
            programs.wait()
        return read(out)


def compare(times: Mapping[int, Sequence[Timed]], rate: float, fit_hosts: int) -> Iterator[Row]:
    """`times` by number of hosts, of links that truly have this rate."""
    reduces = [t for t in times[fit_hosts] if t.collective.kind == "all-reduce"]
    few = [t for t in reduces if t.collective.nbytes in FIT_SIZES]
    links = fit_collectives(few, name="emulated").links  # none where times left out say that it does not help
    for hosts, every in times.items():
        unseen = [t for t in every if not _was_fitted_on(t) and t.collective.group.size == hosts]
        for kind, long in itertools.product(KINDS, (True, False)):
            own = [t for t in unseen if t.collective.kind == kind and (t.collective.nbytes >= LONG) == long]
            yield Row(
                rate=rate, hosts=hosts, kind=kind, long=long, bandwidth=links.bandwidth / links.neighbours,
                latency=links.latency, before=mean_error(own, AS_LISTED), after=mean_error(own, links),
            )  # fmt: skip


def run(rate: float, hosts: Sequence[int], *, fit_hosts: int, listed: float) -> list[Row]:
    cluster = emulated_cluster(2, listed / 8)
    return list(
        compare({n: timed((r.step for r in measured(n, rate)), cluster) for n in hosts}, rate, fit_hosts)
    )  # fmt: skip


def _was_fitted_on(each: Timed) -> bool:
    """Of three hosts, bytes are rounded to whole shares."""
    return any(abs(each.collective.nbytes - nbytes) < 64 for nbytes in FIT_SIZES)


def mean_error(times: Sequence[Timed], links: Links) -> float:
    return fmean(abs(each.predicted(links) / each.seconds - 1) for each in times)


if __name__ == "__main__":
    measure_rank(sys.argv[1])
