"""A profile for a team's machines, fitted on the steps that the team has measured there."""

from __future__ import annotations

import io
import json
import statistics
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Final

from pydantic import ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from foretell import hardware
from foretell.errors import InputError
from foretell.hardware import Cluster
from foretell.serve.database.connect import now
from foretell.serve.database.tables import Job, Measurement, StoredGraph, StoredProfile
from foretell.serve.jobs.work import Done, JobRequest, Means, Say
from foretell.serve.patterns import PROFILE
from foretell.serve.requests import Text, model_version

FEWEST: Final = 3  # different steps that say anything
_MAX_STEPS: Final = 60  # different steps: more of them take longer and change little
_NEWEST: Final = 2000  # measurements that are looked at
ProfileName = Annotated[str, Field(pattern=PROFILE, description="What it will be asked for by.")]


class AdaptRequest(JobRequest):
    """As `foretell adapt`, from what was posted to /v1/measurements."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"device": "l40s", "name": "ours"}]})

    device: Text = Field(description="The device of the catalog that it shall fit.", examples=["l40s"])
    name: ProfileName
    model: Text | None = None

    def check(self) -> None:
        hardware.device(self.device)
        if self.model is not None:
            model_version(self.model)

    def material(self, session: Session, team: str) -> bytes:
        """A zip of the different steps and their graphs."""
        steps = measured_steps(session, team, self.device)
        if len(steps) < FEWEST:
            raise InputError(
                f"a profile of {self.device} is fitted on at least {FEWEST} different measured steps, got {len(steps)}. "
                "Post more: POST /v1/measurements"
            )
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as into:
            into.writestr("steps.json", json.dumps([[*key, seconds] for key, seconds in steps.items()]))
            for graph in {key[0] for key in steps}:
                found = session.get(StoredGraph, (team, graph))
                into.writestr(graph, found.data if found is not None else b"")
        return packed.getvalue()

    def do(self, material: bytes, say: Say, means: Means) -> Done:
        from foretell.cost.model import DEFAULT
        from foretell.graph import Graph
        from foretell.learn.adapt.fit import fit_profile
        from foretell.learn.adapt.steps import Step
        from foretell.profile import ARRAYS, SUFFIX, Purpose
        from foretell.report.profiles import profile_dict

        with zipfile.ZipFile(io.BytesIO(material)) as packed:
            kept = json.loads(packed.read("steps.json"))
            graphs = {graph: Graph.from_bytes(packed.read(graph), "the graph") for graph in {row[0] for row in kept}}
        steps = [Step(workload=graphs[graph], on=on, plan=plan, seconds=s) for graph, on, plan, s in kept]
        fitted = fit_profile(
            steps, name=self.name, purpose=Purpose(device=self.device), sources=["steps posted to the service"],
            model=self.model or DEFAULT, say=say,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = fitted.save(Path(folder) / f"{self.name}{SUFFIX}")
            arrays = path.with_suffix(ARRAYS)
            about = {"text": path.read_text(), "steps": len(steps), "profile": profile_dict(fitted)}
            return Done(result=json.dumps(about), file=arrays.read_bytes() if arrays.is_file() else b"")

    def keep(self, session: Session, job: Job, done: Done) -> None:
        found = json.loads(done.result)
        row = StoredProfile(
            team_id=job.team_id, name=self.name, device=self.device, text=found["text"], arrays=done.file or None,
            steps=found["steps"], created=now(),
        )  # fmt: skip
        session.merge(row)


def measured_steps(session: Session, team: str, device: str) -> dict[tuple[str, str, str], float]:
    """Median seconds of each different step on clusters of this device alone, the newest first."""
    wanted = select(Measurement).filter_by(team_id=team).order_by(Measurement.created.desc()).limit(_NEWEST)
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in session.scalars(wanted):
        kinds = Cluster.parse(row.cluster).device_kinds
        if [kind.name for kind in kinds] == [device]:
            found.setdefault((row.graph, row.cluster, row.plan), []).append(row.seconds)
    return {key: statistics.median(found[key]) for key in list(found)[:_MAX_STEPS]}
