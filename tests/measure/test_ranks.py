"""Steps over several hosts, for real: network namespaces joined by links of a limited rate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from foretell_bench.emulated import namespaces
from foretell_bench.emulated.models import cnn
from foretell_bench.emulated.steps import SOURCE, Run, measured, ranks, read
from torch import nn

from foretell.errors import InputError, PlanError
from foretell.measure.ranks.network import Traffic, find_interface, read_counters
from foretell.measure.ranks.world import Place
from foretell.measure.ranks.wrap import blocks, plan_for
from foretell.measure.record import Record
from foretell.measure.sampler import Sample

FAST, SLOW = 1e9, 200e6  # bits per second
PLACE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

why_not = cache(namespaces.why_not)
needs_namespaces = pytest.mark.skipif("why_not()", reason="no hosts can be emulated here")


# What the wire says.


def gradient_bytes() -> int:
    return sum(p.numel() * p.element_size() for p in cnn().model().parameters())


def check_wire(records: list[Record], times_gradients: float, run: Run) -> None:
    """Every rank sent and received the bytes that the algorithm must move, and not faster than the links allow."""
    expected = times_gradients * gradient_bytes()
    for record in records:
        step = record.step
        assert step.outcome == "ok"
        # Headers and acknowledgements come on top: more of them on a busy machine, where packets are smaller.
        assert 0.99 * expected < (step.sent_bytes or 0) < 1.1 * expected
        assert 0.99 * expected < (step.received_bytes or 0) < 1.1 * expected
        assert step.step_seconds is not None
        # Each step may start with a full bucket of tokens.
        assert step.step_seconds >= (expected - namespaces.BURST_BYTES) * 8 / run.bits_per_second
        assert step.communication_seconds is not None
        assert step.communication_seconds > 0


@pytest.mark.nightly
@needs_namespaces
@pytest.mark.parametrize("hosts", [3, 4])
def test_ddp_sends_what_a_ring_must(hosts: int, tmp_path: Path) -> None:
    runs = [Run(bits_per_second=FAST), Run(bits_per_second=SLOW)]
    fast, slow = measured(hosts, runs, tmp_path)
    check_wire(fast, 2 * (hosts - 1) / hosts, runs[0])
    check_wire(slow, 2 * (hosts - 1) / hosts, runs[1])


@pytest.mark.nightly
@needs_namespaces
def test_two_hosts_under_torchrun(tmp_path: Path) -> None:
    runs = [
        Run(bits_per_second=FAST),
        Run(bits_per_second=SLOW),
        Run(bits_per_second=FAST, settings={"accumulate": "2"}),
        Run(bits_per_second=FAST, plan="dp=2,zero=3"),
    ]
    fast, slow, accumulated, sharded = measured(2, runs, tmp_path, torchrun=True)
    check_wire(fast, 1, runs[0])
    check_wire(slow, 1, runs[1])
    check_wire(accumulated, 1, runs[2])  # only the last micro-step communicates
    # FSDP gathers parameters twice, half of them from the other host. gloo scatters gradients by an all-reduce.
    check_wire(sharded, 2 * 1 / 2 + 1, runs[3])

    row, series = slow[1].step, slow[1].series
    assert (row.world_size, row.rank, row.backend, row.plan) == (2, 1, "gloo", "dp=2")
    assert row.repetitions >= 5
    assert row.torch
    assert row.date
    assert row.step_low <= row.step_seconds <= row.step_high  # type: ignore[operator]
    for part in (row.forward_seconds, row.backward_seconds, row.optimizer_seconds):
        assert 0 < part <= row.step_seconds  # type: ignore[operator]
    assert [s.resource for s in series] == ["network_rx", "network_tx"]
    assert all("eth0" in s.counter and s.unit == "bytes/s" for s in series)
    least = ((row.sent_bytes or 0) - namespaces.BURST_BYTES) * 8 / SLOW  # that the link takes
    assert row.network_tx_active_seconds > 0.5 * least  # type: ignore[operator]
    ends = [*series[1].seconds[1:], series[1].seconds[-1]]
    sent = sum(v * (b - a) for v, a, b in zip(series[1].values, series[1].seconds, ends, strict=True))
    whole = (row.sent_bytes or 0) * row.repetitions
    assert 0.5 * whole < sent < 1.1 * whole  # the last readings of a busy machine may come late


@pytest.mark.nightly
@needs_namespaces
@pytest.mark.parametrize(("end", "hosts"), [(signal.SIGKILL, 3), (signal.SIGSTOP, 2)], ids=["killed", "hanging"])
def test_a_lost_rank_ends_the_others(end: signal.Signals, hosts: int, tmp_path: Path) -> None:
    run = Run(bits_per_second=2e6, settings={"width": "40"})  # slow enough to be in the middle of a step
    *others, last = range(hosts)
    with (
        namespaces.cluster(hosts, bits_per_second=run.bits_per_second) as made,
        ranks(made, [run], tmp_path, timeout=10.0) as job,
    ):
        patience = time.monotonic() + 300
        while not all("measuring" in job.output(host) for host in range(hosts)) and time.monotonic() < patience:
            time.sleep(0.1)
        time.sleep(2)
        job.processes[last].send_signal(end)
        codes = [job.processes[host].wait(300) for host in others]
        message = [job.output(host) for host in others]
    assert codes == [1] * len(others), message
    for host in others:
        assert f"rank {host} lost rank {last} (" in message[host], message[host]
        assert made.address(last) in message[host]
        [kept] = read(tmp_path / f"out.rank{host}.jsonl")
        assert kept.step.outcome == "error"
        assert f"lost rank {last}" in kept.step.error


@pytest.mark.nightly
def test_two_ranks_on_one_host_have_no_counters_of_their_own(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom foretell.measure.record import Point\n"
        "from foretell.measure.ranks.measure import join, measure_ranks\nwith join(timeout=300) as world:\n"
        "    try: measure_ranks(Point(source='nothing.py:here'), world)\n"
        "    except Exception as error: print(error)\n"
        "    records = measure_ranks(Point(source=sys.argv[1]), world, out=Path(sys.argv[2]))\n"
        "    print(len(records))\n"
    )
    processes = []
    for rank in "01":
        environment = {**os.environ, **PLACE, "MASTER_PORT": "29517", "RANK": rank, "LOCAL_RANK": rank}
        environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-c", program, SOURCE, str(tmp_path / "out.jsonl")]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    message = [rank.communicate(timeout=300)[0].split("\n") for rank in processes]
    assert [rank.returncode for rank in processes] == [0, 0]
    for lines, count in zip(message, "21", strict=True):
        assert "no file 'nothing.py'" in lines[0]  # bad input in every rank leaves the job whole
        assert lines[1] == count
    for record in read(tmp_path / "out.jsonl"):
        assert record.step.step_seconds is not None
        assert record.step.sent_bytes is None
        assert any("2 ranks share the counters of lo" in mark for mark in record.step.marks)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]  # parts are gone once they are merged


# What needs no second process.


def test_the_environment_says_the_place() -> None:
    assert Place.here(PLACE) == Place(rank=1, size=2, local_rank=0, master="localhost")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": ""}, "RANK is not set"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "MASTER_ADDR, MASTER_PORT are not set"),
        ({"RANK": "2"}, "must be below WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' must be a whole number"),
    ],
)
def test_an_environment_that_cannot_be(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        Place.here(PLACE | change)
    assert "torchrun" in str(raised.value)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("dp=2", "for 2 ranks, but torchrun started 4"),
        ("dp=2,tp=2", "tp is not run here"),
        ("dp=4,zero=1", "zero=1 is not run here"),
        ("dp=4,zero=3,hybrid_shard=3", "must divide dp=4"),
        ("dp=4,hybrid_shard=2", "needs zero=2 or zero=3"),
        ("dp=4,overlap=false", "overlap is not run here"),
    ],
)
def test_plans_that_are_not_run(plan: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_for(plan, 4)


def test_no_plan_is_data_parallel() -> None:
    assert str(plan_for("", 4)) == "dp=4"
    assert plan_for("dp=4,zero=3,hybrid_shard=2", 4).hybrid_shard == 2


def test_blocks_are_what_lists_hold() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoder(layer, 3), nn.Sequential(nn.Linear(8, 8)))
    [encoder] = blocks(model)  # the outermost
    assert encoder is model[1]
    assert len(list(blocks(model[1]))) == 3
    assert not list(blocks(nn.Sequential(nn.Linear(8, 8), nn.ReLU())))


def test_the_interface_towards_this_host_is_the_loopback() -> None:
    assert find_interface("127.0.0.1", "gloo", {}) == "lo"
    assert find_interface("127.0.0.1", "gloo", {"GLOO_SOCKET_IFNAME": "eth7,eth8"}) == "eth7"
    assert find_interface("127.0.0.1", "nccl", {"NCCL_SOCKET_IFNAME": "^docker"}) == "lo"
    assert find_interface("127.0.0.1", "nccl", {"NCCL_SOCKET_IFNAME": "=lo"}) == "lo"


def test_an_unknown_interface_or_host_is_reported() -> None:
    with pytest.raises(InputError, match=r"no network interface 'lq' on this host\. Did you mean 'lo'"):
        read_counters("lq")
    with pytest.raises(InputError, match=r"no route to nowhere\.invalid"):
        find_interface("nowhere.invalid", "gloo", {})


def test_traffic_is_without_what_goes_over_the_interface_anyway() -> None:
    idle = Traffic.between(Sample(0.0, 100, 1000), Sample(0.5, 150, 1010))
    busy = Traffic.between(Sample(1.0, 1000, 2000), Sample(3.0, 5000, 2030)).without(idle)
    assert (busy.received, busy.sent, busy.seconds) == (3800, 0, 2.0)
