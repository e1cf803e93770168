"""A cloud's `vms.csv` of SkyPilot's catalog as offers of instances.

The columns are those that the tables of https://github.com/skypilot-org/skypilot-catalog have in its version 8. Google's
table lists machines and accelerators apart; there an instance costs the sum of both.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from foretell.hardware import catalog
from foretell.hardware.device import Device, Instance, Offer, Term
from foretell.hardware.instance_prices import instance_like, instance_of

COLUMNS: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
_TERMS: Final[Mapping[Term, str]] = {"on-demand": "Price", "spot": "SpotPrice"}
_SMALLEST: Final = {"A100": "A100-40GB", "V100": "V100-16GB"}  # SkyPilot's plain name is the board with less memory
_ABSURD: Final = 1e9  # dollars an hour, or boards
_USUAL: Final = "sxm"  # socket of what clouds rent, where a table does not say it and there are several


class _Machine(NamedTuple):
    """What is rented: by the cloud's name of it, or by its accelerators."""

    name: str
    device: Device
    boards: int


def is_such(columns: Sequence[str]) -> bool:
    return set(COLUMNS) <= set(columns)


def instances(rows: Sequence[Mapping[str, str]], *, cloud: str, date: str, source: str) -> Iterator[Instance]:
    """Instances with accelerators that the catalog knows, with the median of each region's zones."""
    prices: dict[tuple[_Machine, Term, str], list[float]] = defaultdict(list)
    boards = _Boards()
    apart, known = boards.apart(rows), {each.name: each for each in catalog.instances()}
    for row in rows:
        machine = _machine(row, cloud, known, boards)
        if machine is None:
            continue
        for term, dollars in _prices(row).items():
            whole = dollars
            if not row["AcceleratorName"]:  # the machine alone: its boards have rows of their own
                key = machine.device.name, machine.boards, _place(row)
                whole += apart.get(key, {}).get(term, math.nan)
            if not math.isnan(whole):
                prices[machine, term, row["Region"]].append(whole)
    for (machine, term, region), found in prices.items():
        offer = Offer(term=term, region=region, dollars_per_hour=median(found), date=date, source=source)
        if machine.name in known:
            yield instance_like(known[machine.name], offer)
        else:
            yield instance_of(machine.name, machine.device, machine.boards, offer)


def _machine(row: Mapping[str, str], cloud: str, known: Mapping[str, Instance], boards: _Boards) -> _Machine | None:
    """None for machines without accelerators, and with those that the catalog does not know."""
    written = (row["InstanceType"] or "").strip().lower().removeprefix("standard_")
    if not written:
        return None
    name = f"{cloud}:{written}"
    if name in known:
        return _Machine(name, catalog.device(known[name].device), known[name].count)
    device, count = boards.device(row), _amount(row["AcceleratorCount"])
    return None if device is None or not count or count % 1 else _Machine(name, device, int(count))


class _Boards:
    """Which devices of the catalog a table's accelerators are; a table repeats few of them often."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Device | None] = {}

    def device(self, row: Mapping[str, str]) -> Device | None:
        name, about = (row["AcceleratorName"] or "").strip(), row.get("GpuInfo") or ""
        if not name:
            return None
        size = re.search(r"'SizeInMiB': (\d+)", about)
        mebibytes = 0 if size is None else int(size[1])
        nbytes = mebibytes * (2**20 if mebibytes >= 1024 else 2**30)  # RunPod's table has GiB there
        titled = re.search(r"'Name': '([^']+)'", about)
        words = f"{name} {titled[1] if titled else ''} {row['InstanceType']}".lower()
        socket = next((each for each in ("pcie", "nvl", "sxm") if each in words), "")
        key = name, socket, nbytes
        if key not in self._known:
            self._known[key] = _recognised(*key)
        return self._known[key]

    def apart(self, rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, int, str], dict[Term, float]]:
        """Prices of accelerators that belong to no machine, by device, number and zone."""
        found = {}
        for row in rows:
            count = 0 if row["InstanceType"] else _amount(row["AcceleratorCount"])
            if count and (device := self.device(row)) is not None:
                found[device.name, int(count), _place(row)] = _prices(row)
        return found


def _recognised(name: str, socket: str, nbytes: int) -> Device | None:
    if name.lower().startswith("tpu"):
        return None
    for spelt in (f"{_SMALLEST.get(name, name)} {socket or _USUAL}", _SMALLEST.get(name, name)):
        found = catalog.recognise(spelt, nbytes or None) or catalog.recognise(spelt)
        if found is not None:
            return found
    return None


def _place(row: Mapping[str, str]) -> str:
    return row.get("AvailabilityZone") or row["Region"]


def _prices(row: Mapping[str, str]) -> dict[Term, float]:
    """A spot price that is no lower than the list price is none: tables repeat the list price where there is no other."""
    found = {term: dollars for term, column in _TERMS.items() if (dollars := _amount(row[column]))}
    if found.get("spot", 0.0) >= found.get("on-demand", math.inf):
        del found["spot"]
    return found


def _amount(text: str | None) -> float:
    """0 where nothing is said, or what nothing can cost or be many of."""
    try:
        amount = float(text or 0)
    except ValueError:
        return 0.0
    return amount if 0 <= amount < _ABSURD else 0.0
