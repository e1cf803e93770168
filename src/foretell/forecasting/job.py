"""A whole job: steps for as many samples or tokens as asked, with pauses for evaluation and checkpoints."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from foretell.errors import InputError, check_count, check_number
from foretell.units import Dollars, Seconds, parse_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Every so many steps the job stops for a while."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job takes: `seconds` are its steps and its pauses."""

    steps: int
    seconds: Seconds
    evaluation_seconds: Seconds
    checkpoint_seconds: Seconds
    dollars: Dollars | None
    joules: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLength:
    """How long a job trains, in samples or in tokens, and its pauses."""

    samples: float | None = None
    tokens: float | None = None
    evaluation: Pause | None = None
    checkpoint: Pause | None = None

    def __post_init__(self) -> None:
        given = [x for x in (self.samples, self.tokens) if x is not None]
        if len(given) != 1:
            raise InputError(
                f"a job is as long as its samples or its tokens, got samples={self.samples} and tokens={self.tokens}. "
                "Give one of them, more than 0."
            )
        check_number("the length of a job", given[0], "samples or tokens, 1 to 1e18", InputError, least=1.0)

    def cost(
        self,
        *,
        step: Seconds,
        samples: float,
        tokens: float,
        dollars_per_hour: Dollars | None,
        watts: float,
        idle_watts: float,
    ) -> Job:
        """Of steps of `step` seconds with so many samples and tokens each; saving a checkpoint leaves devices idle."""
        unit, each = ("samples", samples) if self.samples is not None else ("tokens", tokens)
        if not each:
            raise InputError(
                f"the {unit} of a step are not known, so no job is counted in them. Set Workload({unit}=…)."
            )
        steps = math.ceil((self.samples or self.tokens or 0.0) / each)
        evaluating, saving = (0.0 if p is None else p.total(steps) for p in (self.evaluation, self.checkpoint))
        seconds = steps * step + evaluating + saving
        return Job(
            steps=steps,
            seconds=seconds,
            evaluation_seconds=evaluating,
            checkpoint_seconds=saving,
            dollars=None if dollars_per_hour is None else dollars_per_hour * seconds / 3600,
            joules=(seconds - saving) * watts + saving * idle_watts,
        )
