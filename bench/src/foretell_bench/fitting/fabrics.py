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
from foretell.hardware.fabric import ROWS_ONCE
from foretell.units import MIB, Bytes
from foretell_bench.fitting.collectives import Row
from foretell_bench.fitting.published import NVLINK_5_RATES

COMMAND: Final = "foretell bench fit fabrics"
SOURCE: Final = f"fitted by `{COMMAND}` on public measurements of collectives (docs/internals/data.md); estimate: units"
PROTOCOL: Final = ("efficiency", "knee", "copy")  # what is fitted of a protocol
# What is not fitted here: kernels that send a row once, of DeepEP's own figures (its README and docs/legacy.md, MIT).
_DEEPEP: Final = "rows-once: DeepEP's README and docs/legacy.md"
ONCE_SOURCES: Final = {
    "nvswitch": f"{_DEEPEP}, 134 of 200 and 560 to 650 of 900 GB/s between ranks of a node",
    "nvswitch-5": f"{_DEEPEP}, 560 to 650 of 900 GB/s between ranks of a node",
    "rdma": f"{_DEEPEP}, 43 to 46 of 50 GB/s leave a node at 16 to 64 ranks",
    "efa": f"{_DEEPEP}, on InfiniBand",
}
LATER: Final = {"nvswitch-5": "nvswitch"}  # fabrics that few figures are known of, and the generation before
SMALL: Final = MIB
_LIKE: Final = 0.5  # how much a later generation, but for its latency, is held to the one before
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
        if start.in_switch:
            values.append(np.log(start.in_switch_startup or start.startup))
        low, high = self.bounds()
        return np.asarray(np.clip(values, low + 1e-3, high - 1e-3), dtype=np.float64)

    def bounds(self) -> tuple[Floats, Floats]:
        """Physics bounds what a fit may find: no link beats its rate, and a hop stays a hop."""
        count, protocols = len(self.links), len(self.protocols)
        switch = [1] if self.start.in_switch else []
        low = [
            np.log(1.0),
            0.0,
            np.log(1e9),
            *[np.log(0.5e-6)] * count,
            *np.log([0.1, 0.05, 0.01]).tolist() * protocols,
            *[np.log(1.0)] * len(switch),
        ]
        high = [
            np.log(30.0),
            3.0,
            np.log(1e13),
            *[np.log(8e-6)] * count,
            *np.log([0.98, 300.0, 5.0]).tolist() * protocols,
            *[np.log(100.0)] * len(switch),
        ]
        return np.array(low), np.array(high)

    def made(self, values: Floats) -> Fit:
        start = self.start
        switch_startup = float(np.exp(values[-1])) if start.in_switch else None
        values = values[:-1] if start.in_switch else values
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
            in_switch=in_switch, in_switch_startup=switch_startup,
            protocols={kind: p if kind == ROWS_ONCE else usual.get(kind, stand_in) for kind, p in start.protocols.items()},
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


def scaled(start: Fabric, like: Fabric, rows: Sequence[Row], rates: Mapping[str, float] = NVLINK_5_RATES) -> Fit:
    """A later generation of `like`, of which few figures are known: its protocols with other rates and knees.

    Four numbers: the latency of its link, and factors for startups and knees; `rates` are published.
    """
    assert like.in_switch is not None
    switch, way = like.in_switch, next(each.name for row in rows for each in _links(row))
    first = np.log([link(way).latency * 1e6, 1.0, 1.0, 1.0])

    def made(values: Floats) -> Fit:
        latency, knee, startup, switch_startup = (float(x) for x in np.exp(values))
        protocols = {k: _scaled(p, rates["ring"], knee) for k, p in like.protocols.items() if k != ROWS_ONCE}
        protocols |= {kind: p for kind, p in start.protocols.items() if kind == ROWS_ONCE}
        fabric = dataclasses.replace(
            start, startup=like.startup * startup, protocols=protocols,
            in_switch=_scaled(switch, rates["in-switch"], knee),
            in_switch_startup=(like.in_switch_startup or like.startup) * switch_startup,
        )  # fmt: skip
        return Fit(fabric, {way: latency * 1e-6})

    def residuals(values: Floats) -> Floats:
        tried = made(values)
        found = [np.log(tried.estimate(row) / row.measured) for row in rows]
        return np.concatenate([found, _LIKE * (values - first)[1:]])

    return made(least_squares(residuals, first, loss="soft_l1", f_scale=0.2, diff_step=1e-3).x)


def _scaled(protocol: Protocol, rate: float, knee: float) -> Protocol:
    return dataclasses.replace(
        protocol, efficiency=min(protocol.efficiency * rate, 0.98), knee=protocol.knee * knee, copy=protocol.copy / rate
    )


def fit_all(rows: Sequence[Row], only: Sequence[str] = ()) -> dict[str, Fit]:
    """By name of the fabric, on the rows that are not left out; `only` some, of which later ones build on earlier."""
    seen = [row for row in rows if not row.topology.left_out and not row.host_bound]
    fits: dict[str, Fit] = {}
    for name in dict.fromkeys(row.topology.fabric for row in rows if not only or row.topology.fabric in only):
        own = [row for row in seen if row.topology.fabric == name]
        if name in LATER:
            fits[name] = scaled(fabric(name), _before(name, fits), own)
        else:
            fits[name] = fit(fabric(name), own)
    return fits


def _before(name: str, fits: Mapping[str, Fit]) -> Fabric:
    """The generation before, as it was fitted here or as the catalog has it."""
    return fits[LATER[name]].fabric if LATER[name] in fits else fabric(LATER[name])


def each_left_out(rows: Sequence[Row], fits: Mapping[str, Fit]) -> dict[str, list[tuple[Row, float]]]:
    """Of each fabric with several topologies, rows and relative errors with their topology left out of the fit, one in turn."""
    found: dict[str, list[tuple[Row, float]]] = {}
    for name, fitted in fits.items():
        own = [row for row in rows if row.topology.fabric == name and not row.host_bound]
        topologies = list(dict.fromkeys(row.topology.name for row in own))
        for topology in topologies if len(topologies) > 1 else ():
            rest = [row for row in own if row.topology.name != topology]
            without = scaled(fabric(name), _before(name, fits), rest) if name in LATER else fit(fitted.fabric, rest)
            out = [row for row in own if row.topology.name == topology]
            found.setdefault(name, []).extend((row, without.estimate(row) / row.measured - 1) for row in out)
    return found


def _links(row: Row) -> Iterator[Link]:
    cluster = row.topology.cluster
    for node in cluster.nodes[:1]:
        yield node.inside
        if node.inside.beyond:
            yield link(node.inside.beyond)
    if cluster.between:
        yield cluster.between


def report(rows: Sequence[Row], fits: Mapping[str, Fit], say: Callable[[str], None]) -> None:
    errors = [(row, fits[row.topology.fabric].estimate(row) / row.measured - 1) for row in rows if not row.host_bound]
    by_topology(errors, say)
    for left_out, title in ((False, "fitted on"), (True, "left out")):
        if e := [abs(error) for row, error in errors if row.topology.left_out is left_out]:
            say(f"{title}: median {np.median(e):.1%}, mean {np.mean(e):.1%}, {len(e)} points")


def by_topology(errors: Iterable[tuple[Row, float]], say: Callable[[str], None]) -> None:
    """Mean errors and biases below 1 MiB and from it, of each topology of each source."""
    found: dict[tuple[str, str, str, bool], list[tuple[Row, float]]] = {}
    for row, error in errors:
        key = (row.source, row.topology.fabric, row.topology.name, row.topology.left_out)
        found.setdefault(key, []).append((row, error))
    say("| source | fabric | topology | left out | below 1 MiB | bias | from 1 MiB | bias |")
    say("|---|---|---|---|---|---|---|---|")
    for (source, kind, name, left_out), each in found.items():
        shown = shown_by_size((row.collective.nbytes, e) for row, e in each)
        say(f"| {source} | {kind} | {name} | {'yes' if left_out else ''} | {shown} |")


def shown_by_size(errors: Iterable[tuple[Bytes, float]]) -> str:
    """Mean error and bias below 1 MiB and from it, as cells."""
    pairs = list(errors)
    classes = ([e for n, e in pairs if (n < SMALL) is small] for small in (True, False))
    return " | ".join(f"{np.abs(each).mean():.1%} | {np.median(each):+.1%}" if each else " | " for each in classes)


def by_fabric(errors: Mapping[str, Sequence[tuple[Row, float]]], say: Callable[[str], None]) -> None:
    say("| fabric | topologies | below 1 MiB | bias | from 1 MiB | bias |\n|---|---|---|---|---|---|")
    for name, each in errors.items():
        shown = shown_by_size((row.collective.nbytes, e) for row, e in each)
        say(f"| {name} | {len({row.topology.name for row, _ in each})} | {shown} |")


def _error(rows: Iterable[Row], fitted: Fit) -> float:
    """Nine of ten are within it, of topologies left out or, where that is more, of those it was fitted on; at least 0.3
    where none was left out."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row.topology.fabric == fitted.fabric.name and not row.host_bound:
            found[row.topology.left_out].append(abs(np.log(fitted.estimate(row) / row.measured)))
    widest = max(float(np.quantile(each, 0.9)) for each in found.values() if each)
    return widest if found[True] else max(widest, 0.3)


def with_source(fabric: Fabric, source: str) -> Fabric:
    """With what else its file rests on."""
    return dataclasses.replace(fabric, source="; ".join(filter(None, [source, ONCE_SOURCES.get(fabric.name)])))


def write(fits: Mapping[str, Fit], rows: Sequence[Row]) -> None:
    for name, fitted in fits.items():
        made = with_source(dataclasses.replace(fitted.fabric, error=_error(rows, fitted)), SOURCE)
        (SHIPPED / "fabrics" / f"{name}.toml").write_text(as_toml(made, PROTOCOL))
        for way, latency in fitted.latencies.items():
            _set_latency(SHIPPED / "links" / f"{way}.toml", latency)


def as_toml(fabric: Fabric, numbers: Sequence[str]) -> str:
    """As the catalog keeps it; `numbers` are those of a protocol."""
    lines = [f'title = "{fabric.title}"', f"startup = {fabric.startup:.3g}"]
    if fabric.hop != 1:
        lines.append(f"hop = {fabric.hop:.3g}")
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
        lines += [f"startup = {fabric.in_switch_startup:.3g}"] if fabric.in_switch_startup is not None else []
    return "\n".join(lines) + "\n"


def _lines(protocol: Protocol, numbers: Sequence[str]) -> list[str]:
    return [f"{name} = {getattr(protocol, name):.3g}" for name in numbers]


def _set_latency(path: Path, latency: float) -> None:
    text = re.sub(r'latency = "[^"]*"', f'latency = "{latency * 1e6:.3g} us"', path.read_text())
    text = re.sub(r"estimate: latency[^\"]*", f"latency fitted by `{COMMAND}`", text)
    path.write_text(text)
