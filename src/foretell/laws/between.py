"""Laws between answers on one device, or on one and another: order of devices, precisions, batches and hosts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from foretell.hardware import Device
from foretell.laws.answers import BETTER, Answers, Case
from foretell.laws.law import Compared, Tolerance, equal, law
from foretell.laws.scope import Scope, Step
from foretell.precision import Precision

_FACTS: Final = ("bandwidth", "l2_bytes", "clock_hz", "compute_units", "power_watts")
_FAMILIES: Final = ("matmul", "convolution")
_BETTER: Final = ("bandwidth", "peaks")


def usual(step: Step, precision: str, on: str, **other: str) -> Case:
    return Case(step=step.name, precision=precision, batch=step.batches[0], on=on, **other)


def is_at_least(one: Device, other: Device, precision: str) -> bool:
    """Whether a board is no worse than another in any fact that forecasts go by, and no older where they are of one make."""
    if one.name == other.name or (one.kind == "cpu") != (other.kind == "cpu"):
        return False  # a processor's cores, caches and clock do not compare with a board's
    if one.vendor == other.vendor and not _is_as_new(one, other):
        return False
    if any(getattr(one, fact) < getattr(other, fact) for fact in _FACTS) or one.inline_ecc > other.inline_ecc:
        return False
    if other.consumer > one.consumer or one.vector_peak("fp32") < other.vector_peak("fp32"):
        return False
    wanted = Precision.parse(precision)
    units = [(wanted.unit(family, one), wanted.unit(family, other)) for family in _FAMILIES]
    return all(one.peak(unit) >= other.peak(its) for unit, its in [*units, ("fp32", "fp32")])


def _is_as_new(one: Device, other: Device) -> bool:
    if one.compute_capability is None:
        return one.architecture == other.architecture  # nothing else says which is the older
    return one.compute_capability >= (other.compute_capability or (0, 0))


@law(
    "A board that is no worse than another in any published fact, whoever made them, is no slower, on one host; processors, "
    "whose cores and caches are none of a board's, are compared with processors.",
    "all pairs of devices × precisions",
    Tolerance(
        part=0.1,
        why="factors learned for a generation are off by up to a tenth, and the boards' are two generations",
    ),
)
def dominance(scope: Scope, answers: Answers) -> Iterator[Compared]:
    chosen = {device.name for device in scope.devices}
    for step in scope.steps:
        for precision in step.precisions:
            for one in scope.others:
                for other in scope.others:
                    if not chosen & {one.name, other.name} or not is_at_least(one, other, precision):
                        continue
                    better, worse = (answers(usual(step, precision, d.name)) for d in (one, other))
                    if better is None or worse is None:
                        continue
                    where = f"{step.name} {precision}: {one.name} and {other.name}, device seconds"
                    yield Compared(where=where, number=better.device, limit=worse.device)


@law("A device that betters one fact is no slower.", "devices × precisions × bandwidth and peaks")
def better_facts(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for precision in step.precisions:
            for device in scope.devices:
                listed = answers(usual(step, precision, device.name))
                for fact in _BETTER:
                    bettered = answers(usual(step, precision, device.name, better=fact))
                    if listed is None or bettered is None:
                        continue
                    where = f"{step.name} {precision} on {device.name}: {fact} × {BETTER}"
                    yield Compared(where=f"{where}, device", number=bettered.device, limit=listed.device)
                    yield Compared(where=f"{where}, step", number=bettered.step, limit=listed.step)
                    yield Compared(where=f"{where}, gain", number=listed.device, limit=bettered.device * BETTER)


@law("fp32, torch-fp32 and tf32 are one where there are no tf32 units.", "devices without tf32 units")
def precision_without_units(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            if device.unit("tf32") == "tf32" or "fp32" not in step.precisions:
                continue
            plain = answers(usual(step, "fp32", device.name))
            for precision in {"torch-fp32", "tf32"} & set(step.precisions):
                named = answers(usual(step, precision, device.name))
                if plain is not None and named is not None:
                    where = f"{step.name} on {device.name}: fp32 and {precision}"
                    yield from equal(f"{where}, device seconds", named.device, plain.device)


@law(
    "fp16 and bf16 are one where the same units run both.",
    "devices without the units of a half precision",
    Tolerance(part=0.02, why="ops without products were measured in both types, which differ by as much"),
)
def half_without_units(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            if device.unit("fp16") == device.unit("bf16"):
                yield from _halves(step, device, answers)


@law(
    "On faster units a step is no slower: tf32 ≤ torch-fp32 ≤ fp32, and bf16 ≤ fp32 where they have a higher rate.",
    "devices",
    Tolerance(part=0.02, why="a product of few rows may run as fast in fp32, within what trees of ops are off"),
)
def precision_order(scope: Scope, answers: Answers) -> Iterator[Compared]:
    orders = (("tf32", "torch-fp32"), ("torch-fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"))
    for step in scope.steps:
        for device in scope.devices:
            for quick, slow in orders:
                if not {quick, slow} <= set(step.precisions) or not _is_quicker(quick, slow, device):
                    continue
                first, second = (answers(usual(step, precision, device.name)) for precision in (quick, slow))
                if first is not None and second is not None:
                    where = f"{step.name} on {device.name}: {quick} and {slow}, device seconds"
                    yield Compared(where=where, number=first.device, limit=second.device)


def _is_quicker(quick: str, slow: str, device: Device) -> bool:
    one, other = Precision.parse(quick), Precision.parse(slow)
    rates = [(device.peak(one.unit(f, device)), device.peak(other.unit(f, device))) for f in _FAMILIES]
    return all(fast >= than for fast, than in rates) and device.unit(one.products) == one.products


@law(
    "Two half precisions at the same rate take the same time, but for what one of them has to itself: it scales its loss, and on "
    "NVIDIA boards torch has cuDNN run depthwise convolutions of fp16 alone.",
    "devices with both units",
    Tolerance(part=0.1, why="recurrent layers and small convolutions of the two were measured up to a tenth apart"),
)
def halves_alike(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices:
            if device.peak("bf16") == device.peak("fp16"):
                yield from _halves(step, device, answers)


def _halves(step: Step, device: Device, answers: Answers) -> Iterator[Compared]:
    for pair in (("bf16", "fp16"), ("amp-bf16", "amp-fp16")):
        if not set(pair) <= set(step.precisions):
            continue
        one, other = (answers(usual(step, precision, device.name)) for precision in pair)
        if one is not None and other is not None:
            shared = [found.device - found.of_one_half for found in (one, other)]
            yield from equal(f"{step.name} on {device.name}: {' and '.join(pair)}, device seconds of both", *shared)


@law(
    "A larger batch takes no less time, allocates no less, and reserves no less than a smaller one allocates.",
    "devices × precisions × batches",
    Tolerance(part=0.03, why="kernels and tiles change with a batch"),
)
def batches(scope: Scope, answers: Answers) -> Iterator[Compared]:
    """What is reserved may fall: blocks that nothing fits into at one batch are used at another.

    So it was measured on an H200: VGG-16 at 1,347 images reserves 6 % less than at 1,295 (`bench/data/h200_memory_limits.jsonl`).
    """
    for step in scope.steps:
        for precision in step.precisions:
            for device in scope.devices:
                for less, more in pairwise(step.batches):
                    made = (
                        answers(Case(step=step.name, precision=precision, batch=batch, on=device.name))
                        for batch in (less, more)
                    )
                    small, large = made
                    if small is None or large is None:
                        continue
                    where = f"{step.name} {precision} on {device.name}: batches {less} and {more}"
                    yield Compared(where=f"{where}, step", number=small.step, limit=large.step)
                    yield Compared(where=f"{where}, device", number=small.device, limit=large.device)
                    yield Compared(where=f"{where}, allocated", number=small.allocated, limit=large.allocated)
                    yield Compared(where=f"{where}, reserved", number=small.allocated, limit=large.reserved)


@law("A slower host never makes a step faster, and no device time longer.", "devices × hosts")
def hosts(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for precision in step.precisions[:1]:
            for device in scope.devices:
                found = [answers(usual(step, precision, device.name, host=host)) for host in scope.hosts]
                for (quick, one), (slow, other) in pairwise(zip(scope.hosts, found, strict=True)):
                    if one is None or other is None:
                        continue
                    where = f"{step.name} {precision} on {device.name}: hosts {quick} and {slow}"
                    yield Compared(where=f"{where}, step", number=one.step, limit=other.step)
                    if device.kind != "cpu":
                        yield from equal(f"{where}, device", one.device, other.device)


@law("A graph that was saved and read again, and a question that is repeated, have the same answer.", "devices")
def repeated(scope: Scope, answers: Answers) -> Iterator[Compared]:
    for step in scope.steps:
        for device in scope.devices[:3]:
            case = usual(step, step.precisions[0], device.name)
            first, graph = answers(case), answers.graph(case)
            if first is not None:
                for again in (
                    answers.again(case, graph),
                    answers.again(case, type(graph).from_bytes(graph.to_bytes())),
                ):
                    yield from equal(f"{case}: step", again.step, first.step)
                    yield from equal(f"{case}: total bytes", again.total, first.total)
