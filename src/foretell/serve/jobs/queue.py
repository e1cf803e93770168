"""The queue, which is a table: a job that was accepted is in it until it is done, whatever becomes of the processes.

Whoever works on a job holds a lease of it and renews that. A lease that ends, because its holder was killed, lets the next
one begin again; a job that was begun in vain many times waits ever longer, so that one which ends services stalls no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session, aliased

from foretell.serve.access.keys import Caller
from foretell.serve.database.connect import Database, new_id, now
from foretell.serve.database.tables import Job
from foretell.serve.jobs.work import Done, Gone, JobRequest
from foretell.serve.problems import Problem, missing
from foretell.serve.settings import Settings
from foretell.text import brief, plain
from foretell.units import Seconds

Keep = Callable[[Session, Job], None]
ENDED: Final = ("done", "failed", "cancelled")
_DAY: Final[Seconds] = 86_400.0
_MAX_CRASHES: Final = 5
_PAUSE: Final[Seconds] = 1.0  # after the first crash; what the machine lacked for a moment is there again by the last
_AT_ONCE: Final = 5  # attempts that services were killed in: each one more waits another lease
_MAX_ATTEMPTS: Final = 100  # by then it has waited for most of a day
_LONGEST: Final = 4000


class Queue:
    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self._database, self._settings = database, settings or Settings()
        self.lease = self._settings.lease

    def add(self, caller: Caller, kind: str, request: JobRequest) -> Job:
        with self._database.writing() as session:
            try:
                request.material(session, caller.team)
            except Gone as gone:
                raise gone.problem() from None
            self._check_quotas(session, caller.team)
            job = Job(
                id=new_id(), team_id=caller.team, kind=kind, question=request.model_dump(), state="queued", message="", progress=0.0,
                changes=1, attempts=0, lease_until=0.0, created_by=caller.key, created=now(),
            )  # fmt: skip
            session.add(job)
        return job

    def _check_quotas(self, session: Session, team: str) -> None:
        own, most = Job.team_id == team, self._settings
        waiting = session.scalar(select(func.count()).select_from(Job).where(own, Job.state.not_in(ENDED))) or 0
        if waiting >= most.team_jobs:
            raise Problem(
                429, f"{waiting} jobs of your team wait or run.", allowed=f"{most.team_jobs} at a time",
                next="Wait for some to end, or cancel them.", headers={"Retry-After": "30"},
            )  # fmt: skip
        worked = session.scalar(select(func.sum(Job.seconds)).where(own, Job.begun > now() - _DAY)) or 0.0
        if worked >= most.team_seconds:
            raise Problem(
                429, f"{worked:,.0f} s were worked on jobs of your team within a day.",
                allowed=f"{most.team_seconds:,.0f} s", next="Ask again tomorrow.", headers={"Retry-After": "3600"},
            )  # fmt: skip

    def claim(self, holder: str) -> Job | None:
        """A job that nobody works on, now the holder's: teams take turns, and each has its oldest one done."""
        others = aliased(Job)
        same = others.team_id == Job.team_id
        in_work = (others.state == "running") & (others.lease_until >= now())
        running = select(func.count()).select_from(others).where(same, in_work).scalar_subquery()
        last = select(func.coalesce(func.max(others.begun), 0.0)).where(same).scalar_subquery()
        with self._database.writing() as session:
            over = Job.lease_until < now()
            rested = Job.lease_until < now() - (Job.attempts - _AT_ONCE) * self.lease
            free = or_((Job.state == "queued") & over, (Job.state == "running") & over & rested)
            turn = select(Job).where(free).order_by(running, last, Job.created).limit(1)
            found = session.scalar(turn.with_for_update(skip_locked=True, of=Job))
            if found is None:
                return None
            found.changes += 1
            if found.attempts >= _MAX_ATTEMPTS:
                found.state, found.lease, found.ended = "failed", None, now()
                found.message = f"the service ended {found.attempts} times while it was at work on it."
                return None
            found.state, found.lease, found.lease_until = "running", holder, now() + self.lease
            found.attempts, found.begun = found.attempts + 1, now()
            return found

    def renew(self, id: str, holder: str, message: str | None = None) -> bool:
        """False where the job is not the holder's any more: it was cancelled, or somebody else has it."""
        changed: dict[str, Any] = {"lease_until": now() + self.lease}
        if message is not None:
            changed |= {"message": _shown(message), "changes": Job.changes + 1}
        return self._change(id, holder, changed)

    def fail(self, id: str, holder: str, message: str) -> bool:
        return self._end(id, holder, {"state": "failed", "message": _shown(message)})

    def done(self, id: str, holder: str, request: JobRequest, done: Done) -> bool:
        found = {"state": "done", "message": "", "result": done.result, "picture": done.picture}
        return self._end(id, holder, found, lambda session, job: request.keep(session, job, done))

    def give_back(self, id: str, holder: str) -> None:
        """It is the next one's, at once, and this was no attempt."""
        self._change(id, holder, _again("", now()) | {"attempts": Job.attempts - 1})

    def crashed(self, job: Job, holder: str, how: str) -> None:
        """Its process did, in words like "ended with exit code 3": begun again after a while, and given up in the end."""
        crashes = job.crashes + 1
        if crashes >= _MAX_CRASHES:
            why = f"its process ended {crashes} times before it was done. The last one {how}."
            self._end(job.id, holder, {"state": "failed", "message": _shown(why), "crashes": crashes})
            return
        changed = _again(f"its process {how}; it begins again.", now() + _PAUSE * crashes**2)
        self._change(job.id, holder, changed | {"crashes": crashes})

    def get(self, caller: Caller, id: str) -> Job:
        with self._database.reading() as session:
            found = session.scalar(select(Job).filter_by(team_id=caller.team, id=id))
        if found is None:
            raise missing("job", id)
        return found

    def cancel(self, caller: Caller, id: str) -> Job:
        return self._turn(caller, id, ("queued", "running"), "cancelled")

    def resume(self, caller: Caller, id: str) -> Job:
        return self._turn(caller, id, ("cancelled", "failed"), "queued")

    def waiting(self) -> int:
        with self._database.reading() as session:
            return session.scalar(select(func.count()).select_from(Job).where(Job.state.not_in(ENDED))) or 0

    def _turn(self, caller: Caller, id: str, states: tuple[str, ...], state: str) -> Job:
        with self._database.writing() as session:
            found = session.scalar(select(Job).filter_by(team_id=caller.team, id=id).with_for_update())
            if found is None:
                raise missing("job", id)
            if found.state not in states:
                raise Problem(
                    409, f"the job is {found.state}.", got=found.state, allowed=" or ".join(states),
                    next=f"See GET /v1/jobs/{id}.",
                )  # fmt: skip
            found.state, found.lease, found.changes = state, None, found.changes + 1
            found.attempts = found.crashes = 0
            found.lease_until = 0.0
            found.ended = now() if state in ENDED else None
            found.message = ""
        return found

    def _end(self, id: str, holder: str, changed: dict[str, Any], keep: Keep | None = None) -> bool:
        ended = {"lease": None, "ended": now(), "changes": Job.changes + 1} | _worked()
        return self._change(id, holder, changed | ended, keep)

    def _change(self, id: str, holder: str, changed: dict[str, Any], keep: Keep | None = None) -> bool:
        with self._database.writing() as session:
            ours = (Job.id == id, Job.lease == holder, Job.state == "running")
            job = session.scalar(update(Job).where(*ours).values(changed).returning(Job))
            if job is not None and keep is not None:
                keep(session, job)
            return job is not None


def _again(message: str, at: float) -> dict[str, Any]:
    queued = {"state": "queued", "lease": None, "lease_until": at, "message": _shown(message)}
    return queued | {"changes": Job.changes + 1} | _worked()


def _worked() -> dict[str, Any]:
    return {"seconds": Job.seconds + (now() - Job.begun)}


def _shown(text: str) -> str:
    return brief(plain(text))[:_LONGEST]
