"""What callers ask, checked field by field: no path, no code and no template of theirs goes any further."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from foretell import engine
from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import SHIPPED, names
from foretell.errors import ModelError, ProfileError, did_you_mean
from foretell.forecasting.answer_key import answer_key, hardware_key
from foretell.forecasting.conditions import USUAL_JITTER, Conditions
from foretell.forecasting.job import USUAL_FAILURES, Interruptions, JobLength, Pause
from foretell.hardware import Cluster
from foretell.hardware.catalog import state as catalog_state
from foretell.limits import limit, read_bytes
from foretell.plans import Plan
from foretell.profile import files_of
from foretell.serve.patterns import HASH, ID

Hash = Annotated[str, Field(pattern=HASH, description="The content hash of a graph that was sent before.")]
Id = Annotated[str, Field(pattern=ID)]
Text = Annotated[str, Field(max_length=1000)]
EXAMPLE: Final = "3c5f0d2c9d6c2a1b8e4f70a1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b"


class StrictModel(BaseModel):
    """Strict: what is not known is refused, and nothing is taken for something else."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RequestConditions(StrictModel):
    """What surrounds a step, as `foretell.Conditions`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"trainer": "megatron", "loader": 3000.0}]})

    loader: float | None = None
    jitter: float = USUAL_JITTER
    slowdown: float | None = None
    expert_skew: float | None = None
    trainer: float | Text | None = Field(default=None, description="A trainer's name, or what it adds to its steps.")
    host: float | Text | None = Field(default=None, description="A host's name, its seconds per op, or usual.")
    software: Text | None = Field(default=None, description="Of which time, like torch-1.12 or 2022-07.")

    def made(self) -> Conditions:
        return Conditions(**self.model_dump())


class RequestPause(StrictModel):
    """Every so many steps the job stops for so many seconds."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"every": 1000, "seconds": 45.0}]})

    every: int
    seconds: float


class RequestInterruptions(StrictModel):
    """How often a job is stopped, and the seconds until it goes on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"per_device_hour": USUAL_FAILURES, "restart": 600.0}]})

    per_device_hour: float = USUAL_FAILURES
    per_node_hour: float = Field(default=0.0, description="How often a spot node is taken back.")
    restart: float = 600.0


class RequestJob(StrictModel):
    """How long a job trains, as `foretell.JobLength`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"tokens": 3e11, "checkpoint": {"every": 500, "seconds": 20.0}, "startup": 300.0}]
        }
    )

    samples: float | None = None
    tokens: float | None = None
    evaluation: RequestPause | None = None
    checkpoint: RequestPause | None = None
    startup: float = 0.0
    interruptions: RequestInterruptions | None = None

    def made(self) -> JobLength:
        evaluation, checkpoint, interruptions = self.evaluation, self.checkpoint, self.interruptions
        return JobLength(
            samples=self.samples,
            tokens=self.tokens,
            evaluation=None if evaluation is None else Pause(**evaluation.model_dump()),
            checkpoint=None if checkpoint is None else Pause(**checkpoint.model_dump()),
            startup=self.startup,
            interruptions=None if interruptions is None else Interruptions(**interruptions.model_dump()),
        )


class ForecastRequest(StrictModel):
    """What `foretell.forecast` takes, about a graph that is here."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"graph": EXAMPLE, "on": "8xh100-sxm", "plan": "dp=8", "model": DEFAULT_MODEL}]}
    )

    graph: Hash
    on: Text = Field(description="A cluster, like h200 or 8xh100-sxm.")
    plan: Text | None = Field(default=None, description="Like dp=4,tp=2,zero=1; all data-parallel without.")
    model: Text = Field(default=DEFAULT_MODEL, description="A name that GET /v1/models lists.")
    profile: Text | None = Field(default=None, description="A name that GET /v1/profiles lists.")
    conditions: RequestConditions | None = None
    job: RequestJob | None = None

    def check(self) -> None:
        """What can be wrong without the graph, said before anything is priced."""
        cluster = cluster_of(self.on)
        if self.plan is not None:
            Plan.parse(self.plan).check_devices(cluster.devices)
        model_version(self.model)
        for part in (self.conditions, self.job):
            if part is not None:
                part.made()

    def key(self, profile: Path | None) -> str:
        """Name the answer by all that it rests on, however it was written; `profile` is the file of the one that was named."""
        return _key(self, engine.engine_digest(), catalog_state(), _content(profile))

    def arguments(self, profile: Path | None) -> dict[str, Any]:
        """For `foretell.forecast`, after the graph; `profile` is the file of the one that was named."""
        return {
            "on": cluster_of(self.on),
            "plan": self.plan,
            "model": self.model,
            "profile": profile,
            **self._surroundings,
        }

    @property
    def _surroundings(self) -> dict[str, Any]:
        return {
            "conditions": None if self.conditions is None else self.conditions.made(),
            "job": None if self.job is None else self.job.made(),
        }


class PredictionRequest(StrictModel):
    """A step that a fitted method is asked about."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"graph": EXAMPLE, "on": "8xh100-sxm", "plan": "dp=8"}]})

    graph: Hash
    on: Text = Field(description="A cluster, like h200 or 8xh100-sxm.")
    plan: Text | None = Field(default=None, description="Like dp=4,tp=2,zero=1; all data-parallel without.")

    def check(self) -> None:
        """What can be wrong without the graph."""
        cluster = cluster_of(self.on)
        if self.plan is not None:
            Plan.parse(self.plan).check_devices(cluster.devices)


def cluster_of(written: str) -> Cluster:
    """The cluster of a question, whose size is looked at before anything is made of it."""
    return _read(written, catalog_state())[0]


@functools.lru_cache(maxsize=256)
def _read(written: str, state: object) -> tuple[Cluster, str]:
    """A cluster and its key, read once for each state that the catalog is in."""
    cluster = Cluster.parse(written, most=(limit("devices of a question"), limit("nodes of a question")))
    return cluster, hardware_key(cluster)


@functools.lru_cache(maxsize=4096)
def _key(question: ForecastRequest, of_engine: str, state: object, profile: tuple[str, ...]) -> str:
    """Of a question that is asked often, worked out once for each engine, and state of the catalog and of its profile."""
    plan = None if question.plan is None else Plan.parse(question.plan)
    hardware = _read(question.on, state)[1]
    model = (question.model, "")
    return answer_key(question.graph, hardware, plan, model=model, profile=profile, **question._surroundings)


def _content(profile: Path | None) -> tuple[str, ...]:
    """All that a profile says, in its files, as their digests."""
    if profile is None:
        return ()
    try:
        read = (read_bytes(path, "bytes of a file of arrays") for path in files_of(profile))
        return tuple(hashlib.sha256(data).hexdigest() for data in read)
    except (OSError, ValueError) as error:
        raise ProfileError(f"{profile} cannot be read: {error}. Make the profile again.") from None


@functools.cache
def _shipped() -> dict[str, str]:
    """Models and their versions: a roofline follows from Foretell's own."""
    return {name: _digest(SHIPPED / name / "checksums.json") for name in names()}


def model_version(name: str) -> str:
    known = _shipped()
    if name not in known:
        raise ModelError(f"no model {name!r} on this service. {did_you_mean(name, known)}It has: {', '.join(known)}.")
    return known[name]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
