"""PredictDDL's task checker: whether what is asked for has a predictor that was fitted for it, and what to do if not."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import func, select

from foretell.cost.model import DEFAULT, ROOFLINE, SHIPPED
from foretell.hardware import Cluster
from foretell.serve.access.keys import Caller
from foretell.serve.database.connect import Database
from foretell.serve.database.tables import Measurement
from foretell.serve.profiles import Profiles
from foretell.serve.questions import model_version

How = Literal["profile", "measured", "transferred", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How a cluster's devices would be priced, from the best founded to the least."""

    cluster: str
    devices: tuple[str, ...]
    how: How
    model: str
    profiles: tuple[str, ...]  # that were fitted for one of the devices
    measured_steps: int  # of the team, on this cluster
    next: str


class TaskChecker:
    def __init__(self, database: Database, profiles: Profiles) -> None:
        self._database, self._profiles = database, profiles

    def check(self, caller: Caller, on: str, model: str = DEFAULT) -> Task:
        cluster = Cluster.parse(on)
        model_version(model)
        devices = tuple(device.name for device in cluster.device_kinds)
        listed = self._profiles.listed(caller.team)
        profiles = tuple(each["name"] for each in listed if each["for"].get("device") in devices)
        with self._database.reading() as session:
            wanted = select(func.count()).select_from(Measurement).filter_by(team_id=caller.team, cluster=str(cluster))
            steps = session.scalar(wanted) or 0
        how = _how(model, devices, profiles)
        return Task(
            cluster=str(cluster), devices=devices, how=how, model=model, profiles=profiles, measured_steps=steps,
            next=_next(how, profiles, devices),
        )  # fmt: skip


def measured_on(model: str) -> str | None:
    """The device whose measurements a shipped model was fitted on."""
    found = card(model)
    return str(found["device"]) if found else None


@functools.cache
def card(model: str) -> dict[str, Any]:
    """What a shipped model was fitted on; nothing of the roofline, which was not."""
    path = SHIPPED / model / "card.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _how(model: str, devices: tuple[str, ...], profiles: tuple[str, ...]) -> How:
    if profiles:
        return "profile"
    if model == ROOFLINE:
        return "roofline"
    return "measured" if set(devices) == {measured_on(model)} else "transferred"


def _next(how: How, profiles: tuple[str, ...], devices: tuple[str, ...]) -> str:
    if how == "profile":
        return f"Ask with the profile {profiles[0]}."
    if how == "measured":
        return "Ask: operators were measured on this device."
    return f"Ask, with a wider doubt; a few step times make it fit: foretell adapt --device {devices[0]} --help"
