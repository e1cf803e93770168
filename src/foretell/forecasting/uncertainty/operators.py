"""What the errors of single operators come to over a step's device time, and which operators make it uncertain."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

from foretell.forecasting.step import RoleStep
from foretell.units import Seconds

_UNSURE: Final = 0.1  # expected error beyond which a forecast says what it comes from
_NAMED: Final = 3  # operators that it names


def squared_errors(step: RoleStep) -> dict[str, float]:
    """The square of the error to expect of the device time, as a logarithm, by the operator it comes from.

    An op that runs often is as far off each time; errors of different ops have nothing to do with each other.
    """
    seconds_of: dict[int, Seconds] = defaultdict(float)
    error_of: dict[int, tuple[str, float]] = {}
    for number, (call, seconds) in enumerate(zip(step.priced.calls.distinct, step.of_calls, strict=True)):
        seconds_of[id(call.signature)] += seconds
        if error := step.priced.errors.get(number, 0.0):
            error_of[id(call.signature)] = call.signature.name, error
    squares: dict[str, float] = defaultdict(float)
    busy = step.device_seconds
    for key, (name, error) in error_of.items():
        if busy:
            squares[name] += (error * seconds_of[key] / busy) ** 2
    return dict(squares)


def expected_error(step: RoleStep) -> float:
    """Of the device time, as a logarithm."""
    return math.sqrt(sum(squared_errors(step).values()))


def repetition(step: RoleStep) -> float:
    """How likely two seconds of the device are of one call, whose error does not even out."""
    busy = step.device_seconds
    return sum((seconds / busy) ** 2 for seconds in step.of_calls) if busy else 0.0


def uncertain_operators(step: RoleStep) -> tuple[str, float]:
    """What makes a forecast uncertain, in words, and its part of the device time; "" where little does."""
    squares = squared_errors(step)
    error = math.sqrt(sum(squares.values()))
    if error < _UNSURE:
        return "", 0.0
    names = sorted(squares, key=lambda name: -squares[name])[:_NAMED]
    named = ", ".join(f"{name} ({squares[name] / sum(squares.values()):.0%} of the doubt)" for name in names)
    calls = zip(step.priced.calls.distinct, step.of_calls, strict=True)
    share = sum(seconds for call, seconds in calls if call.signature.name in names) / step.device_seconds
    off = math.expm1(error)
    return f"Device time may well be {off:.0%} off, as times of ops like these were while unseen: {named}.", share
