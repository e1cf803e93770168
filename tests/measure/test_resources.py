"""Resources over a step: series from kernels and counters, the three numbers they come down to, and the sampler."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from foretell_bench.emulated import namespaces
from hypothesis import given
from hypothesis import strategies as st

from foretell.measure import sampler as sampler_module
from foretell.measure.kernels import OpTimes
from foretell.measure.record import SeriesRow
from foretell.measure.resources import (
    FROM_KERNELS,
    FROM_NVML_MEMORY,
    FROM_NVML_POWER,
    Reduced,
    bandwidth_use,
    device_series,
    network_series,
    reduce_series,
    sampled_series,
)
from foretell.measure.sampler import Sample, Sampler, read_network
from foretell.measure.traces import Kernel, TracedStep

ROOT = Path(__file__).parents[2]


def series(seconds: list[float], values: list[float]) -> SeriesRow:
    return SeriesRow(
        resource="device", counter="made up", unit="fraction", seconds=tuple(seconds), values=tuple(values)
    )


class TestReducing:
    def test_idle_active_peak(self) -> None:
        assert reduce_series(series([0.0, 1.0, 3.0], [0.0, 0.8, 0.001]), 4.0) == Reduced(2.0, 2.0, 0.8)

    def test_nothing_happened(self) -> None:
        assert reduce_series(series([0.0, 1.0], [0.0, 0.0]), 2.0) == Reduced(2.0, 0.0, 0.0)
        assert reduce_series(series([], []), 2.0) == Reduced(2.0, 0.0, 0.0)

    @given(
        st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e9)), max_size=20, unique_by=lambda p: p[0]),
        st.floats(0, 5),
    )
    def test_idle_and_active_are_the_whole(self, points: list[tuple[float, float]], rest: float) -> None:
        points.sort()
        length = (points[-1][0] if points else 0.0) + rest
        reduced = reduce_series(series([t for t, _ in points], [v for _, v in points]), length)
        assert reduced.idle_seconds >= 0
        assert reduced.active_seconds >= 0
        assert reduced.idle_seconds + reduced.active_seconds == pytest.approx(length)
        assert reduced.peak == max((v for _, v in points), default=0.0)

    def test_in_a_step_of_another_length_the_activity_stays(self) -> None:
        assert Reduced(5.0, 2.0, 0.8).in_step(3.0) == Reduced(1.0, 2.0, 0.8)
        assert Reduced(5.0, 2.0, 0.8).in_step(1.5) == Reduced(0.0, 2.0, 0.8)


def traced(*spans: tuple[int, int]) -> TracedStep:
    return TracedStep(kernels=tuple(Kernel("k", b * 1000, e * 1000, b * 1000, b * 1000) for b, e in spans), begin=0)


def times_of(step: TracedStep, **more: object) -> OpTimes:
    """As much of op times as series are made of; made up."""
    return SimpleNamespace(steps=(step,), **more)  # type: ignore[return-value]


class TestFromKernels:
    @given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 200)), min_size=1, max_size=20))
    def test_the_area_is_the_time_a_kernel_runs(self, spans: list[tuple[int, int]]) -> None:
        step = traced(*sorted((b, b + n) for b, n in spans))
        made = device_series(times_of(step))
        length = max(k.end for k in step.kernels) / 1e9
        area = sum(made.values) * length / len(made.values)
        covered = {t for k in step.kernels for t in range(k.begin // 1000, k.end // 1000)}
        assert area == pytest.approx(len(covered) * 1e-6, rel=1e-6)
        assert all(0.0 <= v <= 1.0 for v in made.values)
        assert made.counter == FROM_KERNELS

    def test_bandwidth_is_traffic_over_time_and_never_more_than_published(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from foretell.measure import resources

        monkeypatch.setattr(resources, "_traffic", lambda graph: [1000.0, 50_000.0, 0.0])
        step = traced((0, 10), (20, 30), (30, 40))
        times = times_of(step, graph=None, device=(10e-6, 10e-6, 10e-6), owners=(0, 1, 2),
                         total=lambda seconds: sum(seconds))  # fmt: skip
        row, reduced = bandwidth_use(times, 1e9)
        assert reduced.peak == pytest.approx(1.0)  # 50 kB in 10 µs are five times the bandwidth: more than is possible
        assert reduced.active_seconds == pytest.approx(20e-6)
        assert row.values[10] == pytest.approx(0.1)
        assert row.values[-1] == 0.0


class TestFromSamples:
    def test_rates_between_readings(self) -> None:
        samples = [
            Sample(9.9, 0, 0, 100.0, 0.5),
            Sample(10.1, 200, 20, 300.0, 0.6),
            Sample(10.3, 200, 40, 310.0, 0.7),
        ]
        power, memory, rx, tx = sampled_series(samples, 10.0)
        assert (power.counter, memory.counter) == (FROM_NVML_POWER, FROM_NVML_MEMORY)
        assert power.values == (300.0, 310.0), "what was sampled before the window is not in it"
        assert rx.values == pytest.approx((1000.0, 0.0))
        assert tx.values == pytest.approx((100.0, 100.0))
        assert rx.seconds == pytest.approx((0.0, 0.1))
        assert rx.counter == "/proc/net/dev: bytes received by all interfaces but loopback"

    def test_without_nvml_there_is_no_power(self) -> None:
        samples = [Sample(9.9, 0, 0), Sample(10.1, 0, 0)]
        assert {s.resource for s in sampled_series(samples, 10.0)} == {"network_rx", "network_tx"}

    def test_no_samples(self) -> None:
        assert sampled_series([], 10.0) == []


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120  # a safety net
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class TestSampler:
    """A real one."""

    @pytest.fixture
    def sampler(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
        monkeypatch.setattr(sampler_module, "_PATIENCE", 120.0)  # on a busy machine it may wake late
        made = Sampler(interval=0.005)
        yield made
        made.close()

    def test_it_samples_while_it_is_awake(self, sampler: Sampler) -> None:
        begin = time.monotonic()
        with sampler.awake():
            until(lambda: len(sampler._fresh()) > 5)
        end = time.monotonic()
        seen = sampler.between(begin, end)
        assert len(seen) > 5
        assert [s.time for s in seen] == sorted(s.time for s in seen)
        assert sum(s.time >= begin for s in seen) >= len(seen) - 1, "one from before, to start differences"
        time.sleep(0.1)
        assert not [s for s in sampler.between(end, time.monotonic()) if s.time > end + 0.05], "it sleeps"

    def test_differences_do_not_start_before_it_was_woken(self, sampler: Sampler) -> None:
        for _ in range(2):
            woken = time.monotonic()
            with sampler.awake():
                begin = time.monotonic()
                until(lambda: len(sampler._fresh()) > 2)
            [first, *_] = sampler.between(begin, time.monotonic())
            assert woken <= first.time <= begin
            time.sleep(0.05)

    def test_of_one_interface(self) -> None:
        sampler = Sampler(interface="lo", interval=0.005)
        with sampler.awake():
            begin = time.monotonic()
            until(lambda: len(sampler._fresh()) > 10)
        received, sent = network_series(sampler.between(begin, time.monotonic()), begin, "lo")
        sampler.close()
        assert received.seconds == sent.seconds == tuple(sorted(sent.seconds))
        assert len(sent.values) > 5
        assert all(value >= 0 for value in sent.values)
        assert sent.counter == "/proc/net/dev: bytes sent by lo"

    def test_it_ends_with_its_parent(self) -> None:
        code = """
            from foretell.measure.sampler import Sampler
            import os
            sampler = Sampler()
            with sampler.awake():
                print(sampler._process.pid, flush=True)
                os._exit(0)
        """
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
        )
        until(lambda: not Path(f"/proc/{int(ended.stdout)}").exists())

    def test_loopback_is_not_counted(self) -> None:
        before = _loopback()
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
            far, _ = server.accept()
            with far:
                quiet = read_network()
                for _ in range(50):
                    near.sendall(bytes(65536))
                    received = 0
                    while received < 65536:
                        received += len(far.recv(65536))
                counted = read_network()
        assert _loopback() - before > 3_000_000
        assert counted[0] - quiet[0] < 2_000_000, "of other interfaces, where others may send meanwhile"

    @pytest.mark.nightly
    @pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
    def test_what_a_host_sends_is_counted(self, tmp_path: Path) -> None:
        if reason := namespaces.why_not():
            pytest.skip(reason)
        code = """
            import socket, sys, time
            from foretell.measure.sampler import Sampler
            sampler = Sampler(interval=0.01)
            out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            begin = time.monotonic()
            with sampler.awake():
                for _ in range(100):
                    out.sendto(bytes(1000), (sys.argv[1], 9))
                    time.sleep(0.002)
                time.sleep(0.1)
            seen = sampler.between(begin, time.monotonic())
            print(seen[-1].sent_bytes - seen[0].sent_bytes)
        """
        with namespaces.cluster(2, bits_per_second=1e9) as cluster:
            log = tmp_path / "log"
            command = [sys.executable, "-c", textwrap.dedent(code), cluster.address(1)]
            process = cluster.start(0, command, log=log, environment={})
            assert process.wait(timeout=600) == 0, log.read_text()
        assert 100_000 <= int(log.read_text()) < 120_000  # 100 packets of 1000 bytes, with headers


def _loopback() -> int:
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[1])
