"""Kernels given to ops. There is no GPU here: traces are made up, event by event, in the form in which kineto has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.graph import Graph
from foretell.measure.kernels import Alignment, op_times, owners_of, record_on_host
from foretell.measure.traces import Kernel, TracedStep, Traces, added_seconds, read_trace

HOST = torch._C._autograd.DeviceType.CPU
CUDA = torch._C._autograd.DeviceType.CUDA
US = 1000  # nanoseconds


@dataclass
class Event:
    """What is asked of an event of kineto's."""

    label: str
    device: Any
    begin: int
    length: int
    correlation: int = 0
    annotation: bool = False

    def name(self) -> str:
        return self.label

    def device_type(self) -> Any:
        return self.device

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.length

    def correlation_id(self) -> int:
        return self.correlation

    def is_user_annotation(self) -> bool:
        return self.annotation


@dataclass
class Made:
    """A trace as the host goes along; microseconds."""

    now: int = 0
    free: int = 0  # when the device is done with what was launched
    events: list[Event] = field(default_factory=list)

    def launch(self, name: str, runs: int, *, takes: int = 4) -> None:
        correlation = 100 + len(self.events)
        self.events.append(Event("cudaLaunchKernel", HOST, self.now * US, takes * US, correlation))
        self.now += takes
        begin = max(self.now, self.free)
        self.free = begin + runs
        self.events.append(Event(name, CUDA, begin * US, runs * US, correlation))

    def op(self, number: int, *launched: tuple[str, int]) -> None:
        begin = self.now
        self.now += 1
        for name, runs in launched:
            self.launch(name, runs)
        self.now += 1
        length = (self.now - begin) * US
        self.events.append(Event(f"foretell#{number}", HOST, begin * US, length))
        self.events.append(Event(f"foretell#{number}", CUDA, begin * US, length, annotation=True))

    def wait(self) -> None:
        begin, self.now = self.now, max(self.now, self.free) + 1
        self.events.append(Event("cudaDeviceSynchronize", HOST, begin * US, (self.now - begin) * US, 99_000 + self.now))
        self.events.append(Event("Context Sync", CUDA, begin * US, 1, 99_000 + self.now))

    @property
    def profiler(self) -> Any:
        results = SimpleNamespace(events=lambda: self.events)
        return SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))


def graph_of(*times: int) -> Graph:
    """As much of a graph as is asked: how often each op runs."""
    return SimpleNamespace(ops=[SimpleNamespace(times=n) for n in times])  # type: ignore[return-value]


def aligned(trace: Made, *times: int) -> Alignment:
    found, ranges, _ = read_trace(trace.profiler)
    nanoseconds = tuple(end - begin for begin, end, _ in ranges)
    owners = owners_of(found, ranges)
    return Alignment(graph=graph_of(*times), kernels=tuple(found), owners=owners, nanoseconds=nanoseconds)


def plain_trace(*steps: list[tuple[str, int]], cold: bool = False, waits_at_its_end: bool = False) -> Made:
    made = Made()
    for step in steps:
        if cold:
            made.launch("fill", 50)
        made.wait()
        for name, runs in step:
            made.launch(name, runs)
        if waits_at_its_end:
            made.wait()
    made.wait()
    return made


def steps_of(trace: Made, repetitions: int, *, cold: bool = False) -> tuple[TracedStep, ...]:
    return Traces(trace.profiler, repetitions, cold).read()


@pytest.fixture
def recorded() -> Made:
    """Three ops: one with two kernels, a view with none, one with one; and a kernel between them that is no op's."""
    made = Made()
    made.op(0, ("gemm", 10), ("add", 2))
    made.op(1)
    made.now += 5
    made.launch("memset", 3)
    made.now += 5
    made.op(2, ("relu", 4))
    return made


NAMES = ("gemm", "add", "memset", "relu")


class TestGivingKernelsToOps:
    def test_by_the_range_that_launched_them(self, recorded: Made) -> None:
        assert [k.name for k in aligned(recorded, 1, 1, 1).kernels] == list(NAMES)
        assert aligned(recorded, 1, 1, 1).owners == (0, 0, None, 2)

    def test_durations_are_the_medians_of_plain_steps(self, recorded: Made) -> None:
        runs = [[("gemm", g), ("add", 1), ("memset", 3), ("relu", 4)] for g in (20, 8, 9)]
        times = op_times(aligned(recorded, 1, 1, 1), steps_of(plain_trace(*runs), 3))
        assert times.notes == ()
        assert times.device == pytest.approx((10e-6, 0.0, 4e-6))  # 9 + 1: not those of the recorded step
        assert times.kernels == (("gemm", "add"), (), ("relu",))
        assert times.kernel_seconds[0] == pytest.approx((9e-6, 1e-6))
        assert times.unattributed == pytest.approx(3e-6)
        assert times.owners == (0, 0, None, 2)

    def test_every_kernel_is_counted_once(self, recorded: Made) -> None:
        runs = [[(name, 5) for name in NAMES]] * 3
        times = op_times(aligned(recorded, 1, 1, 1), steps_of(plain_trace(*runs), 3))
        assert sum(times.device) + times.unattributed == pytest.approx(4 * 5e-6)

    def test_kernels_side_by_side_are_charged_what_they_add(self, recorded: Made) -> None:
        beside = (
            Kernel("gemm", 0, 10, 0, 1),
            Kernel("add", 4, 8, 1, 2),
            Kernel("memset", 5, 12, 2, 3),
            Kernel("relu", 20, 24, 3, 4),
        )
        assert added_seconds(beside) == pytest.approx([10e-9, 0.0, 2e-9, 4e-9])
        assert added_seconds(beside[::-1]) == pytest.approx([4e-9, 2e-9, 0.0, 10e-9]), (
            "in whatever order they are given"
        )
        times = op_times(aligned(recorded, 1, 1, 1), (TracedStep(kernels=beside, begin=0),))
        assert times.device == pytest.approx((10e-9, 0.0, 4e-9))
        assert times.kernel_seconds[0] == pytest.approx((10e-9, 4e-9)), "each kernel keeps its own time"
        assert sum(times.device) + times.unattributed == pytest.approx(busy_seconds(beside))

    def test_micro_steps_that_were_not_traced_count_all_the_same(self, recorded: Made) -> None:
        runs = [[(name, 5) for name in NAMES]] * 3
        times = op_times(aligned(recorded, 1, 1, 3), steps_of(plain_trace(*runs), 3))
        assert times.total(times.device) == pytest.approx(10e-6 + 3 * 5e-6)

    def test_host_time_of_an_op_is_since_the_launch_before(self, recorded: Made) -> None:
        runs = [[(name, 5) for name in NAMES]] * 3
        times = op_times(aligned(recorded, 1, 1, 1), steps_of(plain_trace(*runs), 3))
        assert times.issue == (pytest.approx(8e-6), None, pytest.approx(4e-6))  # launches of 4 µs; a view has none
        assert times.dispatch == pytest.approx((10e-6, 2e-6, 6e-6))


class TestPlainStepsThatDiffer:
    def test_in_number(self, recorded: Made) -> None:
        runs = [[("gemm", 9), ("sum", 1), ("relu", 4)]] * 3
        times = op_times(aligned(recorded, 1, 1, 1), steps_of(plain_trace(*runs), 3))
        assert times.device == pytest.approx((12e-6, 0.0, 4e-6)), "those of the recorded step"
        assert times.issue == (None, None, None)
        assert times.owners == ()
        [note] = times.notes
        assert "launches 3 kernels and the recorded one 4, first 'sum' for 'add'" in note

    def test_in_number_alone(self, recorded: Made) -> None:
        runs = [[("gemm", 9), ("add", 1)]] * 3
        [note] = op_times(aligned(recorded, 1, 1, 1), steps_of(plain_trace(*runs), 3)).notes
        assert note.endswith("launches 2 kernels and the recorded one 4")

    def test_in_name(self, recorded: Made) -> None:
        runs = [[("gemm", 9), ("sum", 1), ("memset", 3), ("relu", 4)]] * 3
        [note] = op_times(aligned(recorded, 1, 1, 1), steps_of(plain_trace(*runs), 3)).notes
        assert "plain steps launch other kernels" in note

    def test_without_a_kernel(self, recorded: Made) -> None:
        step = TracedStep(kernels=(), begin=0)
        [note] = op_times(aligned(recorded, 1, 1, 1), (step,)).notes
        assert "launches 0 kernels" in note

    def test_none_at_all(self, recorded: Made) -> None:
        [note] = op_times(aligned(recorded, 1, 1, 1), ()).notes
        assert "no plain step was traced" in note


class TestStepsOfATrace:
    def test_each_begins_after_its_wait(self) -> None:
        steps = steps_of(plain_trace(*[[("a", 3), ("b", 40)]] * 3), 3)
        assert [[k.name for k in step.kernels] for step in steps] == [["a", "b"]] * 3
        for step in steps:
            assert step.begin <= step.kernels[0].launch_begin

    def test_the_fill_that_empties_the_cache_is_no_part_of_them(self) -> None:
        steps = steps_of(plain_trace(*[[("a", 3), ("b", 4)]] * 3, cold=True), 3, cold=True)
        assert [[k.name for k in step.kernels] for step in steps] == [["a", "b"]] * 3

    def test_a_step_that_waits_at_its_end(self) -> None:
        steps = steps_of(plain_trace(*[[("a", 3), ("b", 4)]] * 3, waits_at_its_end=True), 3)
        assert [[k.name for k in step.kernels] for step in steps] == [["a", "b"]] * 3

    def test_no_kernels(self) -> None:
        assert steps_of(plain_trace([], [], []), 3) == ()


class TestIssuing:
    def test_launches_of_usual_length(self) -> None:
        [step] = steps_of(plain_trace([("a", 1)] * 10), 1)
        assert step.host_seconds == pytest.approx(40e-6)

    def test_waiting_for_room_in_the_queue_is_left_out(self) -> None:
        made = Made()
        made.wait()
        for number in range(10):
            made.launch("a", 1, takes=500 if number == 7 else 4)
        [step] = steps_of(made, 1)
        assert step.host_seconds == pytest.approx(40e-6)

    def test_nothing_issued(self) -> None:
        assert TracedStep(kernels=(), begin=5).host_seconds == 0.0


def busy_seconds(kernels: Sequence[Kernel], *, collectives: bool = False) -> float:
    return TracedStep(kernels=tuple(kernels), begin=0).busy_seconds(collectives=collectives)


def kernel(begin: int, end: int, name: str = "k") -> Kernel:
    return Kernel(name, begin, end, begin, begin)


class TestBusy:
    def test_what_runs_side_by_side_counts_once(self) -> None:
        assert busy_seconds([kernel(0, 10), kernel(5, 8), kernel(9, 20), kernel(30, 31)]) == pytest.approx(21e-9)

    def test_collectives_apart(self) -> None:
        mixed = [kernel(0, 10), kernel(5, 25, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
        assert busy_seconds(mixed) == pytest.approx(10e-9)
        assert busy_seconds(mixed, collectives=True) == pytest.approx(20e-9)

    @given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100))))
    def test_between_the_longest_and_the_sum(self, spans: list[tuple[int, int]]) -> None:
        ran = [kernel(begin, begin + length) for begin, length in spans]
        busy = busy_seconds(ran)
        assert max((k.seconds for k in ran), default=0.0) <= busy + 1e-15
        assert busy <= sum(k.seconds for k in ran) + 1e-15
        whole = max((k.end for k in ran), default=0) - min((k.begin for k in ran), default=0)
        assert busy <= whole / 1e9 + 1e-15


def test_on_a_host_the_call_is_the_op() -> None:
    """Real: a step on this machine's CPU."""
    from foretell.measure.build import build_step
    from tests.measure.small import perceptron

    step = build_step(perceptron(batch=4, width=16), torch.device("cpu"))
    step.run()
    times = record_on_host(step)
    assert len(times.device) == len(times.graph.ops)
    assert all(seconds > 0 for seconds in times.device)
    assert times.steps == ()
