"""PredictDDL's task checker: whether what is asked for has a predictor that was fitted for it, and what to do if not."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import func, select

from foretell.cost.model import DEFAULT, ROOFLINE, SHIPPED
from foretell.hardware import Cluster
from foretell.serve.access.keys import Caller
from foretell.serve.database.connect import Database, now
from foretell.serve.database.tables import Job, Measurement, StoredProfile
from foretell.serve.jobs.adapt import AdaptRequest, measured_steps
from foretell.serve.measured import compared, drifts
from foretell.serve.profiles import Profiles
from foretell.serve.requests import cluster_of, model_version
from foretell.units import Seconds

How = Literal["profile", "measured", "transferred", "roofline"]
LOOK: Seconds = 60.0  # between two looks at what was measured on a device
_ENOUGH: Final = 5  # different steps: fewer make no profile that was not asked for


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
        self._looked: dict[tuple[str, str], float] = {}

    def check(self, caller: Caller, on: str, model: str = DEFAULT) -> Task:
        cluster = cluster_of(on)
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

    def fitting(self, caller: Caller, cluster: Cluster) -> AdaptRequest | None:
        """The offline fitting that a measured step makes due: the device has no profile of the team's yet, or one that a
        drift or twice as many steps have overtaken. Looked for once in a while, as it reads what was measured."""
        kinds = [device.name for device in cluster.device_kinds]
        place = (caller.team, kinds[0])
        if len(kinds) > 1 or now() - self._looked.get(place, 0.0) < LOOK:
            return None
        self._looked[place] = now()
        request = AdaptRequest(device=kinds[0], name=kinds[0])
        with self._database.reading() as session:
            steps = measured_steps(session, caller.team, kinds[0])
            profile = session.get(StoredProfile, (caller.team, request.name))
            waiting = (
                select(Job).filter_by(team_id=caller.team, kind="adapt").where(Job.state.in_(("queued", "running")))
            )
            if len(steps) < _ENOUGH or any(job.question["name"] == request.name for job in session.scalars(waiting)):
                return None
            if profile is None or len(steps) >= 2 * profile.steps:
                return request
            since = [step for step in compared(session, caller.team) if step.at > profile.created]
        ours = [step for step in since if step.profile == request.name and step.cluster == str(cluster)]
        return request if any(course.is_drift for course in drifts(ours)) else None


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
