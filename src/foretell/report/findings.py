"""What a forecast says, in words and in parts of a whole; the terminal and the HTML page draw from here alike."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from foretell.forecasting.result import Duration, Forecast
from foretell.units import Dollars, Seconds, show_bytes, show_seconds

_WORTH_NAMING = 0.05  # a wait shorter than this part of the step is no bottleneck
_DOMINANT = 1 / 3  # communication or bubbles of this part of the step are


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A named share of a whole; `key` is what its colour hangs on."""

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
        forecast.input_wait,
    )
    return max(0.0, forecast.step_time.seconds - sum(part.seconds for part in named))


def bottleneck(forecast: Forecast) -> str:
    """Who holds the step up: `host-bound: the device waits for the host 62 % of the step`."""
    step = forecast.step_time.seconds
    if step <= 0:
        return "nothing runs"
    waiting = waiting_seconds(forecast) / step
    communication, bubble = forecast.exposed_communication.seconds / step, forecast.bubble.seconds / step
    late = forecast.input_wait.seconds / step
    largest = max(waiting, communication, bubble, late)
    if late == largest and late > _WORTH_NAMING:
        return f"input-bound: the device waits for the data loader {show_share(late)} of the step"
    if waiting == largest and waiting > _WORTH_NAMING:
        return f"host-bound: the device waits for the host {show_share(waiting)} of the step"
    if communication == largest and communication > _DOMINANT:
        return f"communication-bound: the device waits for the network {show_share(communication)} of the step"
    if bubble == largest and bubble > _DOMINANT:
        return f"pipeline-bound: the device stands in bubbles {show_share(bubble)} of the step"
    return f"device-bound: the device computes {show_share(forecast.device_time.seconds / step)} of the step"


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
    """The step as the device lives through it; the parts sum to the step time."""
    phases = phase_seconds(forecast)
    parts = [Part(key=phase, label=phase, amount=seconds) for phase, seconds in phases.items()]
    if not phases:
        parts.append(Part(key="forward", label="computing", amount=forecast.device_time.seconds))
    parts += [
        Part(key="communication", label="exposed communication", amount=forecast.exposed_communication.seconds),
        Part(key="bubble", label="pipeline bubble", amount=forecast.bubble.seconds),
        Part(key="stragglers", label="waiting for the slowest rank", amount=forecast.stragglers.seconds),
        Part(key="late-input", label="waiting for input", amount=forecast.input_wait.seconds),
        Part(key="waiting", label="waiting for the host", amount=waiting_seconds(forecast)),
    ]
    return tuple(part for part in parts if part.amount > 0)


def memory_parts(forecast: Forecast) -> tuple[Part, ...]:
    """Everything the heaviest rank holds at its peak, and what is left free of the capacity."""
    memory, held = forecast.memory, forecast.memory.breakdown
    parts = (
        Part(key="parameters", label="parameters", amount=held.parameters),
        Part(key="gradients", label="gradients", amount=held.gradients),
        Part(key="optimizer-state", label="optimizer state", amount=held.optimizer),
        Part(key="activations", label="activations", amount=held.activations),
        Part(key="inputs", label="inputs", amount=held.inputs),
        Part(key="temporaries", label="temporaries", amount=held.temporaries),
        Part(key="workspace", label="workspace", amount=held.workspace),
        Part(key="cache", label="cache overhead", amount=memory.reserved - memory.allocated),
        Part(key="context", label="context", amount=memory.context),
        Part(key="communicator", label="communicator", amount=memory.communicator),
        Part(key="free", label="free", amount=memory.capacity - memory.total),
    )
    return tuple(part for part in parts if part.amount > 0)


def peak_place(forecast: Forecast) -> str:
    """Where memory is highest: a module, or the operator where no module is running."""
    if forecast.memory.peak_module:
        return forecast.memory.peak_module
    ops, position = forecast.graph.ops, forecast.memory_trace.peak_op
    if not 0 <= position < len(ops):
        return "the step itself"
    return f"{ops[position].signature.name.removeprefix('aten.')}, outside modules"


def throughput_words(forecast: Forecast) -> list[str]:
    rates = forecast.throughput
    words = []
    if rates.samples_per_second is not None:
        words.append(f"{show_rate(rates.samples_per_second)} samples/s")
    if rates.tokens_per_second is not None:
        words.append(f"{show_rate(rates.tokens_per_second)} tokens/s")
    if rates.mfu is not None:
        words.append(f"{show_share(rates.mfu)} MFU")
    return words


def cost_words(forecast: Forecast) -> list[str]:
    cost = forecast.cost
    words = []
    if cost.dollars_per_hour is not None:
        words.append(f"{show_dollars(cost.dollars_per_hour)} per hour")
    if cost.dollars_per_step is not None:
        words.append(f"{show_dollars(cost.dollars_per_step)} per step")
    if (dollars := dollars_per_million_samples(forecast)) is not None:
        words.append(f"{show_dollars(dollars)} per million samples")
    return words


def job_words(forecast: Forecast) -> list[str]:
    """A whole job in a line: its time, its steps, its pauses, what it costs."""
    job = forecast.job
    if job is None:
        return []
    words = [show_long(job.seconds), f"{job.steps:,} steps"]
    pauses = (("evaluating", job.evaluation_seconds), ("saving", job.checkpoint_seconds))
    words += [f"{show_long(seconds)} {what}" for what, seconds in pauses if seconds]
    if job.dollars is not None:
        words.append(show_dollars(job.dollars))
    return [*words, f"{job.joules / 3.6e6:,.3g} kWh in devices"]


def show_long(seconds: Seconds) -> str:
    """Hours and days, where seconds say little."""
    if seconds < 120:
        return show_seconds(seconds)
    for unit, length in (("days", 86400.0), ("hours", 3600.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 60:.0f} minutes"


def critical_words(forecast: Forecast, most: int = 5) -> list[str]:
    """What the length of the step hangs on: `all-reduce bucket 3 (network, 12 ms)`."""
    return [f"{part.name} ({part.stream}, {show_seconds(part.seconds)})" for part in forecast.critical_path[:most]]


def dollars_per_million_samples(forecast: Forecast) -> Dollars | None:
    rate, price = forecast.throughput.samples_per_second, forecast.cost.dollars_per_hour
    return None if not rate or price is None else price / 3600 / rate * 1e6


def show_duration(duration: Duration) -> str:
    """`108 ms (101–117 ms)`: the median and its 90 % interval, where the model has one."""
    median = show_seconds(duration.seconds)
    if duration.low is None or duration.high is None:
        return median
    return f"{median} ({show_seconds(duration.low)} – {show_seconds(duration.high)})"


def show_share(share: float) -> str:
    if 0 < share < 0.01:
        return "< 1 %"
    return f"{share:.0%}".replace("%", " %")


def show_probability(probability: float) -> str:
    """Never 0 or 100 %: a forecast is not that sure."""
    if probability > 0.999:
        return "> 99.9 %"
    if probability < 0.001:
        return "< 0.1 %"
    return f"{probability:.1%}".replace("%", " %")


def show_rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def show_dollars(dollars: Dollars) -> str:
    if dollars == 0:
        return "$0"
    return f"${dollars:,.2f}" if dollars >= 0.1 else f"${dollars:.2g}" if dollars >= 1e-4 else f"${dollars:.1e}"
