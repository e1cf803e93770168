"""What compiling a step gains: its forecast beside that of the same step as it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from foretell.cost.compile_time import compile_time
from foretell.forecasting.result import Duration, Forecast, plain_values
from foretell.graph.operators import FUSED
from foretell.units import Bytes

# Correlation of the errors of a compiled step and of its eager one, as logarithms: both have its products, and one host. 0.56
# on 14 open steps (`foretell bench accuracy --split compiled`, by the shipped model).
_SHARED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A median with its 90 % interval; the bounds are None where those of the steps are not known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileGain:
    """A compiled step beside its eager one, on the same cluster by the same plan."""

    speed_up: Ratio  # the eager step's time over the compiled one's
    eager_step_time: Duration
    memory_change: Bytes  # of the heaviest rank, in all
    allocated_change: Bytes
    fused_kernels: int  # that the compiler writes, as often as a step launches them
    different_kernels: int  # of those, each of which is compiled once
    compile_time: Duration  # on one thread, nothing cached
    eager: Forecast = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = plain_values(self)
        del plain["eager"]
        return plain

    @property
    def steps_to_pay(self) -> float | None:
        """Steps after which compiling has paid for its own time; None: it never does."""
        saved = self.eager_step_time.seconds - self.eager_step_time.seconds / self.speed_up.value
        return self.compile_time.seconds / saved if saved > 0 else None


def compile_gain(compiled: Forecast, eager: Forecast) -> CompileGain:
    fused = [op for op in compiled.graph.ops if op.signature.name == FUSED]
    assert compiled.host is not None
    taken = compile_time(compiled.graph, compiled.host.op_seconds)
    return CompileGain(
        speed_up=_speed_up(compiled.step_time, eager.step_time),
        eager_step_time=eager.step_time,
        memory_change=compiled.memory.total - eager.memory.total,
        allocated_change=compiled.memory.allocated - eager.memory.allocated,
        fused_kernels=sum(op.times for op in fused),
        different_kernels=len({op.signature for op in fused}),
        compile_time=Duration.of(taken.median, taken),
        eager=eager,
    )


def _speed_up(compiled: Duration, eager: Duration) -> Ratio:
    value = eager.seconds / compiled.seconds
    if None in (compiled.low, compiled.high, eager.low, eager.high):
        return Ratio(value=value)
    below = _joined(_width(eager.low, eager.seconds), _width(compiled.seconds, compiled.high))
    above = _joined(_width(eager.seconds, eager.high), _width(compiled.low, compiled.seconds))
    return Ratio(value=value, low=value * math.exp(-below), high=value * math.exp(above))


def _width(low: float | None, high: float | None) -> float:
    return math.log((high or 0.0) / (low or 0.0))


def _joined(one: float, other: float) -> float:
    return math.sqrt(one**2 + other**2 - 2 * _SHARED * one * other)
