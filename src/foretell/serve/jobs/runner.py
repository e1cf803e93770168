"""Takes jobs from the queue and has each done in a process of its own, which is ended when the job is cancelled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from foretell.errors import ForetellError
from foretell.hardware.of_a_team import laid_out, taken
from foretell.serve.database.connect import Database, is_away, new_id
from foretell.serve.database.tables import Job
from foretell.serve.hardware import TeamHardware
from foretell.serve.jobs.queue import Queue
from foretell.serve.jobs.work import Done, Gone, JobRequest
from foretell.serve.jobs.worker import made
from foretell.serve.profiles import Profiles
from foretell.serve.settings import Settings
from foretell.serve.worker import pack, unpack
from foretell.supervisor import Child, ChildEnded
from foretell.units import Bytes, Seconds

_LOOK: Final[Seconds] = 1.0  # between two looks into the queue
_RENEWALS: Final = 10  # in a lease; so soon a cancelled job ends, too
_MEMORY: Final[Bytes] = 8 * 2**30
LONGEST: Final[Seconds] = 3600.0  # that one job may take
_SILENT: Final[Seconds] = 60.0  # until runners that do not look any more are reported
_log = logging.getLogger(__name__)
Start = Callable[[], Child]
P = ParamSpec("P")
T = TypeVar("T")


def _fresh() -> Child:
    return Child.fresh("foretell.serve.jobs.worker:serve", memory=_MEMORY)


class Runners:
    """So many threads, each with one job at a time."""

    def __init__(
        self,
        database: Database,
        count: int,
        start: Start = _fresh,
        *,
        longest: Seconds = LONGEST,
        settings: Settings | None = None,
        hardware: TeamHardware | None = None,
    ) -> None:
        self.queue = Queue(database, settings)
        self._database, self._start, self._longest = database, start, longest
        self._ray = None if settings is None else settings.ray
        self._seen = time.monotonic()  # when one of them last looked for work or at its work
        self._profiles, self._hardware = Profiles(database), hardware or TeamHardware(database, 0)
        self._end, self._woken = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"foretell-job-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    @property
    def trouble(self) -> str:
        """Why no job would be begun; "" where one would."""
        if not self._threads or self._end.is_set():
            return ""
        if not any(thread.is_alive() for thread in self._threads):
            return "no runner of jobs is alive."
        silent = time.monotonic() - self._seen
        return f"no runner of jobs has looked at the queue for {silent:.0f} s." if silent > _SILENT else ""

    def close(self) -> None:
        """Jobs in work go back to the queue."""
        self._end.set()
        self._woken.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self) -> None:
        holder = new_id()
        while not self._end.is_set():
            self._seen = time.monotonic()
            try:
                job = self.queue.claim(holder)
                if job is not None:
                    self._outlive(job, holder)
                    continue
            except Exception as error:  # the database is away, or a row is of no use: the next look may find others
                _warn_of(error)
            self._woken.wait(_LOOK)
            self._woken.clear()

    def _outlive(self, job: Job, holder: str) -> None:
        """Whatever comes of a job, its runner goes on."""
        try:
            self._do(job, holder)
        except Exception as error:
            if is_away(error):
                raise  # its lease ends, and the job is begun again
            _log.exception("job %s could not be run", job.id)
            self._kept(self.queue.crashed, job, holder, f"could not be run ({type(error).__name__})")

    def _kept(self, keep: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What the queue says once it has kept something: an hour's work is not lost with a database that is away for a
        minute. Where another has begun the job meanwhile, the queue keeps nothing of this one."""
        while True:
            self._seen = time.monotonic()
            try:
                return keep(*arguments, **named)
            except SQLAlchemyError as error:
                if not is_away(error) or self._end.is_set():
                    raise
                _warn_of(error)
            self._end.wait(_LOOK)

    def _do(self, job: Job, holder: str) -> None:
        try:
            request = made(job.kind, job.question)
            devices = self._hardware.of(job.team_id)
            with self._database.reading() as session, taken(laid_out(devices)):
                material = request.material(session, job.team_id)
            profile = self._profiles.path(job.team_id, job.question.get("profile"))
        except (Gone, ForetellError) as error:
            self._kept(self.queue.fail, job.id, holder, str(error))
            return
        except (SQLAlchemyError, OSError):  # of the machine or the database, not of what was asked
            raise
        except Exception as error:
            _log.warning("job %s cannot be read", job.id, exc_info=True)
            why = f"this version of Foretell cannot read it ({type(error).__name__}). Ask anew."
            self._kept(self.queue.fail, job.id, holder, why)
            return
        head = {"kind": job.kind, "question": job.question, "profile": profile and str(profile), "ray": self._ray}
        head["devices"] = devices
        with self._start() as child:
            try:
                child.send(pack(head, material))
                self._listen(child, job, request, holder)
            except ChildEnded as ended:  # begun again, a few times
                _log.warning("the process of job %s %s. %s", job.id, ended.how, ended.words)
                self._kept(self.queue.crashed, job, holder, ended.how)

    def _listen(self, child: Child, job: Job, request: JobRequest, holder: str) -> None:
        ends = time.monotonic() + self._longest
        while not self._end.is_set():
            message = None
            try:
                reply, body = unpack(child.receive(self.queue.lease / _RENEWALS))
            except TimeoutError:
                if time.monotonic() > ends:
                    why = f"it took longer than {self._longest:g} s and was stopped."
                    self._kept(self.queue.fail, job.id, holder, why)
                    return
            else:
                if "done" in reply:
                    done = Done(result=reply["result"], picture=reply["picture"], file=body)
                    self._kept(self.queue.done, job.id, holder, request, done)
                    return
                if "error" in reply:
                    self._kept(self.queue.fail, job.id, holder, reply["error"])
                    return
                message = reply["message"]
            if not self._kept(self.queue.renew, job.id, holder, message):
                return
        self.queue.give_back(job.id, holder)


def _warn_of(error: Exception) -> None:
    if is_away(error):
        _log.warning("the database does not answer: %s", str(error).partition("\n")[0])
    else:
        _log.error("the queue of jobs cannot be read", exc_info=error)
