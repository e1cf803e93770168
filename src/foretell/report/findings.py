"""A forecast in words and in parts of a whole; the terminal and the HTML page draw from here alike."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from foretell.forecasting.result import Duration, Forecast
from foretell.graph import Caveat
from foretell.units import (
    Dollars,
    Seconds,
    show_bytes,
    show_count,
    show_dollars,
    show_kwh,
    show_rate,
    show_seconds,
    show_share,
)

_WORTH_NAMING = 0.2  # a wait for host or data shorter than this part of the step is no bottleneck
_HALF = (
    0.41  # half of errors are nearer than this part of what contains 90 % of them, where their logarithms are normal
)
_DOMINANT = 1 / 3  # communication or bubbles of this part of the step are
_SUMMED, _SMALL = "op-without-model", 0.01  # caveats that are summed up where each is less than this part of the step
_KEYS, _LABELS = {"optimizer": "optimizer-state"}, {"optimizer": "optimizer state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A named share of a whole; `key` names its colour."""

    key: str
    label: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the step fits, as a headline and the sentence with the numbers."""

    fits: bool
    headline: str
    sentence: str


def verdict(forecast: Forecast) -> Verdict:
    memory = forecast.memory
    needs, has = show_bytes(memory.total), show_bytes(memory.capacity)
    odds = f"Probability that it fits: {show_probability(memory.fit_probability)}."
    if memory.fits:
        room = f"The heaviest rank needs {needs} of {has} ({show_share(memory.total / memory.capacity)})."
        return Verdict(fits=True, headline="Fits", sentence=f"{room} {odds}")
    missing = show_bytes(memory.total - memory.capacity)
    over = f"The heaviest rank needs {needs}, {missing} more than the {has} there are."
    return Verdict(fits=False, headline="Does not fit", sentence=f"{over} {odds}")


def waiting_seconds(forecast: Forecast) -> Seconds:
    """What is left of the step: the device neither computes nor waits for anything that is named."""
    named = (
        forecast.device_time,
        forecast.exposed_communication,
        forecast.bubble,
        forecast.stragglers,
        forecast.trainer,
        forecast.input_wait,
    )
    return max(0.0, forecast.step_time.seconds - sum(part.seconds for part in named))


def bottleneck(forecast: Forecast) -> str:
    """What limits the step: `host-bound: the device waits for the host 62 % of the step`."""
    step = forecast.step_time.seconds
    if step <= 0:
        return "nothing runs"
    waits = (
        ("input-bound: the device waits for the data loader", forecast.input_wait.seconds, _WORTH_NAMING),
        ("host-bound: the device waits for the host", waiting_seconds(forecast), _WORTH_NAMING),
        (_communication(forecast), forecast.exposed_communication.seconds, _DOMINANT),
        ("pipeline-bound: the device idles in bubbles", forecast.bubble.seconds, _DOMINANT),
    )
    words, seconds, least = max(waits, key=lambda wait: wait[1])
    if seconds / step <= least:
        words, seconds = "device-bound: the device computes", forecast.device_time.seconds
    return f"{words} {show_share(seconds / step)} of the step"


def _communication(forecast: Forecast) -> str:
    if "offload=" in forecast.plan:  # what the host keeps moves to and fro, and the host computes with it
        return "communication-bound: the device waits for what is offloaded, and for the network"
    return "communication-bound: the device waits for the network"


def phase_seconds(forecast: Forecast) -> dict[str, Seconds]:
    """Device time by phase. Shares come from the timeline, the sum is the forecast's device time."""
    drawn: dict[str, float] = {}
    for op, seconds in zip(forecast.graph.ops, op_seconds(forecast), strict=True):
        drawn[op.phase] = drawn.get(op.phase, 0.0) + seconds
    total = sum(drawn.values())
    scale = forecast.device_time.seconds / total if total else 0.0
    return {phase: seconds * scale for phase, seconds in drawn.items()}


def op_seconds(forecast: Forecast) -> list[Seconds]:
    """Device time that each op of the graph takes in a step, its repetitions included, on the busiest rank."""
    ops = forecast.graph.ops
    by_role: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(ops))
    for span in forecast.timeline.on("device"):
        if span.task < len(ops):  # tasks after the graph's own are the plan's
            by_role[span.role][span.task] += span.duration * ops[span.task].times
    return max(by_role.values(), key=sum, default=[0.0] * len(ops))


def time_parts(forecast: Forecast) -> tuple[Part, ...]:
    """The step as the device sees it; the parts sum to the step time."""
    phases = phase_seconds(forecast)
    parts = [Part(key=phase, label=phase, amount=seconds) for phase, seconds in phases.items()]
    if not phases:
        parts.append(Part(key="forward", label="computing", amount=forecast.device_time.seconds))
    parts += [
        Part(key="communication", label="exposed communication", amount=forecast.exposed_communication.seconds),
        Part(key="bubble", label="pipeline bubble", amount=forecast.bubble.seconds),
        Part(key="stragglers", label="waiting for the slowest rank", amount=forecast.stragglers.seconds),
        Part(key="trainer", label="around the step", amount=forecast.trainer.seconds),
        Part(key="late-input", label="waiting for input", amount=forecast.input_wait.seconds),
        Part(key="waiting", label="waiting for the host", amount=waiting_seconds(forecast)),
    ]
    return tuple(part for part in parts if part.amount > 0)


def memory_parts(forecast: Forecast) -> tuple[Part, ...]:
    """Everything allocated on the heaviest rank at its peak, and what is left free of the capacity."""
    memory = forecast.memory
    at_peak = {f.name: getattr(memory.breakdown, f.name) for f in fields(memory.breakdown)}
    parts = [
        *(Part(key=_KEYS.get(name, name), label=_LABELS.get(name, name), amount=n) for name, n in at_peak.items()),
        Part(key="cache", label="cache overhead", amount=memory.reserved - memory.allocated),
        Part(key="context", label="context", amount=memory.context),
        Part(key="communicator", label="communicator", amount=memory.communicator),
        Part(key="free", label="free", amount=memory.capacity - memory.total),
    ]
    return tuple(part for part in parts if part.amount > 0)


def peak_place(forecast: Forecast) -> str:
    """Where memory is highest: a module, or the operator where no module is running."""
    if forecast.memory.peak_module:
        return forecast.memory.peak_module
    ops, position = forecast.graph.ops, forecast.memory_trace.peak_op
    if not 0 <= position < len(ops):
        return "the step itself"
    return f"{ops[position].signature.name.removeprefix('aten.')}, outside modules"


def step_words(forecast: Forecast) -> list[str]:
    """What one step is: `batch 8 (8×1024)`, `4 micro-steps`, `amp-bf16`, `fused AdamW`, `124 M parameters`."""
    step = forecast.step
    if step is None:
        return []
    shape = f" ({step.inputs})" if step.inputs else ""
    return [
        *([f"batch {step.samples:,}{shape}"] if step.samples else [f"inputs of {step.inputs}"] if step.inputs else []),
        *([f"{step.grad_accumulation:,} micro-steps"] if step.grad_accumulation > 1 else []),
        step.precision,
        *([step.optimizer] if step.optimizer else ["inference"] if not forecast.graph.training else []),
        *([f"{show_count(step.parameters)} parameters"] if step.parameters else []),
        *([f"{show_count(step.untrained)} more in modules that are not trained"] if step.untrained else []),
    ]


def assumed_sizes(forecast: Forecast) -> list[str]:
    """What decides the model's size and was assumed: `vocabulary of meta.pkl (65 words)`."""
    return [f"{n.what} ({n.taken})" if n.taken else n.what for n in forecast.explanation if n.decides_size]


def explanation_rows(forecasts: Iterable[Forecast]) -> list[tuple[str, str, str]]:
    """(topic, what, what it was taken to be) of all that was assumed, each once."""
    rows = ((n.topic, n.what, n.taken) for f in forecasts for n in f.explanation)
    return list(dict.fromkeys(rows))


def together(forecasts: Iterable[Forecast]) -> list[Caveat]:
    """Each caveat once; of several forecasts, with the largest share it has in any."""
    largest: dict[tuple[str, str], Caveat] = {}
    for caveat in (c for f in forecasts for c in f.caveats):
        known = largest.get((caveat.code, caveat.text))
        if known is None or (caveat.share or 0.0) > (known.share or 0.0):
            largest[caveat.code, caveat.text] = caveat
    return list(largest.values())


def weighty(caveats: Iterable[Caveat]) -> list[Caveat]:
    """What changes the answer most first; ops without a model that are little of the step are summed up."""
    items = list(caveats)
    small = [c for c in items if c.code == _SUMMED and (c.share or 0.0) < _SMALL]
    if len(small) > 1:
        names = ", ".join(c.text.partition(" ")[0] for c in small[:3]) + (", …" if len(small) > 3 else "")
        items = [c for c in items if c not in small]
        items.append(
            Caveat(_SUMMED, f"{len(small)} more priced by bytes ({names})", sum(c.share or 0.0 for c in small))
        )
    return sorted(items, key=lambda c: -(c.share if c.share is not None else 1.0))


def throughput_words(forecast: Forecast) -> list[str]:
    rates = forecast.throughput
    return _words(
        (rates.samples_per_second, show_rate, " samples/s"),
        (rates.tokens_per_second, show_rate, " tokens/s"),
        (rates.mfu, show_share, " MFU"),
    )


def cost_words(forecast: Forecast) -> list[str]:
    cost = forecast.cost
    words = _words(
        (cost.dollars_per_hour, show_dollars, " per hour"),
        (cost.dollars_per_step, show_dollars, " per step"),
        (dollars_per_million_samples(forecast), show_dollars, " per million samples"),
    )
    return [*words, cost.price] if words and cost.price else words


def _words(*known: tuple[float | None, Callable[[float], str], str]) -> list[str]:
    return [f"{show(value)}{what}" for value, show, what in known if value is not None]


def job_words(forecast: Forecast) -> list[str]:
    """A whole job in a line: its time, its steps, its pauses, what it costs."""
    job = forecast.job
    if job is None:
        return []
    words = [show_seconds(job.seconds), f"{job.steps:,} steps"]
    pauses = (("evaluating", job.evaluation_seconds), ("saving", job.checkpoint_seconds))
    words += [f"{show_seconds(seconds)} {what}" for what, seconds in pauses if seconds]
    if job.interruption_seconds > 0:
        words.append(
            f"{show_seconds(job.interruption_seconds)} for interruptions, {show_share(job.goodput)} in steps that count"
        )
    if job.interruption_seconds > 0 and job.best_checkpoint_period is not None:
        words.append(f"best saved every {show_seconds(job.best_checkpoint_period)} (Daly)")
    if job.dollars is not None:
        words.append(show_dollars(job.dollars))
    return [*words, f"{show_kwh(job.joules / 3.6e6)} in devices"]


def critical_words(forecast: Forecast, most: int = 5) -> list[str]:
    """The longest parts of the critical path: `all-reduce bucket 3 (network, 12 ms)`."""
    return [f"{part.name} ({part.stream}, {show_seconds(part.seconds)})" for part in forecast.critical_path[:most]]


def dollars_per_million_samples(forecast: Forecast) -> Dollars | None:
    rate, price = forecast.throughput.samples_per_second, forecast.cost.dollars_per_hour
    return None if not rate or price is None else price / 3600 / rate * 1e6


def show_duration(duration: Duration) -> str:
    """`108 ms (101–117 ms)`: the median and its 90 % interval, where the model has one."""
    median = show_seconds(duration.seconds)
    if duration.low is None or duration.high is None:
        return median
    between = f"{show_seconds(duration.low)} – {show_seconds(duration.high)} in 9 of 10 cases"
    typical = typical_error(duration)
    return (
        f"{median} ({between})" if typical is None else f"{median} ({between}, typically within {show_share(typical)})"
    )


def typical_error(duration: Duration) -> float | None:
    """What half of the cases are nearer than, as a part of the median; None where there is no interval."""
    if not duration.low or duration.high is None or duration.high <= duration.low:
        return None
    return math.expm1(_HALF * math.log(duration.high / duration.low) / 2)


def show_probability(probability: float) -> str:
    """Never 0 or 100 %: a forecast is not that sure."""
    if probability > 0.999:
        return "> 99.9 %"
    if probability < 0.001:
        return "< 0.1 %"
    return f"{probability:.1%}".replace("%", " %")


def show_plus_minus(duration: Duration) -> str:
    """`108 ms ±8 %`: the median and its typical error."""
    median, typical = show_seconds(duration.seconds), typical_error(duration)
    return median if typical is None else f"{median} ±{show_share(typical)}"


def largest_batch(batch: int) -> str:
    """With the multiple of 8 below it, which most kernels like."""
    eight = batch // 8 * 8
    better = f"; {eight} is the multiple of 8 below" if 0 < eight < batch else ""
    return f"{batch}, the largest that fits with a margin, the cache not counted, which gives way{better}"
