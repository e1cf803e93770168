"""A whole job: steps for as many samples or tokens as asked, with pauses for evaluation and checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foretell.errors import InputError
from foretell.units import Dollars, Seconds, parse_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Every so many steps the job stops for a while."""

    every: int  # steps
    seconds: Seconds

    @classmethod
    def parse(cls, text: str) -> Pause:
        """Read `1000:45s`: every 1,000 steps, 45 seconds."""
        every, colon, length = text.partition(":")
        if not colon or not every.strip().isdigit() or int(every) < 1:
            raise InputError(f"a pause is STEPS:SECONDS, got {text!r}. Write it like 1000:45s.")
        return cls(every=int(every), seconds=parse_seconds(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a job trains: one of samples and tokens."""

    samples: float | None = None
    tokens: float | None = None
    evaluation: Pause | None = None
    checkpoint: Pause | None = None

    def __post_init__(self) -> None:
        given = [x for x in (self.samples, self.tokens) if x is not None]
        if len(given) != 1 or not given[0] > 0:
            raise InputError(
                f"a job is as long as its samples or its tokens, got samples={self.samples} and tokens={self.tokens}. "
                "Give one of them, more than 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job takes: `seconds` are its steps and its pauses."""

    steps: int
    seconds: Seconds
    evaluation_seconds: Seconds
    checkpoint_seconds: Seconds
    dollars: Dollars | None
    joules: float


def job(
    length: Length, *, step: Seconds, samples: float | None, tokens: float | None, dollars_per_hour: Dollars | None,
    watts: float, idle_watts: float,
) -> Job:  # fmt: skip
    """Steps of `step` seconds that take `samples` and `tokens` each; devices are idle while a checkpoint is written."""
    wanted, each, what = (
        (length.samples, samples, "samples") if length.samples is not None else (length.tokens, tokens, "tokens")
    )
    if not each or wanted is None:
        raise InputError(f"the step has no known {what}, so a job cannot be counted in them. Set Workload({what}=…).")
    steps = math.ceil(wanted / each)
    evaluating, saving = (
        0.0 if pause is None else steps // pause.every * pause.seconds
        for pause in (length.evaluation, length.checkpoint)
    )
    seconds = steps * step + evaluating + saving
    return Job(
        steps=steps, seconds=seconds, evaluation_seconds=evaluating, checkpoint_seconds=saving,
        dollars=None if dollars_per_hour is None else dollars_per_hour * seconds / 3600,
        joules=(seconds - saving) * watts + saving * idle_watts,
    )  # fmt: skip
