"""Fits how each kind of link performs in collectives, and shows the error on topologies that were left out of the fit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from foretell.hardware import Fabric, Link, Protocol, fabric, fabric_of, link
from foretell.hardware.catalog import SHIPPED
from foretell_bench.fitting.collectives import Row

COMMAND: Final = "foretell bench fit fabrics"
SOURCE: Final = f"fitted by `{COMMAND}` on public measurements of collectives (docs/internals/data.md); estimate: units"
PROTOCOL: Final = ("efficiency", "knee", "copy")  # what is fitted of a protocol
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    fabric: Fabric
    latencies: Mapping[str, float]  # of links

    def estimate(self, row: Row) -> float:
        """Seconds."""

        def find(each: Link) -> Fabric:
            usual = fabric_of(each)
            return self.fabric if usual.name == self.fabric.name else usual

        return row.estimate(find, self.latencies)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What is fitted of one fabric, as one vector: three of its own, latencies of links, then three for each protocol."""

    start: Fabric
    links: Sequence[str]  # inside nodes: a network's latency is its own
    kinds: Sequence[str]  # of collectives that were measured

    @property
    def protocols(self) -> list[Protocol]:
        switch = [self.start.in_switch] if self.start.in_switch else []
        return [self.start.protocols[kind] for kind in self.kinds] + switch

    def first(self) -> Floats:
        start = self.start
        values = [np.log(max(start.startup, 0.1)), start.sharing, np.log(start.through or 1e12)]
        values += [np.log(link(name).latency) for name in self.links]
        for protocol in self.protocols:
            values += [np.log(max(getattr(protocol, each), 0.05)) for each in PROTOCOL]
        low, high = self.bounds()
        return np.asarray(np.clip(values, low + 1e-3, high - 1e-3), dtype=np.float64)

    def bounds(self) -> tuple[Floats, Floats]:
        """Physics bounds what a fit may find: no link beats its rate, and a hop stays a hop."""
        count, protocols = len(self.links), len(self.protocols)
        low = [
            np.log(1.0),
            0.0,
            np.log(1e9),
            *[np.log(0.5e-6)] * count,
            *np.log([0.1, 0.05, 0.01]).tolist() * protocols,
        ]
        high = [
            np.log(30.0),
            3.0,
            np.log(1e13),
            *[np.log(8e-6)] * count,
            *np.log([0.98, 300.0, 5.0]).tolist() * protocols,
        ]
        return np.array(low), np.array(high)

    def made(self, values: Floats) -> Fit:
        start = self.start
        through = float(np.exp(values[2])) if start.through else None
        latencies = {name: float(np.exp(v)) for name, v in zip(self.links, values[3:], strict=False)}
        rest = np.minimum(np.exp(values[3 + len(self.links) :].reshape(-1, len(PROTOCOL))), [1.4, 1e4, 20.0])
        fitted = [Protocol(**dict(zip(PROTOCOL, row, strict=True))) for row in rest.tolist()]
        if through:  # the rest is headers, which is arithmetic
            own = zip(fitted, self.protocols, strict=True)
            fitted = [dataclasses.replace(p, efficiency=q.efficiency) for p, q in own]
        in_switch = fitted.pop() if start.in_switch else None
        # A kind nobody measured on this link behaves as a gather, or as an all-reduce where there is none either.
        usual = dict(zip(self.kinds, fitted, strict=True))
        stand_in = usual.get("all-gather") or usual.get("all-reduce") or fitted[0]
        fabric = dataclasses.replace(
            start, startup=float(np.exp(values[0])), sharing=float(values[1]) if start.sharing else 0.0, through=through,
            protocols={kind: usual.get(kind, stand_in) for kind in start.protocols}, in_switch=in_switch,
        )  # fmt: skip
        return Fit(fabric, latencies)


def fit(start: Fabric, rows: Sequence[Row]) -> Fit:
    """The numbers of one fabric that make estimates and measurements agree, in ratios and robustly."""
    links = {each.name: each for row in rows for each in _links(row) if fabric_of(each).name == start.name}
    inside = sorted(name for name, each in links.items() if each.kind == "inside")
    numbers = _Numbers(start, inside, sorted({row.collective.kind for row in rows}))
    first = numbers.first()

    def residuals(values: Floats) -> Floats:
        tried = numbers.made(values)
        found = [np.log(tried.estimate(row) / row.measured) for row in rows]
        return np.concatenate([found, 0.02 * (values - first)])  # what the rows do not show stays

    found = least_squares(
        residuals, first, bounds=numbers.bounds(), loss="soft_l1", f_scale=0.2, max_nfev=40, diff_step=1e-3
    )
    return numbers.made(found.x)


def fit_all(rows: Sequence[Row]) -> dict[str, Fit]:
    """By name of the fabric, on the rows that are not left out."""
    seen = [row for row in rows if not row.topology.left_out]
    names = dict.fromkeys(row.topology.fabric for row in rows)
    return {name: fit(fabric(name), [row for row in seen if row.topology.fabric == name]) for name in names}


def _links(row: Row) -> Iterator[Link]:
    cluster = row.topology.cluster
    for node in cluster.nodes[:1]:
        yield node.inside
        if node.inside.beyond:
            yield link(node.inside.beyond)
    if cluster.between:
        yield cluster.between


def report(rows: Sequence[Row], fits: Mapping[str, Fit], say: Callable[[str], None]) -> None:
    by_topology: dict[tuple[str, str, str, bool], list[float]] = {}
    for row in rows:
        key = (row.source, row.topology.fabric, row.topology.name, row.topology.left_out)
        error = fits[row.topology.fabric].estimate(row) / row.measured - 1
        by_topology.setdefault(key, []).append(error)
    say("| source | fabric | topology | left out | median error | mean error | bias |")
    say("|---|---|---|---|---|---|---|")
    for (source, kind, name, left_out), errors in by_topology.items():
        e = np.array(errors)
        shown = f"{np.median(abs(e)):.1%} | {abs(e).mean():.1%} | {np.median(e):+.1%}"
        say(f"| {source} | {kind} | {name} | {'yes' if left_out else ''} | {shown} |")
    for left_out, title in ((False, "fitted on"), (True, "left out")):
        e = np.abs([error for key, errors in by_topology.items() if key[3] is left_out for error in errors])
        say(f"{title}: median {np.median(e):.1%}, mean {e.mean():.1%}, {len(e)} points")


def _error(rows: Iterable[Row], fitted: Fit) -> float:
    """Nine of ten are within it, of topologies left out or, where that is more, of those it was fitted on; at least 0.3
    where none was left out."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row.topology.fabric == fitted.fabric.name:
            found[row.topology.left_out].append(abs(np.log(fitted.estimate(row) / row.measured)))
    widest = max(float(np.quantile(each, 0.9)) for each in found.values() if each)
    return widest if found[True] else max(widest, 0.3)


def write(fits: Mapping[str, Fit], rows: Sequence[Row]) -> None:
    for name, fitted in fits.items():
        made = dataclasses.replace(fitted.fabric, error=_error(rows, fitted), source=SOURCE)
        (SHIPPED / "fabrics" / f"{name}.toml").write_text(as_toml(made, PROTOCOL))
        for way, latency in fitted.latencies.items():
            _set_latency(SHIPPED / "links" / f"{way}.toml", latency)


def as_toml(fabric: Fabric, numbers: Sequence[str]) -> str:
    """As the catalog keeps it; `numbers` are those of a protocol."""
    lines = [f'title = "{fabric.title}"', f"startup = {fabric.startup:.3g}"]
    if fabric.full_at != 1:
        lines.append(f"full_at = {fabric.full_at:.3g}")
    if fabric.sharing:
        lines.append(f"sharing = {fabric.sharing:.3g}")
    if fabric.ports != "device":
        lines.append(f'ports = "{fabric.ports}"')
    if fabric.through:
        lines.append(f'through = "{fabric.through / 1e9:.3g} GB/s"')
    lines += [f"units = {fabric.units}", f"error = {fabric.error:.3g}", f'source = "{fabric.source}"']
    for kind, protocol in fabric.protocols.items():
        lines += ["", f"[{kind}]", *_lines(protocol, numbers)]
    if fabric.in_switch is not None:
        lines += ["", "[in-switch]", *_lines(fabric.in_switch, numbers), f"from = {fabric.in_switch_from}"]
    return "\n".join(lines) + "\n"


def _lines(protocol: Protocol, numbers: Sequence[str]) -> list[str]:
    return [f"{name} = {getattr(protocol, name):.3g}" for name in numbers]


def _set_latency(path: Path, latency: float) -> None:
    text = re.sub(r'latency = "[^"]*"', f'latency = "{latency * 1e6:.3g} us"', path.read_text())
    text = re.sub(r"estimate: latency[^\"]*", f"latency fitted by `{COMMAND}`", text)
    path.write_text(text)
