"""Options about what surrounds a step, for the verbs that forecast: loader, jitter, routing, and the whole job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.terminal import note, progress
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell.forecasting.conditions import Conditions
    from foretell.forecasting.job import JobLength

Loader = Annotated[
    str | None,
    typer.Option(
        "--loader",
        metavar="RATE",
        help="Samples a second that each replica's data loader delivers; FILE.py:FUNCTION makes one, measured here.",
    ),
]
Jitter = Annotated[
    float | None,
    typer.Option("--jitter", metavar="PART", help="How far a rank's step varies, as a part of it; usually 0.004."),
]
ExpertSkew = Annotated[
    float | None,
    typer.Option("--expert-skew", metavar="TIMES", help="Rows of the busiest expert rank over the average."),
]
Samples = Annotated[str | None, typer.Option("--samples", metavar="N", help="Also tell of a job of N samples: 1.28e6.")]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="N", help="Also tell of a job of N tokens: 300e9.")]
Evaluate = Annotated[
    str | None,
    typer.Option("--evaluate", metavar="STEPS:TIME", help="The job pauses to evaluate, like 1000:90s."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="STEPS:TIME", help="The job pauses to save itself, like 500:20s."),
]


def conditions_of(loader: str | None, jitter: float | None, expert_skew: float | None) -> Conditions:
    from foretell.forecasting.conditions import USUAL_JITTER, Conditions

    return Conditions(loader=_rate(loader), jitter=USUAL_JITTER if jitter is None else jitter, expert_skew=expert_skew)


def _rate(loader: str | None) -> float | None:
    """A number, or what a loader of the user's delivers when it is run."""
    if loader is None:
        return None
    if ":" not in loader:
        return _count("--loader", loader, "3000, or FILE.py:FUNCTION that makes a loader to be measured")
    from foretell.measure.loader import loader_rate

    with progress() as say:
        say(f"running the loader of {loader}")
        rate = loader_rate(loader)
    note(f"The loader of {loader} delivers {rate:,.0f} samples/s on this machine")
    return rate


def length_of(
    samples: str | None, tokens: str | None, evaluate: str | None, checkpoint: str | None
) -> JobLength | None:
    from foretell.forecasting.job import JobLength, Pause

    if samples is None and tokens is None:
        if evaluate or checkpoint:
            raise InputError("--evaluate and --checkpoint are pauses of a job. Give its length: --samples or --tokens.")
        return None
    return JobLength(
        samples=_count("--samples", samples), tokens=_count("--tokens", tokens),
        evaluation=Pause.parse(evaluate) if evaluate else None, checkpoint=Pause.parse(checkpoint) if checkpoint else None,
    )  # fmt: skip


def _count(option: str, text: str | None, like: str = "1280000 or 1.28e6") -> float | None:
    if text is None:
        return None
    try:
        return float(text.replace("_", ""))
    except ValueError:
        raise InputError(f"{option} takes a number, got {text!r}. Write it like {like}.") from None
