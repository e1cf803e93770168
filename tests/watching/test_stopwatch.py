"""Windows of step times, by a clock that the tests turn."""

from __future__ import annotations

import pytest

from foretell.watching import stopwatch
from foretell.watching.stopwatch import FEWEST, MAX_TIMED_STEPS, WARM_UP, Stopwatch, Window


class Device:
    """A clock of a device that may lag behind the marks it was given."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reached = float("inf")
        self.marks = 0

    def mark(self) -> float:
        self.marks += 1
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def passed(self, mark: float) -> bool:
        return mark <= self.reached

    def wait(self) -> None:
        self.reached = self.now


@pytest.fixture
def device() -> Device:
    return Device()


def run(watch: Stopwatch, device: Device, *seconds: float) -> list[Window]:
    found = []
    for each in seconds:
        device.now += each
        if (window := watch.step()) is not None:
            found.append(window)
    return found


def test_a_window_has_the_steps_after_warming_up(device: Device) -> None:
    [window] = run(Stopwatch(device, 0.0), device, *[9.0] * WARM_UP, *[2.0] * FEWEST)
    assert (window.before, window.timing.steps, window.pauses) == (WARM_UP, (2.0,) * FEWEST, 0)


def test_the_next_window_goes_on_where_one_ended(device: Device) -> None:
    first, second = run(Stopwatch(device, 0.0), device, *[1.0] * WARM_UP, *[2.0] * FEWEST, *[3.0] * FEWEST)
    assert second.before == first.before + FEWEST
    assert second.timing.steps == (3.0,) * FEWEST


def test_a_pause_is_no_step_whether_it_was_said_or_is_merely_long(device: Device) -> None:
    watch = Stopwatch(device, 0.0)
    run(watch, device, *[1.0] * (WARM_UP + 2))
    watch.pause()
    [window] = run(watch, device, 1.5, 1.0, 100.0, 1.0)  # the first only begins again, and one is too long
    assert (window.timing.steps, window.pauses) == ((1.0,) * 4, 1)


def test_nothing_is_read_that_the_device_has_not_reached(device: Device) -> None:
    watch = Stopwatch(device, 0.0)
    device.reached = 0.0
    assert run(watch, device, *[1.0] * (WARM_UP + FEWEST)) == []
    device.reached = device.now
    assert len(run(watch, device, 1.0)) == 1


def test_what_is_left_at_the_end_is_waited_for(device: Device) -> None:
    watch = Stopwatch(device, 3600.0)
    device.reached = 0.0
    run(watch, device, *[1.0] * (WARM_UP + FEWEST))
    [window] = watch.rest()
    assert window.timing.seconds == 1.0
    assert watch.rest() == []


def test_too_few_steps_are_no_window(device: Device) -> None:
    watch = Stopwatch(device, 0.0)
    run(watch, device, *[1.0] * (WARM_UP + FEWEST - 1))
    assert watch.rest() == []


def test_of_many_short_steps_the_first_are_timed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 0.0
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: moment)
    watch = Stopwatch(device, 60.0)
    run(watch, device, *[1.0] * 1000)
    assert device.marks == MAX_TIMED_STEPS + 1
    moment = 61.0
    [window] = run(watch, device, 1.0)
    assert len(window.timing.steps) == MAX_TIMED_STEPS
    [later] = [*run(watch, device, *[1.0] * 9), *watch.rest()]
    assert later.before == 1002  # its first step begins with the next one: the last before it was not timed
    assert len(later.timing.steps) == 8
