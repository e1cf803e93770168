"""This machine's CPU as a device of the catalog: what it has, and what it does at best in a few short runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from foretell.errors import CatalogError
from foretell.hardware import catalog
from foretell.hardware.catalog_file import NAME
from foretell.measure.host_speed import host_speed
from foretell.measure.machine import cpu_name
from foretell.units import BytesPerSecond, FlopsPerSecond, Seconds

_SIDE: Final = 1024  # of a product
_COPIED: Final = 64 * 2**20  # bytes: more than caches hold
_TIMES: Final = 5
_USABLE: Final = 0.95  # of memory, that the operating system leaves
_WATTS: Final = 8.0  # of a core, as a guess
_CLOCK: Final = 2500.0  # MHz, likewise: no forecast of a CPU asks for it

_DEVICE: Final = """\
title = "{title}, {cores} threads"
vendor = "this machine"
kind = "cpu"
architecture = "{architecture}"

[memory]
size = "{memory} GiB"
bandwidth = "{bandwidth:.2f} GB/s"
l2 = "{cache} KiB"
source = "measured: a copy of 64 MiB"

[usable]
size = "{usable} GiB"
source = "estimate: what the operating system leaves"

[context]
size = "200 MiB"
source = "estimate: the Python process with torch loaded"

[peaks]
fp32 = "{fp32:.2f} GFLOP/s"
fp64 = "{fp64:.2f} GFLOP/s"
source = "measured: a product of side 1024"

[chip]
units = {cores}
clock_mhz = {clock}
power_watts = {watts}
source = "estimate: threads that torch uses; clock and power are guesses"

[node]
size = 1
inside = "pcie-4"
between = "eth-25g"
host = "{name}"
source = "this machine"
"""
_HOST: Final = """\
title = "{title}, {cores} threads"
cores = {cores}
op_time = "{op:.2f} us"
source = "measured: foretell measure --host"
"""


def describe_this_cpu(name: str) -> list[Path]:
    """Write files of a device and its host, under a new name, into the user's catalog; it takes a few seconds."""
    if NAME.fullmatch(name) is None or ":" in name:
        raise CatalogError(f"a device's name is lower-case letters, digits and . _ -, got {name!r}.")
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = torch.get_num_threads()
    numbers = {
        "name": name, "title": cpu_name().replace('"', "'"), "cores": cores, "architecture": os.uname().machine,
        "memory": round(gib, 2), "usable": round(_USABLE * gib, 2), "cache": _cache_bytes() // 1024,
        "bandwidth": copy_rate() / 1e9, "fp32": product_rate(torch.float32) / 1e9, "fp64": product_rate(torch.float64) / 1e9,
        "op": host_speed("cpu").op_seconds * 1e6, "watts": _WATTS * cores, "clock": _CLOCK,
    }  # fmt: skip
    written = []
    for kind, text in (("devices", _DEVICE), ("hosts", _HOST)):
        path = catalog.folders()[0] / kind / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**numbers), encoding="utf-8")
        written.append(path)
    return written


def product_rate(dtype: torch.dtype) -> FlopsPerSecond:
    a, b = torch.randn(_SIDE, _SIDE, dtype=dtype), torch.randn(_SIDE, _SIDE, dtype=dtype)
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / _shortest(lambda: torch.mm(a, b, out=out))


def copy_rate() -> BytesPerSecond:
    """Read and written bytes count."""
    a = torch.zeros(_COPIED // 4)
    b = torch.empty_like(a)
    return 2 * _COPIED / _shortest(lambda: b.copy_(a))


def _shortest(run: Callable[[], object]) -> Seconds:
    run()
    best = float("inf")
    for _ in range(_TIMES):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def _cache_bytes() -> int:
    """The largest cache that the system tells of; a MiB where it does not."""
    found = [1 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        found.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0) if text[:-1].isdigit() else 0)
    return max(found)
