"""Time laid out: physics that must hold for any durations, and cases small enough to do by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.graph import Graph, Op, Signature
from foretell.program import Collective, Group, Role
from foretell.simulate.rank import Rank
from foretell.simulate.step import Durations, simulate

NOTHING = Signature("aten.relu.default", (), ())
SECONDS = st.floats(min_value=0, max_value=10, allow_nan=False)


def role(phases: list[str], times: list[int] | None = None, collectives: tuple[Collective, ...] = ()) -> Role:
    times = times or [1] * len(phases)
    ops = tuple(Op(NOTHING, phase, "", (), (), n) for phase, n in zip(phases, times, strict=True))
    return Role(name="dp", count=1, graph=Graph(name="g", ops=ops, tensors=(), storages=()), collectives=collectives)


def durations(
    device: list[float], host: list[float], waits: list[bool] | None = None, collectives: list[float] | None = None
) -> Durations:
    return Durations(
        device=np.array(device, dtype=float),
        host=np.array(host, dtype=float),
        waits=np.array(waits or [False] * len(device)),
        collectives=collectives or [],
    )


def all_reduce(after: int, before: int) -> Collective:
    return Collective(
        kind="all-reduce", nbytes=4, group=Group(size=2), name="bucket", starts_after=after, waited_for_by=before
    )


def test_the_slower_of_host_and_device_sets_the_pace() -> None:
    three = role(["forward"] * 3)
    assert simulate(three, durations([1, 1, 1], [0.1, 0.1, 0.1])).makespan == pytest.approx(3.1)
    assert simulate(three, durations([0.1, 0.1, 0.1], [1, 1, 1])).makespan == pytest.approx(3.1)


def test_reading_a_result_makes_the_host_wait() -> None:
    two = role(["forward"] * 2)
    assert simulate(two, durations([5, 1], [1, 1])).makespan == pytest.approx(7)
    assert simulate(two, durations([5, 1], [1, 1], waits=[True, False])).makespan == pytest.approx(8)


def test_communication_hides_behind_compute_and_the_update_waits_for_it() -> None:
    step = role(["backward", "backward", "optimizer"], collectives=(all_reduce(after=0, before=2),))
    hidden = simulate(step, durations([2, 3, 1], [0, 0, 0], collectives=[2.5]))
    assert hidden.makespan == pytest.approx(6)
    exposed = simulate(step, durations([2, 3, 1], [0, 0, 0], collectives=[7]))
    assert exposed.makespan == pytest.approx(2 + 7 + 1)


@given(st.lists(st.tuples(SECONDS, SECONDS, st.booleans()), min_size=1, max_size=30))
def test_a_step_is_at_least_its_busiest_stream_and_at_most_their_sum(ops: list[tuple[float, float, bool]]) -> None:
    device, host, waits = ([op[i] for op in ops] for i in range(3))
    timeline = simulate(role(["forward"] * len(ops)), durations(device, host, waits))
    assert timeline.makespan >= max(sum(device), sum(host)) - 1e-9
    assert timeline.makespan <= sum(device) + sum(host) + 1e-9
    assert max(sum(device), sum(host)) - 1e-9 <= timeline.period <= timeline.makespan + 1e-9
    assert timeline.computing == pytest.approx(sum(device))


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=12), st.data())
def test_slower_ops_never_make_a_faster_step(ops: list[tuple[float, float]], data: st.DataObject) -> None:
    device, host = [op[0] for op in ops], [op[1] for op in ops]
    slower = list(device)
    slower[data.draw(st.integers(0, len(ops) - 1))] += data.draw(SECONDS)
    step = role(["forward"] * len(ops))
    assert simulate(step, durations(slower, host)).makespan >= simulate(step, durations(device, host)).makespan - 1e-9


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=10), SECONDS)
def test_free_communication_equals_compute_alone(ops: list[tuple[float, float]], slow: float) -> None:
    phases = ["backward"] * (len(ops) - 1) + ["optimizer"]
    device, host = [op[0] for op in ops], [op[1] for op in ops]
    alone = simulate(role(phases), durations(device, host)).makespan
    replica = role(phases, collectives=(all_reduce(after=0, before=len(ops) - 1),))
    assert simulate(replica, durations(device, host, collectives=[0.0])).makespan == pytest.approx(alone)
    assert simulate(replica, durations(device, host, collectives=[slow])).makespan >= alone - 1e-9


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), st.integers(1, 9))
def test_repeated_micro_steps_equal_the_same_ops_written_out(ops: list[tuple[float, float]], times: int) -> None:
    device, host = [op[0] for op in ops], [op[1] for op in ops]
    folded = simulate(role(["forward"] * len(ops), times=[times] * len(ops)), durations(device, host))
    unrolled = simulate(role(["forward"] * len(ops) * times), durations(device * times, host * times))
    # Host and device settle into one rhythm after the first repetition; folding may differ by a part of one.
    assert folded.makespan == pytest.approx(unrolled.makespan, rel=1e-6, abs=max(sum(device), sum(host)))
    assert folded.makespan >= times * max(sum(device), sum(host)) - 1e-9


def test_the_trace_opens_in_perfetto(tmp_path: Path) -> None:
    step = role(["forward", "backward"], collectives=(all_reduce(after=1, before=5),))
    simulate(step, durations([1, 2], [0.5, 0.5], collectives=[1])).to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert {"name", "ts", "dur", "pid", "tid"} <= complete[0].keys()
    assert len(complete) == 5  # two on the host, two on the device, one on the network
    assert max(e["ts"] + e["dur"] for e in complete) == pytest.approx(4.5e6)
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"dp", "host", "device", "network"}


def test_in_training_the_host_runs_ahead_of_the_device() -> None:
    two = role(["forward", "forward"])
    assert simulate(two, durations([5, 1], [1, 1])).period == pytest.approx(6)  # the device never waits for the host
    assert simulate(two, durations([1, 1], [5, 5])).period == pytest.approx(10)  # nor the host for the device
    assert simulate(two, durations([5, 1], [1, 1], waits=[False, True])).period == pytest.approx(7)  # unless it must


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=12), SECONDS, st.data())
def test_a_step_is_at_least_its_critical_path(ops: list[tuple[float, float]], slow: float, data: st.DataObject) -> None:
    phases = ["backward"] * (len(ops) - 1) + ["optimizer"]
    device, host = [op[0] for op in ops], [op[1] for op in ops]
    start = data.draw(st.integers(0, len(ops) - 2))
    step = role(phases, collectives=(all_reduce(after=start, before=len(ops) - 1),))
    timeline = simulate(step, durations(device, host, collectives=[slow]))
    path = timeline.critical_path()
    assert sum(span.duration for span in path) <= timeline.makespan + 1e-9
    assert all(first.end <= then.start + 1e-9 for first, then in pairwise(path))
    if path:
        assert path[-1].end == pytest.approx(timeline.makespan)
        assert sum(span.duration for span in path) == pytest.approx(timeline.makespan)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=30), st.floats(0, 0.1))
def test_a_step_takes_as_long_undrawn(ops: list[tuple[float, float, bool]], gap: float) -> None:
    device, host, waits = (list(column) for column in zip(*ops, strict=True))
    times = replace(durations(device, host, waits), gap=gap)
    plain = role(["forward"] * len(ops))
    drawn, undrawn = simulate(plain, times), simulate(plain, times, draw=False)
    assert undrawn.makespan == pytest.approx(drawn.makespan)
    assert undrawn.period == pytest.approx(drawn.period)
    assert not undrawn.spans


def overlapping(ops: list[tuple[float, float]], sent: list[tuple[int, float]], slowdown: float, scale: float) -> float:
    """The length of a step whose collectives start after ops of the backward pass and take `scale` of their time."""
    last = len(ops) - 1
    phases = ["backward"] * last + ["optimizer"]
    collectives = tuple(all_reduce(after=min(after, last - 1), before=last) for after, _ in sorted(sent))
    seconds = [s * scale for _, s in sorted(sent)]
    times = durations([op[0] for op in ops], [op[1] for op in ops], collectives=seconds)
    return simulate(role(phases, collectives=collectives), replace(times, slowdown=slowdown)).makespan


def test_compute_is_slower_while_the_network_is_busy() -> None:
    ops = [(2.0, 0.0), (3.0, 0.0), (4.0, 0.0), (1.0, 0.0)]
    assert overlapping(ops, [(0, 3.0)], 1.5, 1.0) == pytest.approx(10 + 3.0 * (1 - 1 / 1.5))  # all of it beside compute
    assert overlapping(ops, [(2, 3.0)], 1.5, 1.0) == pytest.approx(10 + 3.0)  # beside none
    assert overlapping(ops, [(0, 30.0)], 1.5, 1.0) == pytest.approx(2 + 30 + 1)  # compute is done long before


OVERLAPS = st.lists(st.tuples(st.integers(0, 10), SECONDS), min_size=1, max_size=4)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=10), OVERLAPS, st.floats(1, 2), st.floats(0, 1))
def test_more_bandwidth_is_never_slower_and_free_communication_is_compute_alone(
    ops: list[tuple[float, float]], sent: list[tuple[int, float]], slowdown: float, scale: float
) -> None:
    slow, fast = overlapping(ops, sent, slowdown, 1.0), overlapping(ops, sent, slowdown, scale)
    alone = overlapping(ops, sent, 1.0, 0.0)
    assert fast <= slow + 1e-9
    assert overlapping(ops, sent, slowdown, 0.0) == pytest.approx(alone)
    assert alone - 1e-9 <= overlapping(ops, sent, 1.0, 1.0) <= slow + 1e-9
    assert slow <= slowdown * alone + sum(seconds for _, seconds in sent) + 1e-9


def test_repeated_micro_steps_are_counted_in_what_computes_and_communicates() -> None:
    each = replace(all_reduce(after=0, before=1), every_micro_step=True)
    for times in (1, 2, 3, 8):
        folded = simulate(role(["forward"] * 2, [times] * 2, (each,)), durations([1, 2], [0, 0], collectives=[0.5]))
        assert folded.computing == pytest.approx(3 * times)
        assert folded.communicating == pytest.approx(0.5 * times)
        assert folded.period == pytest.approx(3.5 * times)


def random_step(seed: int) -> tuple[Role, Durations]:
    """Collectives that are waited for at once, later or at the end, on one lane or two, some of them issued early.

    Numbers are drawn, so that no two paths through a step are as long.
    """
    draw = Random(seed)
    count = draw.randint(3, 80)
    device, host = ([draw.choice((0.0, 0.5, 1.0, 3.0)) * draw.random() for _ in range(count)] for _ in range(2))
    waits = [draw.random() < 0.03 for _ in range(count)]
    early = draw.random() < 0.5
    collectives = []
    for number in range(draw.randint(0, 8)):
        after = draw.randint(0, count - 2)
        before = min(after + draw.choice((1, 1, 2, 7, count)), count)
        issued = draw.randint(after + 1, before - 1) if early and before > after + 1 else None
        collectives.append(
            replace(
                all_reduce(after, before),
                lane=draw.choice(("dp", "tp")),
                name=f"number {number}",
                issued_by=issued,
                every_micro_step=draw.random() < 0.7,
            )
        )
    times = durations(device, host, waits, [draw.choice((0.3, 2.0, 9.0)) * draw.random() for _ in collectives])
    repeated = draw.randint(0, count)
    runs = [draw.choice((1, 1, 2, 5))] * repeated + [1] * (count - repeated)
    slower = draw.choice((1.0, 1.5))
    return role(["forward"] * count, runs, tuple(collectives)), replace(times, slowdown=slower, gap=0.123)


@pytest.mark.parametrize("seed", range(120))
def test_leaping_over_stretches_is_as_good_as_op_by_op(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, times = random_step(seed)
    leaping = simulate(step, times)
    monkeypatch.setattr("foretell.simulate.segments._OFTEN", -1.0)
    followed = simulate(replace(step), times)
    for name in ("makespan", "period", "computing", "communicating"):
        assert getattr(leaping, name) == pytest.approx(getattr(followed, name), abs=1e-9), name
    found = [timeline.path for timeline in (leaping, followed)]
    first, second = (np.concatenate([p.host, p.device, p.collectives]) for p in found if p is not None)
    assert first == pytest.approx(second, abs=1e-9)
    assert sum(span.duration for span in followed.critical_path()) == pytest.approx(second.sum(), abs=1e-9)


@pytest.mark.parametrize("seed", range(120))
def test_a_step_that_is_not_drawn_takes_exactly_as_long(seed: int) -> None:
    step, times = random_step(seed)
    drawn, plain = simulate(step, times), simulate(replace(step), times, draw=False)
    for name in ("makespan", "period", "computing", "communicating"):
        assert getattr(drawn, name) == getattr(plain, name), name


def test_a_quicker_host_changes_only_steps_that_wait_for_it() -> None:
    ahead = 0
    for seed in range(300):
        step, times = random_step(seed)
        plain = simulate(step, times, draw=False)
        quicker = simulate(step, replace(times, host=times.host * 0.6), draw=False)
        if not plain.waits_for_host:
            ahead += 1
            assert quicker.period == pytest.approx(plain.period, abs=1e-9), seed
    assert 10 < ahead < 290


def long_step(seed: int) -> tuple[Role, Durations]:
    """As long as real ones: a host that runs ahead, collectives that are waited for at once and gradients that are not."""
    draw = Random(seed)
    count = draw.randint(100, 400)
    device = [draw.choice((0.0, 2.0)) * draw.random() for _ in range(count)]
    host = [draw.choice((0.3, 0.3, 2.0)) * draw.random() for _ in range(count)]
    waits = [at == 5 for at in range(count)]
    at_once = [
        replace(all_reduce(after, after + 2), lane="tp", every_micro_step=True) for after in range(3, count // 2, 17)
    ]
    gradients = [all_reduce(after, count - 3) for after in range(count // 2, count - 10, 23)]
    seconds = [draw.choice((0.3, 2.0, 9.0)) * draw.random() for _ in (*at_once, *gradients)]
    times = replace(durations(device, host, waits, seconds), slowdown=draw.choice((1.0, 1.3)), gap=0.1)
    repeated = draw.choice((0, count // 2))
    runs = [draw.choice((2, 5))] * repeated + [1] * (count - repeated)
    return role(["forward"] * count, runs, (*at_once, *gradients)), times


@pytest.mark.parametrize("seed", range(40))
def test_long_steps_are_as_op_by_op(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, times = long_step(seed)
    drawn, plain = simulate(step, times), simulate(replace(step), times, draw=False)
    monkeypatch.setattr("foretell.simulate.segments._OFTEN", -1.0)
    monkeypatch.setattr(Rank, "is_undisturbed", False)
    followed = simulate(replace(step), times)
    for name in ("makespan", "period", "computing", "communicating"):
        assert getattr(drawn, name) == getattr(plain, name), name
        assert getattr(plain, name) == pytest.approx(getattr(followed, name), rel=1e-12), name


def test_a_step_after_the_first_is_followed_to_where_it_is_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = Rank.run

    def counted(self: Rank, *ops: int, until: int | None = None, **how: Any) -> None:
        ran.append(-1 if until is None else until)
        run(self, *ops, until=until, **how)

    monkeypatch.setattr(Rank, "run", counted)
    part = whole = 0
    for seed in range(40):
        ran.clear()
        step, times = long_step(seed)
        simulate(step, replace(times, host=times.host * 0.1), draw=False)
        part += ran[-1] >= 0
        ran.clear()
        simulate(step, replace(times, host=times.host * 20), draw=False)
        whole += ran[-1] < 0
    assert part > 20
    assert whole == 40
