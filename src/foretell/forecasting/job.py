"""A whole job: steps for as many samples or tokens as asked, with pauses, a start and interruptions that lose work."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
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
# Factor within which 90 % of clusters lie: Llama 3 has 2.0e-5; OPT-175B (arXiv 2205.01068) 7e-5, 35 restarts by hand and 70
# others on 992 A100 in two months; BLOOM (arXiv 2211.05100) 2.3e-5, one or two a week on 384 A100; Meta's research clusters
# (arXiv 2410.21680) 3.4e-5 and 1.2e-5, 6.5 and 2.3 per thousand node-days.
USUAL_SPREAD: Final = 3.0
USUAL_SAVING: Final[Seconds] = 30.0  # devices wait for a checkpoint (docs/guide/planning.md)
_NINETY: Final = 1.645  # standard deviations either side that 90 % of a normal distribution lie within
USUAL_STARTUP: Final[Seconds] = 300.0  # until the first step (docs/guide/planning.md)
_LONGEST: Final[Seconds] = 1e12
_OFTENEST: Final = 1e3  # interruptions per hour


def best_period(saving: Seconds, rate: float) -> Seconds | None:
    """Seconds of work between checkpoints that lose the least: Daly (FGCS 22, 2006), whose first term is Young's √(2 × saving ÷ rate)."""
    if not rate or not saving:
        return None
    between = 1 / rate
    if saving >= 2 * between:
        return between
    part = saving / (2 * between)
    return math.sqrt(2 * saving * between) * (1 + math.sqrt(part) / 3 + part / 9) - saving


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
        check_number(
            "interruptions", self.per_device_hour, "per device and hour, from 0 to 1000", InputError, most=_OFTENEST
        )
        check_number("preemptions", self.per_node_hour, "per node and hour, from 0 to 1000", InputError, most=_OFTENEST)
        check_number("seconds of a restart", self.restart, "a number of at least 0", InputError)

    def rate(self, devices: int, nodes: int = 1) -> float:
        """Per second, of all of them."""
        return (self.per_device_hour * devices + self.per_node_hour * nodes) / 3600

    @property
    def spread(self) -> float:
        """How many times more or fewer there may be: rates that are given are known, usual ones differ by cluster."""
        usual = self.per_device_hour == USUAL_FAILURES or self.per_node_hour == USUAL_PREEMPTIONS
        return USUAL_SPREAD if usual else 1.0

    def times(self, factor: float) -> Interruptions:
        """So many times as often."""
        device, node = (min(rate * factor, _OFTENEST) for rate in (self.per_device_hour, self.per_node_hour))
        return replace(self, per_device_hour=device, per_node_hour=node)

    def deviation(self, seconds: Seconds, segment: Seconds, devices: int, nodes: int = 1) -> Seconds:
        """Standard deviation of what chance makes of a job: each of Poisson's interruptions costs a restart, and anything up
        to a segment again."""
        each = self.restart**2 + self.restart * segment + segment**2 / 3
        return math.sqrt(self.rate(devices, nodes) * seconds * each)

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
    goodput_low: float = 1.0
    goodput_high: float = 1.0
    best_checkpoint_period: Seconds | None = None  # Daly's; None where nothing interrupts the job

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
        place = devices, nodes
        seconds, (shorter, longer) = self._all(steps, step, *place), self._unsure(steps, step, *place)
        ends = [None if within is None else self._all(steps, each, *place) for each in within or (step, step)]
        saves = USUAL_SAVING if self.checkpoint is None else self.checkpoint.seconds
        stops = self.interruptions
        return Job(
            steps=steps,
            seconds=seconds,
            evaluation_seconds=evaluating,
            checkpoint_seconds=saving,
            dollars=None if dollars_per_hour is None else dollars_per_hour * seconds / 3600,
            joules=(seconds - saving - self.startup) * watts + (saving + self.startup) * idle_watts,
            low=None if ends[0] is None else seconds * math.exp(-math.hypot(math.log(seconds / ends[0]), shorter)),
            high=None if ends[1] is None else seconds * math.exp(math.hypot(math.log(ends[1] / seconds), longer)),
            startup_seconds=self.startup,
            interruption_seconds=seconds - (steps * step + evaluating + saving) - self.startup,
            goodput=steps * step / seconds if seconds else 1.0,
            goodput_low=steps * step / seconds * math.exp(-longer) if seconds else 1.0,
            goodput_high=min(steps * step / seconds * math.exp(shorter), 1.0) if seconds else 1.0,
            best_checkpoint_period=None if stops is None else best_period(saves, stops.rate(devices, nodes)),
        )

    def _unsure(self, steps: int, step: Seconds, devices: int, nodes: int) -> tuple[float, float]:
        """By which part interruptions may make a job shorter and longer, as logarithms: by chance, and as clusters differ."""
        seconds, stops = self._all(steps, step, devices, nodes), self.interruptions
        if stops is None or not seconds or not stops.rate(devices, nodes):
            return 0.0, 0.0
        segment = steps * step if self.checkpoint is None else self.checkpoint.every * step + self.checkpoint.seconds
        chance = _NINETY * stops.deviation(seconds, min(segment, seconds), devices, nodes) / seconds
        fewer, more = (
            replace(self, interruptions=stops.times(factor))._all(steps, step, devices, nodes)
            for factor in (1 / stops.spread, stops.spread)
        )
        least = self._least(steps, step) / seconds  # nothing is shorter than a job that is never interrupted
        shorter = min(math.hypot(math.log(seconds / fewer), chance), -math.log(least) if 0 < least < 1 else 0.0)
        return shorter, math.hypot(math.log(more / seconds), math.log1p(chance))

    def _least(self, steps: int, step: Seconds) -> Seconds:
        """Without interruptions."""
        pauses = sum(p.total(steps) for p in (self.evaluation, self.checkpoint) if p is not None)
        return self.startup + steps * step + pauses

    def _all(self, steps: int, step: Seconds, devices: int, nodes: int) -> Seconds:
        """From the start to the end."""
        work = self._least(steps, step) - self.startup
        if self.interruptions is None:
            return self.startup + work
        segment = work if self.checkpoint is None else self.checkpoint.every * step + self.checkpoint.seconds
        return self.startup + self.interruptions.lengthened(work, segment, devices, nodes)
