"""`/v1/devices`, `/v1/models`, `/v1/profiles`: what a question can name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from foretell import hardware
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import names
from foretell.serve.listener.callers import Reader, ServiceDep
from foretell.serve.requests import model_version
from foretell.serve.task_checker import measured_on

router = APIRouter(prefix="/v1", tags=["catalog"])


@router.get("/devices")
def devices(caller: Reader) -> list[dict[str, Any]]:
    """The hardware catalog, as `foretell devices --json` lists it."""
    return [asdict(device) for device in hardware.devices()]


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
