"""NVIDIA's management library as a script finds it on the device that is asked about: idle, empty and cool."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from foretell.capture.script.imports import provide
from foretell.capture.script.session import Session
from foretell.sources.scripts import Accelerator
from foretell.units import MIB


class NVMLError(Exception):
    """What a driver answers to a question that it does not know."""


def install(session: Session) -> None:
    """Stand in for `pynvml`, installed or not."""
    answers = _answers(session.script.accelerator, session.devices)
    provide(lambda name: name in ("pynvml", "pynvml.smi"), lambda name: _Module(name, answers), first=True, to_libraries=True)  # fmt: skip


def _answers(chip: Accelerator, devices: int) -> dict[str, Any]:
    memory = SimpleNamespace(total=chip.memory, free=chip.memory, used=0)
    smi = {
        "product_name": chip.name,
        "fb_memory_usage": {"total": chip.memory / MIB, "used": 0.0, "free": chip.memory / MIB, "unit": "MiB"},
        "utilization": {"gpu_util": 0, "memory_util": 0, "unit": "%"},
    }
    fixed: dict[str, Any] = {
        "Init": None, "InitWithFlags": None, "Shutdown": None, "SystemGetDriverVersion": "0", "SystemGetNVMLVersion": "0",
        "SystemGetCudaDriverVersion": 0, "SystemGetCudaDriverVersion_v2": 0, "DeviceGetCount": devices,
        "DeviceGetName": chip.name, "DeviceGetUUID": "GPU-0", "DeviceGetIndex": 0, "DeviceGetMemoryInfo": memory,
        "DeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0), "DeviceGetTemperature": 0,
        "DeviceGetPowerUsage": 0, "DeviceGetTotalEnergyConsumption": 0, "DeviceGetFanSpeed": 0, "DeviceGetClockInfo": 0,
        "DeviceGetComputeRunningProcesses": [], "DeviceGetGraphicsRunningProcesses": [],
        "DeviceGetCudaComputeCapability": chip.capability,
    }  # fmt: skip
    found: dict[str, Any] = {f"nvml{name}": _always(value) for name, value in fixed.items()}
    found["nvmlDeviceGetHandleByIndex"] = lambda index=0: index
    found["nvmlDeviceGetHandleByUUID"] = _always(0)
    query = SimpleNamespace(DeviceQuery=lambda *what: {"count": devices, "gpu": [dict(smi) for _ in range(devices)]})
    return found | {"nvidia_smi": SimpleNamespace(getInstance=lambda: query)}


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


class _Module(types.ModuleType):
    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(answers, NVMLError=NVMLError)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return 0
        if name.startswith("nvml"):
            return _unknown
        raise AttributeError(name)


def _unknown(*args: Any, **kwargs: Any) -> Any:
    raise NVMLError("Not Supported")
