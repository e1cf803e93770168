"""PredictDDL's cluster-resource collector: what this machine, a Slurm and a Ray cluster have, and what of it is free."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psutil

from foretell.hardware import recognise
from foretell.serve import ray_nodes
from foretell.units import Bytes, Seconds

_FRESH: Final[Seconds] = 10.0
_PATIENCE: Final[Seconds] = 5.0
_SINFO: Final = ("sinfo", "--noheader", "--format=%P|%D|%T|%G|%m")  # partition, nodes, state, devices, MB of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """So many of one thing; `device` is its name in the catalog, where it is a device that the catalog knows."""

    source: str  # host, nvml, slurm or ray
    name: str
    count: int
    free: int
    memory_bytes: Bytes | None = None
    free_memory_bytes: Bytes | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    resources: tuple[Resource, ...]
    missing: dict[str, str]  # sources that are not here, and why


def host() -> Iterator[Resource]:
    memory, cores = psutil.virtual_memory(), psutil.cpu_count() or 1
    busy = min(round(psutil.getloadavg()[0]), cores)
    yield Resource(
        source="host", name="cpu cores", count=cores, free=cores - busy, memory_bytes=memory.total,
        free_memory_bytes=memory.available,
    )  # fmt: skip


def nvml() -> Iterator[Resource]:
    import pynvml

    pynvml.nvmlInit()
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            memory, name = pynvml.nvmlDeviceGetMemoryInfo(handle), str(pynvml.nvmlDeviceGetName(handle))
            known = recognise(name, memory.total)
            idle = not pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            yield Resource(
                source="nvml", name=name, count=1, free=int(idle), memory_bytes=memory.total,
                free_memory_bytes=memory.free, device=known.name if known else None,
            )  # fmt: skip
    finally:
        pynvml.nvmlShutdown()


def slurm() -> Iterator[Resource]:
    if shutil.which(_SINFO[0]) is None:
        raise FileNotFoundError("there is no sinfo here")
    output = subprocess.run(_SINFO, capture_output=True, text=True, check=True, timeout=_PATIENCE).stdout
    yield from read_sinfo(output)


def read_sinfo(text: str) -> Iterator[Resource]:
    """A line is a partition's nodes in one state; `gpu:h100:8` is what each of them has."""
    for line in text.splitlines():
        partition, nodes, state, devices, memory = line.strip().split("|")
        kind, _, rest = devices.partition("(")[0].partition(":")
        model, _, number = rest.rpartition(":")
        each = int(number) if kind == "gpu" and number.isdigit() else 0
        known = recognise(model) if each and model else None
        found = int(nodes) * (each or 1)
        yield Resource(
            source="slurm", name=f"{partition.rstrip('*')}: {model or 'nodes'}", count=found,
            free=found if state.rstrip("*~#$@+-") == "idle" else 0,
            memory_bytes=int(memory.rstrip("+")) * 2**20 * int(nodes), device=known.name if known else None,
        )  # fmt: skip


_SOURCES: Final[dict[str, Callable[[], Iterator[Resource]]]] = {"host": host, "nvml": nvml, "slurm": slurm}


def ray(address: str) -> Iterator[Resource]:
    for found in ray_nodes.ask(address):
        known = recognise(found["name"])
        yield Resource(source="ray", **found, device=known.name if known else None)


class Collector:
    """Asks all sources; what they said is believed for a while, so that nobody's scheduler is asked for every request."""

    def __init__(self, ray_address: str | None = None) -> None:
        self._sources = dict(_SOURCES)
        if ray_address is not None:
            self._sources["ray"] = functools.partial(ray, ray_address)
        self._lock = threading.Lock()
        self._last: tuple[float, Collected] | None = None

    def collect(self) -> Collected:
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > _FRESH:
                self._last = (time.monotonic(), _ask(self._sources))
            return self._last[1]


def _ask(sources: Mapping[str, Callable[[], Iterator[Resource]]]) -> Collected:
    found: list[Resource] = []
    missing = {}
    for name, source in sources.items():
        try:
            found += list(source())
        except Exception as error:  # of a driver, a library or a scheduler that is not here or does not answer
            missing[name] = f"{type(error).__name__}: {error}"[:200]
    return Collected(resources=tuple(found), missing=missing)
