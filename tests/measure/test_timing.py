"""Timing of steps: repetitions, parts, the host's share, and quantiles of a few values."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import WorkloadError
from foretell.measure.build import LossWatch, build_step
from foretell.measure.timing import HostClock, clock_of, quantile, time_steps, warm_up
from tests.measure.small import perceptron, wrong


@dataclass
class Ticks:
    """A clock that moves only when a step moves it."""

    now: float = 0.0
    runs: int = 0
    takes: dict[str, float] = field(default_factory=lambda: {"forward": 1.0, "backward": 2.0, "optimizer": 0.5})
    micro_steps: int = 1

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def wait(self) -> None:
        pass

    def run(self, watch: Callable[[str, int], None] = lambda part, micro: None) -> None:
        self.runs += 1
        for micro in range(self.micro_steps):
            for part in ("forward", "backward"):
                watch(part, micro)
                self.now += self.takes[part]
        watch("optimizer", 0)
        self.now += self.takes["optimizer"]


def timed(ticks: Ticks, seconds: float = 0.01) -> Any:
    return time_steps(ticks, ticks, seconds)  # type: ignore[arg-type]


def test_a_step_is_from_its_first_mark_to_that_of_the_next() -> None:
    timing = timed(Ticks())
    assert set(timing.steps) == {3.5}
    assert timing.parts == {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    assert sum(timing.parts.values()) == timing.seconds


def test_micro_steps_are_added_up() -> None:
    timing = timed(Ticks(micro_steps=3))
    assert timing.parts == {"forward": 3.0, "backward": 6.0, "optimizer": 0.5}
    assert timing.seconds == 9.5


def test_never_fewer_than_five_nor_more_than_a_hundred() -> None:
    assert len(timed(Ticks(), 1e-9).steps) == 5
    assert len(timed(Ticks(), 1e9).steps) == 100


def test_a_real_step_on_the_host() -> None:
    step = build_step(perceptron(batch=4, width=16), torch.device("cpu"))
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    warm_up(step, clock)
    timing = time_steps(step, clock, 0.05)
    assert 0 < sum(timing.steps) <= timing.window[1] - timing.window[0]
    assert timing.issue
    assert set(timing.parts) == {"forward", "backward", "optimizer"}


def test_a_compiled_step_is_not_measured_as_an_eager_one() -> None:
    with pytest.raises(WorkloadError, match=r"compile=True of workload .* cannot be measured.*Set compile=False"):
        build_step(replace(perceptron(), compile=True), torch.device("cpu"))


class TestQuantiles:
    def test_of_one_value(self) -> None:
        assert quantile([3.0], 0.1) == quantile([3.0], 0.9) == 3.0

    @given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1), st.floats(0, 1))
    def test_between_the_ends_and_in_order(self, values: list[float], a: float, b: float) -> None:
        low, high = sorted((quantile(values, min(a, b)), quantile(values, max(a, b))))
        assert quantile(values, min(a, b)) <= quantile(values, max(a, b)) * (1 + 1e-12)
        assert min(values) <= low * (1 + 1e-12)
        assert high <= max(values) * (1 + 1e-12)

    @given(st.lists(st.floats(0, 1e6), min_size=1))
    def test_half_is_the_median(self, values: list[float]) -> None:
        assert quantile(values, 0.5) == pytest.approx(statistics.median(values))


class TestBuilding:
    def test_weights_stay_as_they_are_however_often_a_step_runs(self) -> None:
        """A batch repeated a hundred times must not drift into NaN."""
        step = build_step(perceptron(), torch.device("cpu"))
        step.run()
        before = [p.detach().clone() for p in step.model.parameters()]
        for _ in range(20):
            step.run()
        for old, new in zip(before, step.model.parameters(), strict=True):
            torch.testing.assert_close(old, new, rtol=0, atol=1e-9)

    @pytest.mark.parametrize(("kind", "finite"), [("nan", False), ("nothing", True)])
    def test_the_loss_is_watched(self, kind: str, finite: bool) -> None:
        watch = LossWatch(wrong(kind))
        assert watch.finite, "nothing is known before a step"
        build_step(watch.workload, torch.device("cpu")).run()
        assert watch.finite == finite
