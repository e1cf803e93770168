"""The machine at hand: what it is, how it is set, and whether its numbers can be trusted right now."""

from __future__ import annotations

import datetime
import functools
import json
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from foretell.errors import InputError
from foretell.hardware import recognise
from foretell.measure.sampler import nvml_of

OCCASION: Final = uuid.uuid4().hex[:12]  # this process's stay on this machine
_LIBRARIES: Final = ("numpy", "timm", "torchvision", "transformers", "triton")
# What slows a GPU down, as NVML's bits. Idle clocks and clocks that an application set are no fault.
_THROTTLED: Final = {
    0x004: "power cap", 0x008: "hardware slowdown", 0x020: "thermal, software", 0x040: "thermal, hardware",
    0x080: "power brake",
}  # fmt: skip
_BUSY_LOAD: Final = 0.5  # of a core beyond our own, on average over the last minute


def pick_device(wanted: str = "auto") -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:1`, if it is there."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise InputError(f"no device {wanted!r}. Give auto, cpu, cuda or cuda:N.") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda" or (device.index or 0) >= cuda:
        there = f"cpu and cuda:0 to cuda:{cuda - 1}" if cuda else "cpu alone: torch sees no CUDA device"
        raise InputError(f"device {wanted!r} is not on this machine, which has {there}.")
    return torch.device("cuda", device.index or 0)


class Machine:
    """One device and its host, as far as they can be asked."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.companions: frozenset[int] = frozenset()  # processes that hold the device and wait while we measure

    @property
    def uuid(self) -> str:
        """As the driver knows the device; empty for a CPU."""
        cuda = self.device.type == "cuda"
        return f"GPU-{torch.cuda.get_device_properties(self.device).uuid}" if cuda else ""

    @functools.cached_property
    def nvml(self) -> tuple[Any, Any] | None:
        """NVIDIA's management library and this device's handle; None where either is missing."""
        return nvml_of(self.uuid) if self.uuid else None

    def ask(self, function: str, *arguments: Any) -> Any:
        """One question to NVML; None where it has no answer."""
        if self.nvml is None:
            return None
        nvml, handle = self.nvml
        try:
            return getattr(nvml, f"nvmlDeviceGet{function}")(handle, *arguments)
        except nvml.NVMLError:
            return None

    @functools.cached_property
    def name(self) -> str:
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return cpu_name()

    @functools.cached_property
    def _fixed(self) -> dict[str, Any]:
        cuda = self.device.type == "cuda"
        driver = ""
        if self.nvml is not None:
            text = self.nvml[0].nvmlSystemGetDriverVersion()
            driver = text.decode() if isinstance(text, bytes) else text
        memory = torch.cuda.get_device_properties(self.device).total_memory if cuda else None
        known = recognise(self.name, memory) if cuda else None
        return {
            "device": known.name if known else "",
            "device_name": self.name,
            "driver": driver,
            "cuda": (torch.version.cuda or "") if cuda else "",
            "cudnn": str(torch.backends.cudnn.version() or "") if cuda else "",
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "host_cpu": cpu_name(),
            "host_cores": os.cpu_count(),
            "foretell": _version("foretell") or "",
            "commit": _commit(),
            "occasion": OCCASION,
        }

    def provenance(self) -> dict[str, Any]:
        """Columns of a `StepRow` that say where and how it was measured."""
        loaded = {name: _version(name) for name in _LIBRARIES if name in sys.modules}
        return self._fixed | {
            "libraries": json.dumps({k: v for k, v in loaded.items() if v}),
            "sm_clock_hz": _scaled(self.ask("ClockInfo", 1), 1e6),
            "memory_clock_hz": _scaled(self.ask("ClockInfo", 2), 1e6),
            "temperature_celsius": _scaled(self.ask("Temperature", 0), 1.0),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def marks(self) -> Iterator[str]:
        """Reasons to mistrust what was measured just now."""
        reasons = self.ask("CurrentClocksEventReasons") or 0
        if slowed := [text for bit, text in _THROTTLED.items() if reasons & bit]:
            yield f"throttled: {', '.join(slowed)}"
        us = self.companions | {os.getpid()}
        others = [p for p in self.ask("ComputeRunningProcesses") or () if p.pid not in us]
        if others:
            yield f"contended: {len(others)} other process{'es' * (len(others) > 1)} on the device"
        if self.device.type == "cpu" and (load := _load_of_others()) > _BUSY_LOAD:
            yield f"contended: others keep {load:.1f} cores busy"


def _load_of_others() -> float:
    try:
        return os.getloadavg()[0] - torch.get_num_threads()
    except OSError:
        return 0.0


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return getattr(sys.modules.get(name), "__version__", None)


@functools.cache
def _commit() -> str:
    """Of the source tree this runs from; empty when it is installed from a wheel."""
    tree = Path(__file__).parents[3]
    if not (tree / ".git").exists():
        return os.environ.get("FORETELL_COMMIT", "")
    ended = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return ended.stdout.strip()[:12]
