"""Fits how networks between nodes perform in collectives as they grow, from figures that operators published.

No public set measures InfiniBand or RoCE, so these are single figures from documents and issues, each named below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from foretell.cost.collectives import collective_seconds
from foretell.hardware import Cluster, Fabric, Link, Protocol, fabric, fabric_of
from foretell.hardware.catalog import SHIPPED
from foretell.program import Collective, Group
from foretell.units import GIB, KIB, MIB
from foretell_bench.fitting.fabrics import as_toml

SOURCE: Final = "fitted by `foretell bench fit networks` on published figures of NCCL (docs/accuracy/collectives.md); estimate: units"
Floats = npt.NDArray[np.float64]
PROTOCOL: Final = ("efficiency", "knee", "growth")  # what is fitted of a protocol
_WIRE: Final = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # bus bandwidth counts so many passes
_SIGMA: Final = 0.3  # of a logarithm: how far a figure of one cluster is from another's


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Bus bandwidth in GB/s, or microseconds, of one collective on one cluster."""

    source: str
    cluster: str
    kind: str
    nbytes: int
    busbw: float | None = None
    micros: float | None = None

    @property
    def collective(self) -> Collective:
        group = Group(size=Cluster.parse(self.cluster).devices)
        return Collective(kind=self.kind, nbytes=self.nbytes, group=group, name="", starts_after=0, waited_for_by=0)

    @property
    def seconds(self) -> float:
        if self.micros is not None:
            return self.micros * 1e-6
        ranks = self.collective.group.size
        assert self.busbw is not None
        return _WIRE[self.kind] * (ranks - 1) / ranks * self.nbytes / (self.busbw * 1e9)


# github.com/stas00/ml-engineering, network/benchmarks/README.md: 4 nodes of 8 B200. Between these sizes NCCL runs a protocol
# for short messages, at a part of the rate, which the formula has no term for.
_B200: Final = {
    32 * KIB: 0.65, 32 * MIB: 142.9, 64 * MIB: 197.8, 128 * MIB: 260.5, 256 * MIB: 283.2, 512 * MIB: 309.9, 2 * GIB: 371.3,
    8 * GIB: 376.1,
}  # fmt: skip
_REDUCE_SCATTER: Final = {4: 360, 8: 345, 16: 320, 32: 300, 64: 280, 128: 260}  # NVIDIA/nccl#1229, by nodes of 8 H100
INFINIBAND: Final = (
    *(
        Published(source="ml-engineering", cluster="4x8xb200@ib-400g", kind="all-reduce", nbytes=n, busbw=b)
        for n, b in _B200.items()
    ),
    *(
        Published(source="nccl#1229", cluster=f"{n}x8xh100-sxm@ib-400g", kind="reduce-scatter", nbytes=8 * GIB, busbw=b)
        for n, b in _REDUCE_SCATTER.items()
    ),
    Published(source="nccl#1244", cluster="2x8xh20@ib-400g", kind="all-reduce", nbytes=8, micros=47.6),
    Published(source="nccl#1469", cluster="16x8xh100-sxm@ib-400g", kind="all-reduce", nbytes=8, micros=62),
    Published(source="nccl#1469", cluster="16x8xh100-sxm@ib-400g", kind="all-reduce", nbytes=64 * MIB, busbw=150),
    Published(source="nccl#1218", cluster="32x8xh100-sxm@ib-400g", kind="all-reduce", nbytes=2 * GIB, busbw=340),
    Published(source="nccl#1218", cluster="32x8xh100-sxm@ib-400g", kind="all-gather", nbytes=2 * GIB, busbw=200),
    Published(source="nccl-tests#283", cluster="248x8xh200@ib-400g", kind="all-reduce", nbytes=512 * MIB, busbw=350),
)
ROCE: Final = (
    Published(source="nccl#1221", cluster="4x8xh100-sxm@roce-400g", kind="all-reduce", nbytes=8 * GIB, busbw=320),
    Published(source="nccl#495", cluster="2x8xa100-80g-sxm@roce-100g", kind="all-reduce", nbytes=8 * GIB, busbw=75),
    *(
        Published(source="nccl-tests#169", cluster=f"{n}x8xa100-80g-sxm@roce-100g", kind="all-reduce", nbytes=8 * GIB, busbw=b)
        for n, b in {3: 70, 4: 58, 5: 58, 6: 40}.items()
    ),
)  # fmt: skip
FIGURES: Final = {"rdma": INFINIBAND, "roce": ROCE}
HASHED: Final = {  # how many times slower flows placed by a hash are than the same network with none that collide
    "Meta, RDMA over Ethernet for Distributed AI Training at Meta Scale, SIGCOMM 2024": 1.4,
    "Baidu, how to eliminate network hash collisions in large-model training": 100 / 70,
}


def made(values: Floats, start: Fabric) -> Fabric:
    startup, reduce, gather, knee, tree, ring = (float(x) for x in np.exp(values))
    whole = Protocol(efficiency=min(reduce, 0.98), knee=knee, growth=tree)
    parts = Protocol(efficiency=min(gather, 0.98), knee=knee, growth=ring)
    return replace(
        start, startup=startup, source=SOURCE,
        protocols={"all-reduce": whole, "all-gather": parts, "reduce-scatter": parts, "all-to-all": parts,
                   "send-recv": replace(parts, growth=0.0, knee=start.protocols["send-recv"].knee)},
    )  # fmt: skip


def logs(rows: Sequence[Published], tried: Fabric) -> Floats:
    def find(way: Link) -> Fabric:
        return tried if way.kind == "between" else fabric_of(way)

    return np.array(
        [np.log(collective_seconds(r.collective, Cluster.parse(r.cluster), find) / r.seconds) for r in rows]
    )


def infiniband() -> Fabric:
    """Every number from all figures together; what they do not show stays near where it starts."""
    start = fabric("rdma")
    first = np.log([8.0, 0.94, 0.94, 20.0, 0.02, 0.08])

    def residuals(values: Floats) -> Floats:
        return np.concatenate([logs(INFINIBAND, made(values, start)), 0.05 * (values - first)])

    return made(least_squares(residuals, first, loss="soft_l1", f_scale=_SIGMA, diff_step=1e-3).x, start)


def roce(like: Fabric) -> Fabric:
    """As InfiniBand, but for how much of its rate is left to flows that a hash puts on the same link: the median source's."""
    found = logs(ROCE, like)
    by_source = {
        row.source: np.median([x for r, x in zip(ROCE, found, strict=True) if r.source == row.source]) for row in ROCE
    }
    slower = float(np.exp(np.median([*(-x for x in by_source.values()), *np.log(list(HASHED.values()))])))
    protocols = {kind: replace(p, efficiency=p.efficiency / slower) for kind, p in like.protocols.items()}
    return replace(
        like, name="roce", title="RoCE: one port a device, past the host, flows spread by a hash", protocols=protocols
    )


def fit_all() -> dict[str, Fabric]:
    """By name, with the error that nine of ten figures are within."""
    fitted = infiniband()
    fabrics = {"rdma": replace(fitted, title="InfiniBand, EFA: one port a device, past the host"), "roce": roce(fitted)}
    return {
        name: replace(each, error=float(np.quantile(abs(logs(FIGURES[name], each)), 0.9)))
        for name, each in fabrics.items()
    }


def report(fabrics: Mapping[str, Fabric], say: Callable[[str], None]) -> None:
    say("| source | cluster | collective | bytes | published ms | error |\n|---|---|---|---|---|---|")
    for name, rows in FIGURES.items():
        for row, log in zip(rows, logs(rows, fabrics[name]), strict=True):
            shown = f"{row.nbytes:,} | {row.seconds * 1e3:.3g} | {np.expm1(log):+.0%}"
            say(f"| {row.source} | {row.cluster} | {row.kind} | {shown} |")
    for name, each in fabrics.items():
        say(f"\n# fabrics/{name}.toml\n{as_toml(each, PROTOCOL)}")


def write(fabrics: Mapping[str, Fabric]) -> None:
    for name, each in fabrics.items():
        (SHIPPED / "fabrics" / f"{name}.toml").write_text(as_toml(each, PROTOCOL))
