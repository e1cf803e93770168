"""Fits how networks between nodes perform in collectives as they grow, from figures that operators published.

No public set measures InfiniBand, EFA or RoCE, so these are figures from documents and issues, each named in `published`.
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
from foretell.hardware.fabric import ROWS_ONCE
from foretell_bench.fitting.fabrics import as_toml, shown_by_size, with_source
from foretell_bench.fitting.published import EFA, FIGURES, HASHED, INFINIBAND, ROCE, Published, weights

SOURCE: Final = "fitted by `foretell bench fit networks` on published figures of NCCL (docs/accuracy/collectives.md); estimate: units"
Floats = npt.NDArray[np.float64]
PROTOCOL: Final = ("efficiency", "knee")  # what is fitted of a protocol
_SIGMA: Final = 0.3  # of a logarithm: how far a figure of one cluster is from another's
HOP: Final = 5.2  # how many times longer a hop is for long messages, as NCCL's own model has it (src/graph/tuning.cc: 14 and 2.7 µs)
_KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """What is fitted: the startup, hops of long messages, one knee, and the efficiency of each set of kinds."""

    start: Fabric
    sets: Sequence[Sequence[str]]

    def first(self) -> Floats:
        return np.log([8.0, HOP, 20.0, *[0.9] * len(self.sets)])

    def made(self, values: Floats) -> Fabric:
        startup, hop, knee, *efficiencies = (float(x) for x in np.exp(values))
        protocols = {
            kind: Protocol(efficiency=min(efficiency, 0.98), knee=knee)
            for kinds, efficiency in zip(self.sets, efficiencies, strict=True)
            for kind in kinds
        }
        kept = {kind: p for kind, p in self.start.protocols.items() if kind in ("send-recv", ROWS_ONCE)}
        return replace(self.start, startup=startup, hop=hop, source=SOURCE, protocols={**protocols, **kept})


def logs(rows: Sequence[Published], tried: Fabric) -> Floats:
    def find(way: Link) -> Fabric:
        return tried if way.kind == "between" else fabric_of(way)

    return np.array(
        [np.log(collective_seconds(r.collective, Cluster.parse(r.cluster), find) / r.seconds) for r in rows]
    )


def _fitted(numbers: _Numbers, rows: Sequence[Published]) -> Fabric:
    """Every number from all figures together; what they do not show stays near where it starts."""
    first, counts = numbers.first(), np.array(weights(rows))

    def residuals(values: Floats) -> Floats:
        return np.concatenate([counts * logs(rows, numbers.made(values)), 0.05 * (values - first)])

    return numbers.made(least_squares(residuals, first, loss="soft_l1", f_scale=_SIGMA, diff_step=1e-3).x)


def infiniband(rows: Sequence[Published] = INFINIBAND) -> Fabric:
    return _fitted(_Numbers(start=fabric("rdma"), sets=(("all-reduce",), _KINDS[1:])), rows)


def efa(rows: Sequence[Published] = EFA) -> Fabric:
    return _fitted(_Numbers(start=fabric("efa"), sets=(_KINDS[:3], _KINDS[3:])), rows)


def roce(like: Fabric) -> Fabric:
    """As InfiniBand, but for how much of its rate is left to flows that a hash puts on the same link: the median source's."""
    found = logs(ROCE, like)
    by_source = {
        row.source: np.median([x for r, x in zip(ROCE, found, strict=True) if r.source == row.source]) for row in ROCE
    }
    slower = float(np.exp(np.median([*(-x for x in by_source.values()), *np.log(list(HASHED.values()))])))
    own = {kind: p for kind, p in like.protocols.items() if kind != ROWS_ONCE}
    protocols = {kind: replace(p, efficiency=p.efficiency / slower) for kind, p in own.items()}
    return replace(
        like, name="roce", title="RoCE: one port a device, past the host, flows spread by a hash", protocols=protocols
    )


def fit_all() -> dict[str, Fabric]:
    """By name, with the error that nine of ten figures are within."""
    fitted = infiniband()
    fabrics = {
        "rdma": replace(fitted, title="InfiniBand: one port a device, past the host"),
        "roce": roce(fitted),
        "efa": efa(),
    }
    return {
        name: replace(each, error=float(np.quantile(abs(logs(FIGURES[name], each)), 0.9)))
        for name, each in fabrics.items()
    }


def each_left_out() -> dict[tuple[str, str], list[tuple[Published, float]]]:
    """Of each fabric and source, its figures' errors with a fabric fitted on the other sources."""
    found: dict[tuple[str, str], list[tuple[Published, float]]] = {}
    for name, fit in {"rdma": infiniband, "efa": efa}.items():
        for source in dict.fromkeys(row.source for row in FIGURES[name]):
            own = [row for row in FIGURES[name] if row.source == source]
            tried = fit([row for row in FIGURES[name] if row.source != source])
            found[name, source] = list(zip(own, np.expm1(logs(own, tried)).tolist(), strict=True))
    return found


def report_left_out(
    found: Mapping[tuple[str, str], Sequence[tuple[Published, float]]], say: Callable[[str], None]
) -> None:
    say("| fabric | source left out | below 1 MiB | bias | from 1 MiB | bias |\n|---|---|---|---|---|---|")
    for (name, source), pairs in found.items():
        say(f"| {name} | {source} | {shown_by_size((row.nbytes, error) for row, error in pairs)} |")
    for name in dict.fromkeys(name for name, _ in found):
        every = [(row.nbytes, error) for (of, _), pairs in found.items() if of == name for row, error in pairs]
        say(f"| {name} | all | {shown_by_size(every)} |")


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
        (SHIPPED / "fabrics" / f"{name}.toml").write_text(as_toml(with_source(each, SOURCE), PROTOCOL))
