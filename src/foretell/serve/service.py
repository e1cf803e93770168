"""The parts of a running service, and the questions it answers whatever the way they came in."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import bindparam, func, select
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from foretell.engine import engine_digest
from foretell.errors import ForetellError, InputError
from foretell.serve.access.audit import AuditLog
from foretell.serve.access.keys import Caller, Keyring, has_keys, local_caller
from foretell.serve.access.rates import Rates
from foretell.serve.answers import Answer, Answers
from foretell.serve.cluster_resources import Collector
from foretell.serve.database.connect import Database, new_id, now
from foretell.serve.database.tables import Job, StoredForecast, StoredGraph
from foretell.serve.fitted_methods import FittedMethods
from foretell.serve.hardware import TeamHardware
from foretell.serve.inference_engine import InferenceEngine
from foretell.serve.jobs.capture import CaptureRequest
from foretell.serve.jobs.runner import Runners
from foretell.serve.jobs.work import JobRequest
from foretell.serve.metrics import Metrics
from foretell.serve.problems import Problem, missing, of_error
from foretell.serve.profiles import Profiles
from foretell.serve.requests import ForecastRequest, PredictionRequest
from foretell.serve.settings import Settings
from foretell.serve.task_checker import TaskChecker
from foretell.serve.workload_embeddings import Neighbour, WorkloadEmbeddings
from foretell.serve.zoo import Zoo
from foretell.units import Seconds

T = TypeVar("T")
_EMBEDDING: Final[Seconds] = 1.0  # that one request about networks like another may have others embedded
# Made once, and of columns alone: a statement and a row as an object cost a millisecond of every question.
_GRAPHS: Final = StoredGraph.metadata.tables[StoredGraph.__tablename__]
_FORECASTS: Final = StoredForecast.metadata.tables[StoredForecast.__tablename__]
_KEPT: Final = _FORECASTS.insert()
_ANSWER: Final = (
    select(_FORECASTS.c.id, _FORECASTS.c.answer)
    .select_from(_GRAPHS)
    .outerjoin(_FORECASTS, (_FORECASTS.c.team_id == _GRAPHS.c.team_id) & (_FORECASTS.c.key == bindparam("key")))
    .where(_GRAPHS.c.team_id == bindparam("team"), _GRAPHS.c.hash == bindparam("graph"))
)


class Service:
    def __init__(
        self, settings: Settings, start_engine: Callable[[Settings], InferenceEngine] = InferenceEngine
    ) -> None:
        engine_digest()  # of the files as they are while this code is loaded
        self.settings = settings
        self.methods = FittedMethods(settings.methods)
        self.database = Database(settings.database)
        self.is_open = not has_keys(self.database)
        if self.is_open and not settings.is_loopback:
            self.database.close()
            raise InputError(
                f"--host {settings.host} can be reached by others, and there are no keys yet. "
                "Make one: foretell serve key TEAM; or listen on 127.0.0.1."
            )
        self.local = local_caller(self.database) if self.is_open else None
        self.keyring = Keyring(self.database)
        self.rates = Rates(settings.rate)
        self.audit = AuditLog(self.database)
        self.metrics = Metrics()
        self.engine = start_engine(settings)
        self.hardware = TeamHardware(self.database, settings.team_devices)
        self.jobs = Runners(self.database, settings.job_runners, settings=settings, hardware=self.hardware)
        self.profiles = Profiles(self.database)
        self.checker = TaskChecker(self.database, self.profiles)
        self.zoo = Zoo()
        self.collector = Collector(settings.ray)
        self.embeddings = WorkloadEmbeddings(self.database)
        self.answers = Answers()
        self.stopping = False
        self.streams = 0  # listeners to the events of jobs
        self.metrics.watch("foretell_questions_waiting", "Questions in work or waiting.", lambda: self.engine.waiting)
        self.metrics.watch("foretell_jobs_waiting", "Jobs in work or waiting.", self.jobs.queue.waiting)
        self.metrics.watch("foretell_audit_lost", "Rows of the audit log that were lost.", lambda: self.audit.dropped)
        self._asking: dict[tuple[str, str], asyncio.Task[Answer]] = {}
        self._embedding: dict[str, asyncio.Task[None]] = {}  # by team

    def close(self) -> None:
        self.jobs.close()
        self.engine.close()
        self.audit.close()
        self.database.close()

    # Long work

    def begin(self, caller: Caller, kind: str, request: JobRequest) -> Job:
        """Accepted once this returns: it is in the database."""
        request.check()
        if isinstance(request, CaptureRequest):
            self.zoo.check(request.source)
        self.profiles.path(caller.team, getattr(request, "profile", None))
        job = self.jobs.queue.add(caller, kind, request)
        self.jobs.wake()
        return job

    # Graphs

    async def keep_graph(self, caller: Caller, data: bytes) -> StoredGraph:
        """Checked first, in a process of its own; then kept as it was sent."""
        about = await self._in_engine(lambda: self.engine.read(data))

        def keep() -> StoredGraph:
            with self.database.reading() as session:
                known = session.get(StoredGraph, (caller.team, about["hash"]))
                count = select(func.count()).select_from(StoredGraph).filter_by(team_id=caller.team)
                kept = 0 if known is not None else session.scalar(count) or 0
            if known is not None:
                return known
            if kept >= self.settings.team_graphs:
                raise Problem(
                    409, f"{kept:,} graphs of your team are kept.", allowed=f"{self.settings.team_graphs:,}",
                    next="Ask whoever runs the service for more (team_graphs among its settings).",
                )  # fmt: skip
            graph = StoredGraph(team_id=caller.team, data=data, created=now(), **about)
            try:
                with self.database.writing() as session:
                    session.add(graph)
            except IntegrityError:  # the same one came twice at once
                return self.graph(caller, about["hash"])
            return graph

        return await run_in_threadpool(keep)

    def graph(self, caller: Caller, name: str) -> StoredGraph:
        with self.database.reading() as session:
            found = session.get(StoredGraph, (caller.team, name))
        if found is None:
            raise missing("graph", name)
        return found

    async def nearest(self, caller: Caller, name: str, most: int) -> list[Neighbour]:
        """Networks like this one, of those that have an embedding: it gets one, then others, the newest first, for a second.

        Those that are left get theirs while nobody waits.
        """
        if (await run_in_threadpool(self.graph, caller, name)).embedding is None:
            await self._embed(caller, name)
        ends = asyncio.get_running_loop().time() + _EMBEDDING
        left = await run_in_threadpool(self.embeddings.missing, caller)
        while left and asyncio.get_running_loop().time() < ends:
            await self._embed(caller, left.pop(0))
        if left and caller.team not in self._embedding:
            task = self._embedding[caller.team] = asyncio.create_task(self._embed_all(caller, left))
            task.add_done_callback(lambda done: self._embedding.pop(caller.team, None))
        return await run_in_threadpool(self.embeddings.nearest, caller, name, most)

    async def _embed(self, caller: Caller, name: str) -> None:
        data = (await run_in_threadpool(self.graph, caller, name)).data
        vector = await self._in_engine(functools.partial(self.engine.embed, data))
        await run_in_threadpool(self.embeddings.keep, caller, name, vector)

    async def _embed_all(self, caller: Caller, names: list[str]) -> None:
        """One after another, as long as questions do not wait: the next request about neighbours goes on with the rest."""
        with contextlib.suppress(Problem):
            for name in names:
                if self.stopping or self.engine.waiting:
                    return
                await self._embed(caller, name)

    async def predict(self, caller: Caller, name: str, question: PredictionRequest) -> dict[str, Any]:
        """What a fitted method says of a step of the team's."""
        known = self.methods.named(name)
        found = await run_in_threadpool(self.graph, caller, question.graph)  # the team's, or nobody answers
        devices = await run_in_threadpool(self.hardware.of, caller.team)
        try:
            question.check()
            predicted = await self._in_engine(
                lambda: self.engine.predict(question, known.folder, lambda: found.data, devices)
            )
        except ForetellError as error:
            raise of_error(error, question.model_dump()) from error
        return {"name": known.name, "method": known.method, **predicted}

    # Forecasts

    async def forecast(self, caller: Caller, question: ForecastRequest) -> tuple[Answer, bool]:
        """The answer, and whether it was at hand. Who asks the same at the same time waits for the same answer."""
        try:
            if question.profile is None:  # as most are: nothing to wait for that a thread would be worth
                profile, name = None, question.key(None)
            else:
                profile, name = await run_in_threadpool(self._named, caller, question)
            key = (caller.team, name)
        except ForetellError as error:
            raise of_error(error, question.model_dump()) from error
        if (known := self.answers.get(key)) is not None:
            return known, True
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._forecast(caller, question, key[1], profile))
            task.add_done_callback(lambda done: self._asking.pop(key, None))
        return await asyncio.shield(task), False

    def _named(self, caller: Caller, question: ForecastRequest) -> tuple[Path | None, str]:
        """The file of its profile, and the key of its answer."""
        profile = self.profiles.path(caller.team, question.profile)
        return profile, question.key(profile)

    async def _forecast(self, caller: Caller, question: ForecastRequest, key: str, profile: Path | None) -> Answer:
        try:
            answer = await self._in_engine(lambda: self._found_or_priced(caller, question, key, profile))
        except ForetellError as error:
            raise of_error(error, question.model_dump()) from error
        self.answers.put((caller.team, key), answer)
        return answer

    async def drawn(self, caller: Caller, id: str, window: tuple[float, float], *, whole: bool) -> str:
        """The whole report of a forecast that was given before, or a part of its timeline alone, as HTML."""
        found = await run_in_threadpool(self.stored, caller, id)
        question = ForecastRequest.model_validate(found.question)
        profile = await run_in_threadpool(self.profiles.path, caller.team, question.profile)
        if await run_in_threadpool(question.key, profile) != found.key:
            raise Problem(
                409, "the model, the catalog or the profile has changed since this forecast, and a report would be of another.",
                next=f"Its numbers are at /v1/forecasts/{id}; ask again for a report of today's.",
            )  # fmt: skip
        load = functools.partial(self.graph, caller, question.graph)
        return await self._in_engine(
            lambda: self.engine.draw(
                question,
                found.key,
                profile,
                lambda: load().data,
                devices=self.hardware.of(caller.team),
                id=id,
                window=window,
                whole=whole,
            )
        )

    def stored(self, caller: Caller, id: str) -> StoredForecast:
        with self.database.reading() as session:
            found = session.scalar(select(StoredForecast).filter_by(team_id=caller.team, id=id))
        if found is None:
            raise missing("forecast", id)
        return found

    def _found_or_priced(self, caller: Caller, question: ForecastRequest, key: str, profile: Path | None) -> Answer:
        known = self._known(caller, question, key)
        return self._price(caller, question, key, profile) if known is None else known

    def _known(self, caller: Caller, question: ForecastRequest, key: str) -> Answer | None:
        question.check()
        found = self.database.read(_ANSWER, team=caller.team, graph=question.graph, key=key)
        if found is None:
            raise missing("graph", question.graph)
        return None if found.id is None else Answer(id=found.id, body=found.answer.encode())

    def _price(self, caller: Caller, question: ForecastRequest, key: str, profile: Path | None) -> Answer:
        load = functools.partial(self.graph, caller, question.graph)
        devices = self.hardware.of(caller.team)
        about, body = self.engine.forecast(question, key, profile, lambda: load().data, devices)
        row = {
            "id": new_id(), "team_id": caller.team, "key": key, "graph": question.graph, "question": question.model_dump(),
            "answer": body.decode(), "asked_by": caller.key, "created": now(), **about,
        }  # fmt: skip
        try:
            self.database.add(_KEPT, row)
        except IntegrityError:  # another process of the service was first
            if (first := self._known(caller, question, key)) is not None:
                return first
            raise
        return Answer(id=row["id"], body=body)

    async def _in_engine(self, do: Callable[[], T]) -> T:
        """In a thread that finds what the team of the request finds."""
        within = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self.engine.threads, within.run, do)
