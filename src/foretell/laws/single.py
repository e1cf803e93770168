"""Laws that every answer obeys by itself: physics, sums of parts, what an interval is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from foretell.forecasting.uncertainty import WIDEST
from foretell.laws.answers import Answer, Case
from foretell.laws.law import Compared, Tolerance, equal, law_of_one

_MIDDLE: Final = 3.0  # times as long as the other that a side of an interval may be, as a logarithm


@law_of_one(
    "Device time is at least arithmetic at the published peak, or traffic beyond the cache at the published bandwidth.",
    Tolerance(part=0.1, why="boards for games run up to a tenth above the clock that is published for them"),
)
def roofline(case: Case, a: Answer) -> Iterator[Compared]:
    yield Compared(where=f"{case}: least and forecast device seconds", number=a.least, limit=a.device)


@law_of_one(
    "A step uses at most all of its devices' arithmetic.",
    Tolerance(
        part=0.1,
        why="boards for games run above their clock; attention is counted in full, and half of it may be masked",
    ),
)
def utilization(case: Case, a: Answer) -> Iterator[Compared]:
    yield Compared(where=f"{case}: MFU", number=a.mfu, limit=1.0)


@law_of_one("A step takes at least its device, and at least what it waits for.")
def step_holds_its_parts(case: Case, a: Answer) -> Iterator[Compared]:
    yield Compared(where=f"{case}: device and step seconds", number=a.device, limit=a.step)
    yield Compared(where=f"{case}: waits and step seconds", number=a.waits, limit=a.step)


@law_of_one("Memory is the sum of its parts, and fits if it is at most the capacity.")
def memory_adds_up(case: Case, a: Answer) -> Iterator[Compared]:
    yield from equal(f"{case}: parts and allocated bytes", a.broken_down, a.allocated)
    yield from equal(f"{case}: reserved, context, communicator and total", a.reserved + a.around, a.total)
    yield from equal(f"{case}: heaviest rank and total", a.heaviest, a.total)
    yield Compared(where=f"{case}: allocated and reserved bytes", number=a.allocated, limit=a.reserved)
    over, under = (a.total, a.capacity) if a.fits else (a.capacity, a.total)
    yield Compared(where=f"{case}: {'total' if a.fits else 'capacity'} of what fits", number=over, limit=under)


@law_of_one("Dollars are price × hours, and joules are watts × seconds of at most what boards draw.")
def unit_sums(case: Case, a: Answer) -> Iterator[Compared]:
    if a.dollars_per_hour is not None and a.dollars_per_step is not None:
        yield from equal(f"{case}: dollars", a.dollars_per_step, a.dollars_per_hour * a.step / 3600)
    yield from equal(f"{case}: joules", a.joules, a.watts * a.step)
    yield Compared(where=f"{case}: watts", number=a.watts, limit=a.most_watts)


@law_of_one("Bytes that a rank sends are those on its links, at most at the rate of the fastest.")
def links(case: Case, a: Answer) -> Iterator[Compared]:
    yield from equal(f"{case}: bytes sent", a.sent_over_links, a.sent)
    if a.devices > 1:
        yield Compared(where=f"{case}: bytes per second", number=a.network_peak, limit=a.link_rate)


@law_of_one("An interval holds its point, and that of a step lies no lower than that of its device time.")
def intervals_nested(case: Case, a: Answer) -> Iterator[Compared]:
    for name, low, point, high in (
        ("step", a.step_low, a.step, a.step_high),
        ("device", a.device_low, a.device, a.device_high),
    ):
        if low is not None and high is not None:
            yield Compared(where=f"{case}: low end and {name}", number=low, limit=point)
            yield Compared(where=f"{case}: {name} and high end", number=point, limit=high)
    if a.device_high is not None and a.step_high is not None:
        yield Compared(where=f"{case}: high ends of device and step", number=a.device_high, limit=a.step_high)
    if a.device_low is not None and a.step_low is not None:
        yield Compared(where=f"{case}: low ends of device and step", number=a.device_low, limit=a.step_low)


@law_of_one(f"A point lies in the middle of its interval: no side is {_MIDDLE:g} times the other, as logarithms.")
def point_in_the_middle(case: Case, a: Answer) -> Iterator[Compared]:
    if a.step_low is None or a.step_high is None or not a.step_low < a.step < a.step_high:
        return
    below, above = math.log(a.step / a.step_low), math.log(a.step_high / a.step)
    yield Compared(
        where=f"{case}: longer and shorter side", number=max(below, above), limit=_MIDDLE * min(below, above)
    )


@law_of_one(f"An interval on one NVIDIA board from Turing on is at most {WIDEST:g} times wide, else a caveat says why.")
def width(case: Case, a: Answer) -> Iterator[Compared]:
    if a.is_recent and a.devices == 1 and a.width is not None and not a.says_why:
        yield Compared(where=f"{case}: high over low", number=a.width, limit=WIDEST)


@law_of_one("An interval is there, finite and no point.")
def intervals_there(case: Case, a: Answer) -> Iterator[Compared]:
    if a.width is not None:
        yield Compared(where=f"{case}: high over low", number=a.width, limit=1e3)
        yield Compared(where=f"{case}: low over high", number=1 / a.width, limit=0.999)
