"""A campaign: many points measured on the devices there are, on this machine or on a Ray cluster, into one store.

`run` alone writes to the store, a record as soon as it is there, so whatever dies takes with it no more than the points
being measured, and the same call goes on from there. An executor only knows places and points.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from foretell.campaign.executor import ClusterUnreachable, Ended, Executor
from foretell.campaign.jobs import Campaign, Job
from foretell.campaign.worker import Place, failure
from foretell.errors import ForetellError, InputError
from foretell.folders import home
from foretell.measure.record import FINAL, Point, Record, StepRow
from foretell.store.lines import RecordFile
from foretell.units import Seconds, show_seconds

RETRIES: Final = 2
LIMIT: Final[Seconds] = 1800.0
_AGAIN: Final[Seconds] = 1.0  # until a point that another campaign measures is looked at again
_RESUME: Final = "Run the same command to go on: what is stored is not measured again."


class CampaignStopped(ForetellError):
    """The campaign cannot go on; what was measured is kept, and the text says where."""


class Records(Protocol):
    """What a campaign asks of a store."""

    def append(self, records: Iterable[Record], /) -> object: ...
    def claim(self, name: str, /) -> AbstractContextManager[bool]: ...
    def done(self, device: str | None = None, /) -> frozenset[str]: ...
    def steps(self, where: str | None = None, /) -> Iterator[StepRow]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    done: int  # with those that were stored before
    total: int
    failed: int
    running: int
    seconds_left: Seconds | None  # unknown before the first point
    event: str  # what just happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    outcomes: Mapping[str, int]  # of what was measured now
    skipped: int  # stored before, or by another campaign meanwhile
    retried: int
    left: tuple[tuple[Job, str], ...]  # not measured, and why
    seconds: Seconds

    @property
    def measured(self) -> int:
        return self.outcomes.get("ok", 0)

    @property
    def failed(self) -> int:
        return sum(self.outcomes.values()) - self.measured

    def __str__(self) -> str:
        parts = [f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()) if outcome != "ok"]
        parts = [f"{self.measured} measured", *parts]
        for count, what in ((self.skipped, "stored before"), (self.retried, "retried"), (len(self.left), "left")):
            parts += [f"{count} {what}"] if count else []
        return f"{', '.join(parts)} in {show_seconds(self.seconds)}"


def run(
    campaign: Campaign,
    store: Records,
    executor: Executor,
    *,
    retries: int = RETRIES,
    limit: Seconds = LIMIT,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Measure what the store does not hold yet, and close the executor.

    Two campaigns may share a store: each waits for what the other measures.

    Args:
        campaign: What to measure.
        store: A `Store` or a `RecordFile`.
        executor: Where: a `LocalExecutor`, or one of Ray.
        retries: How often a point is tried again when the process or node that measures it dies.
        limit: Seconds after which a point is stopped.
        progress: Is called after each point.

    Returns:
        How many points were measured, known before or failed.

    Raises:
        InputError: No device is the one a job is wanted on.

    Examples:
        >>> foretell.run_campaign(campaign, foretell.Store("mine"), foretell.LocalExecutor())  # doctest: +SKIP
    """
    driver = _Driver(campaign, store, executor, retries, limit, progress or (lambda progress: None))
    try:
        driver.drive()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted: {driver.so_far()}. {_RESUME}") from None
    except ClusterUnreachable as error:
        raise CampaignStopped(f"{error} {driver.so_far()}. {_RESUME}") from error
    finally:
        executor.close()  # before the claims: another campaign may begin where ours has ended
        driver.release()
    return driver.summary()


@dataclass(frozen=True, slots=True)
class _Turn:
    """One of the times a job is measured."""

    job: Job
    number: int

    def claim(self, store: Records, place: Place) -> ExitStack | None:
        """Keeps other campaigns from measuring it meanwhile; None while one of them does."""
        claims = ExitStack()
        for device in (place.device,) if self.job.device else (place.device, "any"):
            if not claims.enter_context(store.claim(f"{self.job.point.key} {self.number} {device}")):
                claims.close()
                return None
        return claims


@dataclass(slots=True)
class _Running:
    turn: _Turn
    place: Place
    claim: ExitStack
    began: float


@dataclass(slots=True)
class _Driver:
    campaign: Campaign
    store: Records
    executor: Executor
    retries: int
    limit: Seconds
    report: Callable[[Progress], None]
    waiting: dict[_Turn, None] = field(init=False)  # in order
    aside: dict[_Turn, float] = field(default_factory=dict)  # claimed by another campaign; when to look again
    running: dict[str, _Running] = field(default_factory=dict)  # by place
    tries: Counter[_Turn] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    left: list[tuple[Job, str]] = field(default_factory=list)
    stored: dict[str, frozenset[str]] = field(default_factory=dict)  # device → points, when last asked
    reported: str = ""  # of what is waited for
    skipped: int = 0
    retried: int = 0
    busy: Seconds = 0.0  # of all places together
    total: int = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        jobs = self.campaign.jobs
        most = max((job.repeat for job in jobs), default=0)
        self.waiting = {_Turn(job, n): None for n in range(most) for job in jobs if n < job.repeat}
        self.total = len(self.waiting)

    def drive(self) -> None:
        idle_since = time.monotonic()
        while self.waiting or self.running:
            self._give_out()
            if self.running:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= self.executor.patience:
                self._leave_what_fits_nowhere()
            if self.waiting or self.running:
                self._say_what_is_waited_for()
                self._take(self.executor.wait(_AGAIN))

    def _give_out(self) -> None:
        for place in self.executor.places():
            if place.id not in self.running and (found := self._next_for(place)) is not None:
                turn, claim = found
                del self.waiting[turn]
                self.running[place.id] = _Running(turn, place, claim, time.monotonic())
                self.executor.start(place, turn.job.point, self.limit)
                self._say(
                    f"{turn.job.point} on {place}: waiting until it is built, warmed up and timed, {show_seconds(self.limit)} at most"
                )

    def _say_what_is_waited_for(self) -> None:
        """Where nothing runs: once, until it is something else."""
        if self.running or not self.waiting:
            self.reported = ""
            return
        turn, others = next(iter(self.waiting)), len(self.waiting) - 1
        more = f" and {others} more" if others else ""
        if turn in self.aside:
            text = f"waiting for another campaign, which measures {turn.job.point}{more}"
        else:
            wanted = f"a device {turn.job.device!r}" if turn.job.device else "a device"
            there = ", ".join(map(str, self.executor.places())) or "none"
            text = f"waiting for {wanted}, for {turn.job.point}{more}; there is {there}"
        if text != self.reported:
            self.reported = text
            self._say(text)

    def _next_for(self, place: Place) -> tuple[_Turn, ExitStack] | None:
        """The first turn that fits the place and that nobody has measured or measures; with our claim to it."""
        for turn in list(self.waiting):
            if not place.fits(turn.job.device) or self.aside.get(turn, 0.0) > time.monotonic():
                continue
            if self._is_stored(turn, place):
                self._skip(turn)
                continue
            claim = turn.claim(self.store, place)
            if claim is None:
                self.aside[turn] = time.monotonic() + _AGAIN
                continue
            self.stored.clear()  # another campaign may have stored it just before our claim
            if self._is_stored(turn, place):
                claim.close()
                self._skip(turn)
                continue
            return turn, claim
        return None

    def _is_stored(self, turn: _Turn, place: Place) -> bool:
        """On this type of device; where any will do, on any type that could be asked."""
        devices = {place.device}
        if not turn.job.device:
            devices |= {other.device for other in self.executor.places() if other.takes_any}
        return any(self._count(turn.job.point, device, turn.number) > turn.number for device in devices)

    def _count(self, point: Point, device: str, enough: int) -> int:
        if device not in self.stored:
            self.stored[device] = self.store.done(device)
        once = point.key in self.stored[device]
        if not once or not enough:
            return int(once)
        rows = self.store.steps(f"point = '{point.key}'")
        return sum(row.outcome in FINAL and device in (row.device, row.device_name) for row in rows)

    def _skip(self, turn: _Turn) -> None:
        del self.waiting[turn]
        self.skipped += 1
        self._say(f"{turn.job.point}: stored before")

    def _leave_what_fits_nowhere(self) -> None:
        places = self.executor.places()
        for turn in [t for t in self.waiting if not any(place.fits(t.job.device) for place in places)]:
            del self.waiting[turn]
            why = f"no device here is {turn.job.device!r}" if turn.job.device else "there is no device to measure on"
            why += f"; there is {', '.join(map(str, places)) or 'none'}."
            why += "".join(f" {text}" for text in self.executor.troubles.values())
            self.left.append((turn.job, why))
            self._say(f"{turn.job.point}: {why}")

    def _take(self, ended: Sequence[Ended]) -> None:
        arrived: list[tuple[_Running, Record]] = []
        for end in ended:
            now = self.running.pop(end.place, None)
            if now is None:
                continue  # a second answer for a point that has one
            record = end.record or self._try_again(now, end)
            if record is None:
                now.claim.close()
            else:
                arrived.append((now, record))
        if arrived:
            self._keep([record for _, record in arrived])
        for now, record in arrived:
            now.claim.close()
            self.busy += time.monotonic() - now.began
            self.outcomes[record.step.outcome] += 1
            why = f": {record.step.error}" if record.step.error else ""
            self._say(f"{now.turn.job.point} on {now.place}: {record.step.outcome}{why}")

    def _try_again(self, now: _Running, end: Ended) -> Record | None:
        """Back to the end of the queue, or the record of giving up."""
        self.tries[now.turn] += end.counts
        if (tries := self.tries[now.turn]) > self.retries:
            text = f"given up after {tries} tr{'ies' if tries > 1 else 'y'}: {end.trouble}"
            return failure(now.turn.job.point, "error", text, now.place.columns)
        self.waiting[now.turn] = None
        self.retried += end.counts
        self._say(f"{now.turn.job.point} on {now.place}: {end.trouble} It is tried again.")
        return None

    def _keep(self, records: list[Record]) -> None:
        try:
            self.store.append(records)
        except (InputError, OSError) as error:  # no room, no right, or a record that cannot be
            raise CampaignStopped(f"{error} {rescue(records)} {self.so_far()}. {_RESUME}") from error

    def _say(self, event: str) -> None:
        finished = sum(self.outcomes.values())
        share = (len(self.waiting) + len(self.running)) / max(1, len(self.executor.places()))
        progress = Progress(
            done=self.done,
            total=self.total,
            failed=finished - self.outcomes["ok"],
            running=len(self.running),
            seconds_left=self.busy / finished * share if finished else None,
            event=event,
        )
        self.report(progress)

    @property
    def done(self) -> int:
        return sum(self.outcomes.values()) + self.skipped

    def release(self) -> None:
        for now in self.running.values():
            now.claim.close()

    def so_far(self) -> str:
        return f"{self.done} of {self.total} points are stored"

    def summary(self) -> Summary:
        outcomes, left, seconds = dict(self.outcomes), tuple(self.left), time.monotonic() - self.began
        return Summary(outcomes=outcomes, skipped=self.skipped, retried=self.retried, left=left, seconds=seconds)


def rescue(records: Iterable[Record]) -> str:
    """Save what the store could not take, wherever there is room."""
    for folder in filter(None, (Path(tempfile.gettempdir()), home(), Path.cwd())):
        file = RecordFile(folder / f"foretell-rescued-{os.getpid()}.jsonl")
        with contextlib.suppress(InputError):
            file.append(records)
            return f"What was measured last is in {file.path}; take it in with: foretell store import {file.path}"
    return "What was measured last could not be saved anywhere else either."
