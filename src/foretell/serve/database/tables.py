"""The tables. Times are seconds since 1970, in UTC; whatever a team keeps names its team."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Role = Literal["reader", "member", "admin"]
State = Literal["queued", "running", "done", "failed", "cancelled"]

_NAME = String(200)
_ID = String(32)
_HASH = String(64)
_TEAM = "teams.id"


class Base(DeclarativeBase):
    """All tables of this version."""

    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012  (SQLAlchemy's own spelling)


class Team(Base):
    __tablename__ = "teams"

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    name: Mapped[str] = mapped_column(_NAME, unique=True)
    created: Mapped[float]


class Key(Base):
    """A secret that a caller shows; only its hash is kept."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM))
    role: Mapped[str] = mapped_column(String(16))
    label: Mapped[str] = mapped_column(_NAME)
    hash: Mapped[str] = mapped_column(_HASH)
    created: Mapped[float]
    revoked: Mapped[float | None]


class StoredGraph(Base):
    """A graph that was read and found right, as the caller sent it."""

    __tablename__ = "graphs"

    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM), primary_key=True)
    hash: Mapped[str] = mapped_column(_HASH, primary_key=True)
    name: Mapped[str] = mapped_column(String(1000))
    ops: Mapped[int]
    training: Mapped[bool]
    precision: Mapped[str] = mapped_column(String(32))
    data: Mapped[bytes] = mapped_column(LargeBinary)
    embedding: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))  # made when it is first asked for
    created: Mapped[float]


class StoredForecast(Base):
    """An answer, found again by `key`: what was asked, of which model, in which version."""

    __tablename__ = "forecasts"
    __table_args__ = (Index("forecasts_by_key", "team_id", "key", unique=True),)

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM))
    key: Mapped[str] = mapped_column(_HASH)
    graph: Mapped[str] = mapped_column(_HASH)
    question: Mapped[dict[str, Any]]
    answer: Mapped[str] = mapped_column(Text)
    workload: Mapped[str] = mapped_column(String(1000))
    cluster: Mapped[str] = mapped_column(String(1000))
    plan: Mapped[str] = mapped_column(String(1000))
    model: Mapped[str] = mapped_column(_NAME)
    seconds: Mapped[float]
    fits: Mapped[bool]
    created_by: Mapped[str] = mapped_column("asked_by", _ID)
    created: Mapped[float]


class StoredPlans(Base):
    """What a search for plans found."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(_ID, primary_key=True)  # that of its job
    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM), index=True)
    question: Mapped[dict[str, Any]]
    answer: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class StoredProfile(Base):
    """A profile that was fitted on a team's measured steps: its file, and the arrays beside it."""

    __tablename__ = "profiles"

    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    device: Mapped[str] = mapped_column(_NAME)
    text: Mapped[str] = mapped_column(Text)
    arrays: Mapped[bytes | None] = mapped_column(LargeBinary)
    steps: Mapped[int]
    created: Mapped[float]


class StoredDevice(Base):
    """A device of a team's own, as a file of the catalog."""

    __tablename__ = "devices"

    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class Measurement(Base):
    """A step that was run and timed, beside the forecast of it where there was one."""

    __tablename__ = "measurements"

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM), index=True)
    graph: Mapped[str] = mapped_column(_HASH)
    cluster: Mapped[str] = mapped_column(String(1000))
    plan: Mapped[str] = mapped_column(String(1000))
    seconds: Mapped[float]
    allocated: Mapped[int | None] = mapped_column(BigInteger)
    reserved: Mapped[int | None] = mapped_column(BigInteger)
    forecast_id: Mapped[str | None] = mapped_column(ForeignKey("forecasts.id"))
    measured_by: Mapped[str] = mapped_column(_ID)
    created: Mapped[float]


class Job(Base):
    """Long work: accepted once it is here, and done by whoever holds its lease."""

    __tablename__ = "jobs"
    __table_args__ = (Index("jobs_by_state", "state", "created"),)

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    team_id: Mapped[str] = mapped_column(ForeignKey(_TEAM), index=True)
    kind: Mapped[str] = mapped_column(String(32))
    question: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text, default="")
    progress: Mapped[float] = mapped_column(default=0.0)
    result: Mapped[str | None] = mapped_column(Text)
    picture: Mapped[str | None] = mapped_column(Text)  # of the result, as HTML
    changes: Mapped[int] = mapped_column(default=0)  # how often it changed: what a listener has seen
    attempts: Mapped[int] = mapped_column(default=0)
    crashes: Mapped[int] = mapped_column(default=0, server_default="0")  # attempts that ended with its own process
    lease: Mapped[str | None] = mapped_column(_ID)  # of the runner that works on it
    lease_until: Mapped[float] = mapped_column(default=0.0)
    begun: Mapped[float] = mapped_column(default=0.0, server_default="0")  # when it was last
    seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")  # that were worked on it
    created_by: Mapped[str] = mapped_column("asked_by", _ID)
    created: Mapped[float]
    ended: Mapped[float | None]


class Audit(Base):
    """Who did what: every request that changed or asked for something, and every one that was refused."""

    __tablename__ = "audit"
    __table_args__ = (Index("audit_by_team", "team_id", "at"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    team_id: Mapped[str | None] = mapped_column(_ID)
    key_id: Mapped[str | None] = mapped_column(_ID)
    address: Mapped[str] = mapped_column(_NAME)
    what: Mapped[str] = mapped_column(String(300))
    status: Mapped[int]
