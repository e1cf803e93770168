"""A whole job: steps for as many samples or tokens as asked, with pauses, a start and interruptions that lose work."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from foretell.errors import InputError, check_count, check_number
from foretell.units import Dollars, Seconds, parse_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Every so many steps the job stops for a while.

    Args:
        every: Steps between two pauses.
        seconds: How long each of them takes.

    Examples:
        >>> foretell.Pause.parse("1000:45s")
        Pause(every=1000, seconds=45.0)
    """

    every: int  # steps
    seconds: Seconds

    def __post_init__(self) -> None:
        check_count("every", self.every, InputError)
        check_number("seconds of a pause", self.seconds, "a number of at least 0", InputError)

    @classmethod
    def parse(cls, text: str) -> Pause:
        """Read `1000:45s`: every 1,000 steps, 45 seconds."""
        every, colon, length = text.partition(":")
        if not colon or re.fullmatch(r"\s*[0-9]{1,12}\s*", every) is None:
            raise InputError(f"a pause is STEPS:SECONDS, got {text!r}. Write it like 1000:45s.")
        return cls(every=int(every), seconds=parse_seconds(length))

    def total(self, steps: int) -> Seconds:
        return steps // self.every * self.seconds


# Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on 16,384 H100.
USUAL_FAILURES: Final = 2e-5  # per device and hour
# Bamboo (arXiv 2204.12013) replays traces of spot clusters that lose 10, 16 and 33 % of their nodes per hour.
USUAL_PREEMPTIONS: Final = 0.10  # per spot node and hour
USUAL_STARTUP: Final[Seconds] = 300.0  # until the first step (docs/guide/planning.md)
_LONGEST: Final[Seconds] = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """How often a job is stopped, by failures or because a spot instance is taken back, and what it takes to go on.

    Work since the last checkpoint is done again; without checkpoints, all of it.

    Args:
        per_device_hour: Failures per device and hour.
        restart: Seconds until the job goes on.
        per_node_hour: How often spot nodes are taken back, per node and hour.

    Examples:
        >>> foretell.Interruptions(per_node_hour=0.1, restart=300.0).restart
        300.0
    """

    per_device_hour: float = USUAL_FAILURES
    restart: Seconds = 600.0
    per_node_hour: float = 0.0  # of spot nodes that are taken back

    def __post_init__(self) -> None:
        check_number("interruptions", self.per_device_hour, "per device and hour, from 0 to 1000", InputError, most=1e3)
        check_number("preemptions", self.per_node_hour, "per node and hour, from 0 to 1000", InputError, most=1e3)
        check_number("seconds of a restart", self.restart, "a number of at least 0", InputError)

    def rate(self, devices: int, nodes: int = 1) -> float:
        """Per second, of all of them."""
        return (self.per_device_hour * devices + self.per_node_hour * nodes) / 3600

    def lengthened(self, work: Seconds, segment: Seconds, devices: int, nodes: int = 1) -> Seconds:
        """What `work` takes on average, where each `segment` of it is tried until it is not interrupted.

        An interrupted try ends after an exponential time, so a segment takes (1/rate + restart) × (e^(rate × segment) − 1).
        """
        rate = self.rate(devices, nodes)
        segment = min(segment, work)
        if not rate or not segment:
            return work
        if rate * segment > 50:
            return _LONGEST
        return min(work / segment * (1 / rate + self.restart) * math.expm1(rate * segment), _LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job takes: `seconds` are its start, its steps, its pauses and what interruptions cost; low to high is 90 %."""

    steps: int
    seconds: Seconds
    evaluation_seconds: Seconds
    checkpoint_seconds: Seconds
    dollars: Dollars | None
    joules: float
    low: Seconds | None = None
    high: Seconds | None = None
    startup_seconds: Seconds = 0.0
    interruption_seconds: Seconds = 0.0  # to interruptions: work done again, and restarts
    goodput: float = 1.0  # the part of the time in which steps were made that count

    def share(self, seconds: Seconds | None) -> float | None:
        """Of the job as forecast, by which dollars and joules change too."""
        return None if seconds is None or not self.seconds else seconds / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLength:
    """How long a job trains, in samples or in tokens, its start, its pauses and its interruptions.

    Args:
        samples: To train on, in all; or else `tokens`.
        tokens: To train on, in all.
        evaluation: How often the job stops to evaluate, and for how long.
        checkpoint: The same for checkpoints.
        startup: Seconds before the first step.
        interruptions: How often it is stopped; None: never.

    Raises:
        InputError: Neither samples nor tokens, or both.

    Examples:
        >>> job = foretell.JobLength(samples=1e6, checkpoint=foretell.Pause(every=1000, seconds=45.0))
        >>> foretell.forecast("torchvision/resnet18", on="h200", job=job).job.steps
        31250
    """

    samples: float | None = None
    tokens: float | None = None
    evaluation: Pause | None = None
    checkpoint: Pause | None = None
    startup: Seconds = 0.0
    interruptions: Interruptions | None = None

    def __post_init__(self) -> None:
        given = [x for x in (self.samples, self.tokens) if x is not None]
        if len(given) != 1:
            raise InputError(
                f"a job is as long as its samples or its tokens, got samples={self.samples} and tokens={self.tokens}. "
                "Give one of them, more than 0."
            )
        check_number("the length of a job", given[0], "samples or tokens, 1 to 1e18", InputError, least=1.0)
        check_number("seconds of a start", self.startup, "a number of at least 0", InputError)

    @classmethod
    def usual(
        cls,
        *,
        samples: float | None = None,
        tokens: float | None = None,
        epochs: float | None = None,
        dataset: float | None = None,
        spot: bool = False,
    ) -> JobLength:
        """A job with a usual start and usual interruptions; `epochs` are of `dataset` samples, spot nodes are taken back."""
        if (epochs is None) != (dataset is None):
            raise InputError(
                "epochs are counted in samples of a dataset: give both epochs and dataset, like 90 and 1281167."
            )
        if epochs is not None and dataset is not None:
            check_number("epochs", epochs, "more than 0", InputError, least=1e-9)
            if samples is not None:
                raise InputError("a job is as long as its samples or its epochs. Give one of them.")
            samples = epochs * dataset
        interruptions = Interruptions(per_node_hour=USUAL_PREEMPTIONS if spot else 0.0)
        return cls(samples=samples, tokens=tokens, startup=USUAL_STARTUP, interruptions=interruptions)

    def cost(
        self,
        *,
        step: Seconds,
        within: tuple[Seconds, Seconds] | None = None,
        devices: int,
        nodes: int,
        samples: float,
        tokens: float,
        dollars_per_hour: Dollars | None,
        watts: float,
        idle_watts: float,
    ) -> Job:
        """Of steps of `step` seconds, or `within` a range, with so many samples and tokens each; starting, saving and
        restarting leave devices idle."""
        unit, each = ("samples", samples) if self.samples is not None else ("tokens", tokens)
        if not each:
            raise InputError(
                f"the {unit} of a step are not known, so no job is counted in them. Set Workload({unit}=…)."
            )
        steps = math.ceil((self.samples or self.tokens or 0.0) / each)
        evaluating, saving = (0.0 if p is None else p.total(steps) for p in (self.evaluation, self.checkpoint))
        working = steps * step + evaluating + saving
        seconds = self._all(steps, step, devices, nodes)
        interrupted = seconds - working - self.startup
        return Job(
            steps=steps,
            seconds=seconds,
            evaluation_seconds=evaluating,
            checkpoint_seconds=saving,
            dollars=None if dollars_per_hour is None else dollars_per_hour * seconds / 3600,
            joules=(seconds - saving - self.startup) * watts + (saving + self.startup) * idle_watts,
            low=self._all(steps, within[0], devices, nodes) if within else None,
            high=self._all(steps, within[1], devices, nodes) if within else None,
            startup_seconds=self.startup,
            interruption_seconds=interrupted,
            goodput=steps * step / seconds if seconds else 1.0,
        )

    def _all(self, steps: int, step: Seconds, devices: int, nodes: int) -> Seconds:
        """From the start to the end."""
        work = steps * step + sum(p.total(steps) for p in (self.evaluation, self.checkpoint) if p is not None)
        if self.interruptions is None:
            return self.startup + work
        segment = work if self.checkpoint is None else self.checkpoint.every * step + self.checkpoint.seconds
        return self.startup + self.interruptions.lengthened(work, segment, devices, nodes)
