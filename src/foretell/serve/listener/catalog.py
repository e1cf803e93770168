"""`/v1/devices`, `/v1/models`, `/v1/profiles`: what a question can name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from foretell import hardware
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import names
from foretell.serve.listener.callers import Admin, Reader, ServiceDep
from foretell.serve.requests import StrictModel, model_version
from foretell.serve.task_checker import measured_on

router = APIRouter(prefix="/v1", tags=["catalog"])
_EXAMPLE: Final = """\
title = "My GPU"
vendor = "NVIDIA"
kind = "gpu"
architecture = "Ada"

[memory]
size = "48 GiB"
bandwidth = "864 GB/s"
l2 = "96 MiB"
source = "NVIDIA datasheet, 2026"

[peaks]
fp32 = "91.6 TFLOP/s"
bf16 = "362 TFLOP/s"
source = "NVIDIA datasheet, 2026"

[chip]
units = 142
clock_mhz = 2520
power_watts = 350
source = "NVIDIA datasheet, 2026"

[node]
size = 8
inside = "pcie-4"
between = "eth-100g"
host = "epyc-turin"
source = "a guess"
"""
DeviceName = Annotated[str, Field(min_length=1, max_length=100)]


class DeviceRequest(StrictModel):
    """A device, as docs/reference/hardware.md describes its file."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "my-gpu", "toml": _EXAMPLE}]})

    name: DeviceName
    toml: Annotated[str, Field(max_length=65_536)]


@router.get("/devices")
def devices(caller: Reader) -> list[dict[str, Any]]:
    """The hardware catalog, as `foretell devices --json` lists it."""
    return [asdict(device) for device in hardware.devices()]


@router.post("/devices", status_code=201)
def add_device(request: DeviceRequest, service: ServiceDep, caller: Admin) -> dict[str, Any]:
    """A device of your team's own, as a file of the catalog; only your team can name it."""
    return asdict(service.hardware.add(caller.team, request.name, request.toml))


@router.delete("/devices/{name}", status_code=204)
def remove_device(name: DeviceName, service: ServiceDep, caller: Admin) -> None:
    """Your team's device of this name; answers about it stay in the history."""
    service.hardware.remove(caller.team, name)


@router.get("/models")
def models(caller: Reader) -> list[dict[str, Any]]:
    """What prices operators; `device` is where it was measured."""
    return [
        {"name": name, "version": model_version(name), "default": name == DEFAULT_MODEL, "device": measured_on(name)}
        for name in names()
    ]


@router.get("/profiles")
def profiles(service: ServiceDep, caller: Reader) -> list[dict[str, Any]]:
    """What makes forecasts fit a machine, a cluster or a trainer: your team's, and those of whoever runs the service."""
    return service.profiles.listed(caller.team)
