"""Compiled steps as they were forecast and measured: how far they are off, as `foretell bench accuracy --split compiled` shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from foretell.errors import InputError
from foretell_bench.errors import Errors
from foretell_bench.rounding import short
from foretell_bench.tables.figures import Figure

_HOST_BOUND: Final = 0.75  # of the step with a kernel running, at most
_CLOSE: Final = 0.03  # numbers of kernels that count as the same
_SOURCES: Final = {
    "open": "open steps, their family left out", "blind": "blind steps", "later": "steps measured last"
}  # fmt: skip
_CLEAR: Final = 0.05  # a speed-up, or a loss, that one would notice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    source: str
    family: str
    mode: str
    blind: bool
    kernels: tuple[int, int]  # of the compiler's own: measured, captured
    same: float  # share of the scheduled kernels that the capture has too
    device: tuple[float, float]  # seconds: measured, forecast
    step: tuple[float, float]
    low: float  # of the step's interval
    high: float
    allocated: tuple[float, float]
    speed_up: tuple[float, float]  # of the step, over the eager one
    fused: bool = True  # it could be captured compiled, or ran as it is written; else this is the eager step instead
    inference: bool = False
    later: bool = False  # of the part that was drawn and measured last


def part_of(steps: Sequence[CompiledStep]) -> str:
    if all(step.later for step in steps):
        return "later"
    return "blind" if all(step.blind for step in steps) else "open"


def figures(steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    """What was captured as compiled, and how far its forecasts are off; of the others, that they are none."""
    source = _SOURCES[part_of(steps)]
    compiled = [step for step in steps if step.fused]
    captured = len(compiled) / len(steps)
    yield Figure(source=source, measure="captured as compiled, not eager", value=captured, rows=len(steps))
    if not compiled:
        return
    yield from _errors(source, compiled)
    inference = [step for step in compiled if step.inference]
    waiting = [step for step in inference if step.device[0] < _HOST_BOUND * step.step[0]]
    for what, steps_of, bar in (("inference", inference, 0.12), ("inference that the host bounds", waiting, 0.2)):
        if steps_of:
            errors = Errors.of([s.step[1] for s in steps_of], [s.step[0] for s in steps_of])
            measure = f"step time of {what}, mean error"
            yield Figure(source=source, measure=measure, value=errors.mean, bar=bar, rows=len(steps_of))
    yield from _shares(source, compiled)


def _errors(source: str, steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    plain = [s for s in steps if s.mode == "default"]  # a CUDA graph's pool is taken before the step that was watched
    for measure, pairs, mean, median in (
        ("device time", [s.device for s in steps], 0.08, 0.045),
        ("step time", [s.step for s in steps], 0.14, None),
        ("peak allocated, without CUDA graphs", [s.allocated for s in plain], 0.04, None),
    ):
        if not pairs:
            continue
        errors, count = Errors.of([p for _, p in pairs], [m for m, _ in pairs]), len(pairs)
        yield Figure(source=source, measure=f"{measure}, mean error", value=errors.mean, bar=mean, rows=count)
        yield Figure(source=source, measure=f"{measure}, median error", value=errors.median, bar=median, rows=count)


def _shares(source: str, steps: Sequence[CompiledStep]) -> Iterator[Figure]:
    clear = [s for s in steps if abs(s.speed_up[0] - 1) > _CLEAR]
    shares: list[tuple[str, Sequence[float], float | None]] = [
        ("step inside the 90 % interval", [s.low <= s.step[0] <= s.high for s in steps], 0.85),
        ("speed-up over eager within 10 %", [abs(s.speed_up[1] / s.speed_up[0] - 1) <= 0.1 for s in steps], 0.8),
        ("speed-ups over 5 %: their sign is right", [(s.speed_up[0] > 1) == (s.speed_up[1] > 1) for s in clear], 1.0),
        (
            "kernels launched within 3 %",
            [abs(s.kernels[1] - s.kernels[0]) <= _CLOSE * s.kernels[0] for s in steps],
            None,
        ),
        ("fused groups that are the same", [s.same for s in steps], 0.95),
    ]
    for measure, share, least in shares:
        if share:
            value = sum(share) / len(share)
            yield Figure(
                source=source, measure=measure, value=value, bar=least, at_least=least is not None, rows=len(share)
            )


def save(steps: Sequence[CompiledStep], path: Path) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(short(asdict(s))) for s in steps) + "\n]\n")


def read(path: Path) -> list[CompiledStep]:
    try:
        return [CompiledStep(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} holds no compiled steps ({error}). Make some with --split compiled --save") from error
