"""Single figures of NCCL that operators published: links inside nodes that no public set covers, and networks between nodes.

Each is a bus bandwidth or a time of one collective on one cluster, with where it was published. What was measured through
captured graphs is without the 2.5 µs that lie between replayed collectives (ml-engineering, network/benchmarks).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foretell.hardware import Cluster
from foretell.program import Collective, Group
from foretell.units import GIB, KIB, MIB, Bytes, Seconds

_WIRE: Final = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}  # what bus bandwidth counts
_MB: Final = MIB
_REPLAYED: Final = 2.5  # µs between collectives of a captured graph


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
    def seconds(self) -> Seconds:
        if self.micros is not None:
            return self.micros * 1e-6
        ranks = self.collective.group.size
        assert self.busbw is not None
        return _WIRE[self.kind] * (ranks - 1) / ranks * self.nbytes / (self.busbw * 1e9)


def weights(rows: Sequence[Published]) -> list[float]:
    """A source counts as the square root of its figures, however many it printed."""
    count = Counter(row.source for row in rows)
    return [float(count[row.source]) ** -0.25 for row in rows]


def _rates(source: str, cluster: str, found: Mapping[Bytes, float], kind: str = "all-reduce") -> Iterable[Published]:
    return (Published(source=source, cluster=cluster, kind=kind, nbytes=n, busbw=b) for n, b in found.items())


def _times(
    source: str, cluster: str, found: Mapping[Bytes, float], kind: str = "all-reduce", less: float = 0.0
) -> Iterable[Published]:
    return (Published(source=source, cluster=cluster, kind=kind, nbytes=n, micros=t - less) for n, t in found.items())


ML_ENGINEERING: Final = "ml-engineering"  # github.com/stas00/ml-engineering, network/README.md and network/benchmarks

# Inside nodes of H200 and A100: sizes and numbers of devices that the public sets do not have.
NVSWITCH: Final = (
    *_rates(ML_ENGINEERING, "4xh200", {8 * GIB: 363.3}),
    *_rates(ML_ENGINEERING, "5xh200", {8 * GIB: 414.2}),
    *_rates(ML_ENGINEERING, "6xh200", {8 * GIB: 435.6}),
    *_rates(ML_ENGINEERING, "7xh200", {8 * GIB: 460.0}),
    *_rates(ML_ENGINEERING, "8xh200", {64 * MIB: 369.8, 1 * GIB: 464.0, 8 * GIB: 475.2}),
    *_rates(ML_ENGINEERING, "8xh200", {16 * GIB: 361.4}, "all-gather"),
    *_rates(ML_ENGINEERING, "8xh200", {16 * GIB: 362.9}, "reduce-scatter"),
    *_rates(ML_ENGINEERING, "8xa100-80g-sxm", {16 * GIB: 234.9}),
)
# B200, B300 and GB200. Times of one node below 16 MiB are the host's in ml-engineering's table, and left out.
NVLINK_5: Final = (
    *_rates(ML_ENGINEERING, "4xb200", {8 * GIB: 673.2}),
    *_rates(ML_ENGINEERING, "5xb200", {8 * GIB: 677.8}),
    *_rates(ML_ENGINEERING, "6xb200", {8 * GIB: 778.2}),
    *_rates(ML_ENGINEERING, "7xb200", {8 * GIB: 811.2}),
    *_rates(ML_ENGINEERING, "8xb200", {16 * MIB: 255.0, 64 * MIB: 400.6, 256 * MIB: 646.1, 1 * GIB: 723.3, 8 * GIB: 839.1}),
    *_rates("nccl#1807", "8xb200", {8 * GIB: 830.0}),
    *_rates("coreweave/nccl-tests#43", "72xgb200", {512 * MIB: 586.1, 1 * GIB: 681.2, 4 * GIB: 839.2, 8 * GIB: 834.6}),
    *_times("vllm#42324", "2xb200", {512 * KIB: 13, 1 * MIB: 17, 3 * MIB // 2: 19}, less=_REPLAYED),
    *_times(
        "vllm#37756", "6xb300",
        {32 * KIB: 24, 64 * KIB: 25, 128 * KIB: 26, 256 * KIB: 27, 512 * KIB: 27, 1 * MIB: 27, 2 * MIB: 32, 4 * MIB: 46,
         8 * MIB: 80, 16 * MIB: 83, 32 * MIB: 141, 64 * MIB: 219, 128 * MIB: 393},
        less=_REPLAYED,
    ),
)  # fmt: skip
# The part of NVLink's rate that long all-reduces reach on B200, over that on H200: 8 GiB on eight devices by one author, as rings
# (682.2 of 900 GB/s, 365.6 of 450) and by the switch (838.0 and 473.1).
NVLINK_5_RATES: Final = {"ring": 682.2 / 900 / (365.6 / 450), "in-switch": 838.0 / 900 / (473.1 / 450)}
# RTX PRO 6000 on servers with one and two sockets, with PCI Express switches and without, as NCCL finds them.
_RTX6K: Final = "rtx6kpro"  # github.com/voipmonitor/rtx6kpro, hardware/*.md, each page one system
PCIE: Final = (
    *_times("gardenlinux#4556", "2xrtx-pro-6000@pcie-5", {1 * KIB: 9.09}),
    *_times(
        "gardenlinux#4556", "4xrtx-pro-6000@pcie-5",
        {2 * KIB: 14.7, 8 * KIB: 15.2, 32 * KIB: 16.7, 128 * KIB: 27.3, 512 * KIB: 84.9, 1 * MIB: 102.1, 2 * MIB: 192.3},
    ),
    *_times(
        f"{_RTX6K}, ESC8000A", "4xrtx-pro-6000@pcie-5",
        {4 * KIB: 15.4, 16 * KIB: 19.7, 64 * KIB: 19.1, 256 * KIB: 46.5, 512 * KIB: 87.1, 1 * MIB: 109.2, 2 * MIB: 152.1,
         32 * MIB: 1790},
    ),
    *_times(f"{_RTX6K}, ESC8000A", "8xrtx-pro-6000@pcie-5", {32 * MIB: 2976}),
    *_times(
        f"{_RTX6K}, EPYC 9124", "8xrtx-pro-6000@pcie-5",
        {1 * KIB: 18.0, 4 * KIB: 28.2, 16 * KIB: 25.7, 64 * KIB: 27.0, 256 * KIB: 55.4, 512 * KIB: 79.6, 1 * MIB: 129.7},
    ),
    *_times(f"{_RTX6K}, switches", "8xrtx-pro-6000@pcie-5", {1 * KIB: 24.1, 32 * KIB: 24.5, 256 * KIB: 28.0}),
    *_rates(f"{_RTX6K}, switches", "8xrtx-pro-6000@pcie-5", {32 * MIB: 40.1}),
    *_rates(f"{_RTX6K}, Turin", "8xrtx-pro-6000@pcie-5", {32 * MIB: 22.2}),
)  # fmt: skip

# 4 nodes of 8 B200. Between these sizes NCCL runs a protocol for short messages, at a part of the rate, which the formula has
# no term for.
_B200: Final = {32 * MIB: 142.9, 64 * MIB: 197.8, 128 * MIB: 260.5, 256 * MIB: 283.2, 512 * MIB: 309.9, 2 * GIB: 371.3,
                8 * GIB: 376.1}  # fmt: skip
_REDUCE_SCATTER: Final = {4: 360, 8: 345, 16: 320, 32: 300, 64: 280, 128: 260}  # by nodes of 8 H100
_H20: Final = {8 * MIB: 107.4, 32 * MIB: 210.8, 64 * MIB: 268.9, 128 * MIB: 227.1, 256 * MIB: 244.9, 512 * MIB: 312.8}
INFINIBAND: Final = (
    *_rates(ML_ENGINEERING, "4x8xb200@ib-400g", _B200),
    *(
        Published(source="nccl#1229", cluster=f"{n}x8xh100-sxm@ib-400g", kind="reduce-scatter", nbytes=8 * GIB, busbw=b)
        for n, b in _REDUCE_SCATTER.items()
    ),
    *_times("nccl#1244", "2x8xh20@ib-400g", {8: 47.6}),
    *_rates("nccl#1244", "2x8xh20@ib-400g", _H20),
    *_times("nccl#1469", "16x8xh100-sxm@ib-400g", {8: 62}),
    *_rates("nccl#1469", "16x8xh100-sxm@ib-400g", {64 * MIB: 150}),
    *_rates("nccl#1218", "32x8xh100-sxm@ib-400g", {2 * GIB: 340}),
    *_rates("nccl#1218", "32x8xh100-sxm@ib-400g", {2 * GIB: 200}, "all-gather"),
    *_rates("nccl-tests#283", "248x8xh200@ib-400g", {512 * MIB: 350}),
    *_rates("nccl-tests#309", "2x8xh100-sxm@ib-400g", {16 * GIB: 470}),
    *_rates("nccl-tests#309", "4x8xh100-sxm@ib-400g", {16 * GIB: 365.8}),
    *_times("nccl-tests#119", "3x8xa100-40g-sxm@ib-100g", {125 * MIB: 2604.6}),
)
ROCE: Final = (
    *_rates("nccl#1221", "4x8xh100-sxm@roce-400g", {8 * GIB: 320}),
    *_rates("nccl#495", "2x8xa100-80g-sxm@roce-100g", {8 * GIB: 75}),
    *(
        Published(source="nccl-tests#169", cluster=f"{n}x8xa100-80g-sxm@roce-100g", kind="all-reduce", nbytes=8 * GIB, busbw=b)
        for n, b in {3: 70, 4: 58, 5: 58, 6: 40}.items()
    ),
)  # fmt: skip
# github.com/crazyguitar/aws-gpu-communication-benchmark: nodes of 8 H100 of AWS (p5); bytes in MiB by nodes.
_P5: Final = {
    2: {32: 147.3, 128: 305.1, 256: 364.5, 1024: 435.1, 8192: 477.7},
    4: {32: 95.4, 128: 229.5, 256: 273.3, 1024: 280.3, 8192: 357.0},
    8: {32: 86.7, 128: 156.3, 256: 232.1, 1024: 274.5, 8192: 355.4},
    16: {32: 74.9, 128: 129.2, 256: 148.1, 1024: 269.2, 8192: 356.3},
    32: {32: 66.3, 128: 115.8, 256: 138.0, 1024: 220.1, 8192: 321.1},
}
_P5_ALL_TO_ALL: Final = {2: {64: 62.2, 512: 75.8, 2048: 79.3}, 4: {64: 43.1, 512: 53.8, 2048: 54.1},
                         8: {64: 34.7, 512: 46.6, 2048: 49.6}, 16: {64: 26.1, 512: 40.1, 2048: 44.2},
                         32: {64: 22.9, 512: 33.1, 2048: 40.8}}  # fmt: skip
_ULTRA_SCALE: Final = {2: 362, 4: 160, 8: 100, 16: 85, 32: 65}  # medians of 256 MB on a shared cluster, by nodes
EFA: Final = (
    *(p for n, found in _P5.items()
      for p in _rates("aws-gpu-communication-benchmark", f"{n}x8xh100-sxm@efa-400g", {m * _MB: b for m, b in found.items()})),
    *(p for n, found in _P5_ALL_TO_ALL.items()
      for p in _rates("aws-gpu-communication-benchmark", f"{n}x8xh100-sxm@efa-400g", {m * _MB: b for m, b in found.items()},
                      "all-to-all")),
    *(p for n, b in _ULTRA_SCALE.items()
      for p in _rates("ultrascale-playbook", f"{n}x8xh100-sxm@efa-400g", {256 * 10**6: b})),
    *_rates(ML_ENGINEERING, "4x8xb200@efa-400g", {64 * MIB: 156.7, 256 * MIB: 229.1, 512 * MIB: 326.9, 2 * GIB: 372.4,
                                                  8 * GIB: 380.4}),
    *_rates(ML_ENGINEERING, "4x8xh200@efa-400g", {4 * GIB: 364.9}),
    *_times("dstack#3961", "2x8xb200@efa-400g", {8: 52.6, 1 * KIB: 58.3, 8 * KIB: 67.6}),
)  # fmt: skip
FIGURES: Final = {"rdma": INFINIBAND, "roce": ROCE, "efa": EFA}
HASHED: Final = {  # how many times slower flows placed by a hash are than the same network with none that collide
    "Meta, RDMA over Ethernet for Distributed AI Training at Meta Scale, SIGCOMM 2024": 1.4,
    "Baidu, how to eliminate network hash collisions in large-model training": 100 / 70,
}
