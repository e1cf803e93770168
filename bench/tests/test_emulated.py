"""Emulated hosts: jobs, steps and collectives on network namespaces, and what readings of counters come down to."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from foretell_bench.cli import app
from foretell_bench.emulated import namespaces
from foretell_bench.emulated.cnn_jobs import jobs_of, line_of
from foretell_bench.emulated.collect import collect, host_line
from foretell_bench.emulated.collectives import FIT_SIZES, TEST_SIZES, compare
from foretell_bench.emulated.gpu_jobs import SETTINGS as GPU_SETTINGS
from foretell_bench.emulated.gpu_jobs import binned, device_of, in_turn
from foretell_bench.emulated.gpu_rank import merged
from foretell_bench.emulated.host_jobs import SETTINGS, Point, done, keep, points
from foretell_bench.emulated.launch import join_all
from foretell_bench.emulated.links import connections, sampled
from foretell_bench.emulated.models import NETWORKS, ON_A_DEVICE, network, save_graphs
from foretell_bench.emulated.picture import picture, series
from foretell_bench.emulated.rank import Job, Seat, Setting, run
from foretell_bench.emulated.readings import gap_share
from foretell_bench.emulated.steps import rows
from foretell_bench.sources.emulated import emulated_cluster, shared_gpu_jobs
from typer.testing import CliRunner

from foretell.graph import Graph
from foretell.learn.adapt.collectives import Timed
from foretell.methods.driple.method import setting_of
from foretell.profile import Links
from foretell.program import Collective, Group

ROOT = Path(__file__).parents[2]
SECOND = 10**9  # nanoseconds

why_not = cache(namespaces.why_not)
needs_namespaces = pytest.mark.skipif("why_not()", reason="no hosts can be emulated here")


@pytest.mark.parametrize("verb", ["hosts", "cnns", "gpu", "steps", "collectives", "picture"])
def test_every_verb_says_what_it_does(verb: str) -> None:
    result = CliRunner().invoke(app, ["emulated", verb, "--help"])
    assert result.exit_code == 0
    assert "--help" in result.output


@pytest.mark.nightly
@needs_namespaces
@pytest.mark.parametrize(("hosts", "rates"), [(2, (1e9, 2e8)), (4, (1e9, 2e8))])
def test_bytes_and_time_of_a_step_over_thin_links(hosts: int, rates: tuple[float, ...]) -> None:
    quiet = os.getloadavg()[0] < 0.5 * (os.cpu_count() or 1)
    found = list(rows(hosts, rates, width=400))
    assert [row.bits_per_second for row in found] == list(rates)
    assert max(abs(row.bytes_error) for row in found) < 0.01
    if not quiet:
        pytest.skip("bytes are right; steps are not timed, as hosts share the cores with other work")
    assert max(abs(row.step_error) for row in found) < 0.15
    assert found[-1].step_seconds > 2 * found[-1].compute_seconds


# Jobs on hosts.


def test_every_setting_has_its_points_and_steps_divide_the_data() -> None:
    assert len(SETTINGS) == 14
    assert {setting.hosts for setting in SETTINGS} == {2, 3, 4}
    two = Setting(plan="dp=2", mbit=200)
    assert len(points(two)) == 2 * len(NETWORKS) + 12
    assert len(points(Setting(plan="dp=2,servers=1", mbit=200))) == 2 * len(NETWORKS)
    point = Point(network="mlp-256x2", batch=64, fraction=0.5)
    assert point.job(two).steps == 5  # half of 40 batches of 32, two workers with 64 each
    assert point.run_name(two) == "dp=2@200/mlp-256x2/64/0.5"


def test_a_line_of_a_job_has_what_each_host_did(tmp_path: Path) -> None:
    # Three steps of 100 ms after the first; a worker sends and computes in the first half of each.
    moments = [{"begin": 0.0, "ready": 0.5, "ends": [1.0, 1.1, 1.2, 1.3], "finite": True}] * 2
    readings = []
    for i in range(400):
        at = round(0.005 * i, 3)
        busy = sum(0.005 for j in range(i) if (j % 20) < 10)
        readings.append([at, 2 * busy, *[1e7 * busy, 1e8 * busy, 0.4e9 * busy] * 2])
    about = {"plan": "dp=2", "mbit": 1000, "hosts": 2, "batch": 8, "fraction": 0.5, "steps": 4, "share": 0.4}
    line, own = host_line("dp=2@1000/plain-24x3/8/0.5", "plain-24x3", about, moments, readings)
    assert line["job_seconds"] == pytest.approx(1.3)
    assert line["start_seconds"] == pytest.approx(0.5)
    assert line["step_time"] == pytest.approx(0.1)
    assert line["network_tx_active_seconds"] == pytest.approx(0.05, rel=0.15)
    assert line["network_tx_peak"] == pytest.approx(1e8)
    assert line["compute_peak"] == pytest.approx(1.0)
    assert line["sent_bytes"] == pytest.approx(5e6, rel=0.1)
    assert line["finite"]
    assert [s["rank"] for s in own] == [0]
    assert sum(own[0]["sent"]) == pytest.approx(3 * 5e6, rel=0.1)

    keep(tmp_path, [(line, own)])
    keep(tmp_path, [(line | {"gap_share": 0.9}, own)])  # the same run again replaces it
    [kept] = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert json.loads(kept)["gap_share"] == 0.9
    assert done(tmp_path, again=False) == {line["run"]}
    assert done(tmp_path, again=True) == set()
    assert len(gzip.decompress((tmp_path / "series.jsonl.gz").read_bytes()).splitlines()) == 2
    svg = picture(series(tmp_path / "series.jsonl.gz", "plain-24x3"), "plain-24x3", 0.2)
    assert svg.count("<polyline") == 2


def test_resources_are_left_out_where_readings_came_late() -> None:
    moments = [{"begin": 0.0, "ready": 0.1, "ends": [0.2, 0.4, 0.6], "finite": True}]
    readings = [[0.1 * i, 0.0, 0.0, 0.0, 0.0] for i in range(10)]
    about = {"plan": "dp=1", "mbit": 1000, "hosts": 1, "batch": 8, "fraction": 1.0, "steps": 3, "share": 0.4}
    line, _ = host_line("run", "plain-24x3", about, moments, readings)
    assert line["gap_share"] == 1.0 == gap_share(readings)
    assert "network_tx_peak" not in line
    assert "network_tx_peak" not in line["ranks"][0]


def test_counters_are_read_in_the_namespace_of_the_switch() -> None:
    if reason := why_not():
        pytest.skip(reason)
    from foretell_bench.emulated.counters import port_bytes

    with namespaces.cluster(2, bits_per_second=1e9) as made:
        found: list[list[tuple[int, int]]] = []

        def read() -> None:
            namespaces.enter(made.switch)
            found.append(port_bytes(2))
            subprocess.run(["ip", "netns", "exec", made.hosts[0], "ping", "-c1", "-W5", made.address(1)], check=False)
            code = f"import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(bytes(1000), ('{made.address(1)}', 9))"
            subprocess.run(["ip", "netns", "exec", made.hosts[0], sys.executable, "-c", code], check=True)
            found.append(port_bytes(2))

        thread = threading.Thread(target=read)  # a thread's network is its own
        thread.start()
        thread.join()
    before, after = found
    assert after[0][1] - before[0][1] >= 1000  # what the first host sent


def test_graphs_that_are_there_are_not_captured_again(tmp_path: Path) -> None:
    assert save_graphs(tmp_path, network, [("mlp-256x2", 4)]) == ["mlp-256x2-4.graph"]
    assert Graph.load(tmp_path / "graphs" / "mlp-256x2-4.graph").samples == 4
    assert save_graphs(tmp_path, network, [("mlp-256x2", 4)]) == []


def be_rank(seat: Seat, jobs: list[Job], out: Path) -> None:
    seat.take()
    out.write_text(json.dumps([asdict(run(job, network)) for job in jobs]))


@pytest.mark.nightly
@pytest.mark.slow  # three processes that load torch
def test_ranks_run_all_reduce_and_parameter_servers(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"servers": 1}, {"servers": 1, "asynchronous": True}]
    jobs = [Job(name="mlp-256x2", batch=4, steps=3, **kind) for kind in kinds]
    seats = [Seat(rank=i, size=3, meets=f"file://{tmp_path}/meet", interface="lo") for i in range(3)]
    spawn = get_context("spawn")
    processes = [spawn.Process(target=be_rank, args=(seat, jobs, tmp_path / f"{seat.rank}")) for seat in seats]
    for process in processes:
        process.start()
    join_all(processes, time.monotonic() + 300)
    moments = [json.loads((tmp_path / f"{rank}").read_text()) for rank in range(3)]
    steps = [[len(job["ends"]) for job in own] for own in moments]
    assert steps == [[3, 3, 3], [3, 3, 3], [3, 3, 6]]  # an asynchronous server updates for each of its two workers
    assert all(job["finite"] and job["begin"] <= job["ready"] <= job["ends"][0] for own in moments for job in own)


# Jobs of CNNs.


def test_jobs_of_cnns_divide_the_data_and_a_line_names_the_slowest() -> None:
    jobs = jobs_of(4, ["lenet-5"])
    assert [(fraction, job.steps) for fraction, job in jobs] == [(1.0, 16), (0.5, 8), (0.25, 4)]
    fast = {"rank": 1, "mbit": 0.0, "begin": 0.0, "ready": 1.0, "ends": [1.5, 1.6, 1.7], "finite": True}
    slow = fast | {"rank": 0, "ends": [1.5, 1.7, 1.9]}
    line = line_of(2, "veth", *jobs_of(2, ["lenet-5"])[0], [fast, slow])
    assert line["run"] == "dp=2@veth/lenet-5/64/1"
    assert line["step_time"] == pytest.approx(0.2)
    assert line["job_seconds"] == pytest.approx(1.9)
    assert [rank["step_seconds"] for rank in line["ranks"]] == pytest.approx([0.2, 0.1])


# Workers that share a GPU.


def recorded(begin: int, kernels: list[list[int]]) -> dict[str, Any]:
    ends = [begin + SECOND // 10, begin + SECOND // 5]
    return {"batch": 128, "begin": begin, "ends": ends, "finite": True, "busy": kernels, "kernels": 2, "staged_ns": 0}


def test_rows_have_device_and_network_of_the_same_steps(tmp_path: Path) -> None:
    zero = 1_800_000_000 * SECOND
    ms = SECOND // 1000
    # Two steps of 100 ms. The first worker's kernels run 30 ms, the second's 30 ms more, 10 ms of them at once.
    workers = [recorded(zero, [[0, 30 * ms]]), recorded(zero, [[20 * ms, 30 * ms]])]
    # Half a megabyte every 5 ms in the first 50 ms of each step; sent by one, received by the other.
    moments = [(i * 5 * ms, sum(500_000 for j in range(i) if j % 20 < 10)) for i in range(41)]
    row = {"workers": workers, "zero": [zero], "readings": [[at, sent, sent, sent, sent, 0, 0] for at, sent in moments]}
    row |= device_of(workers)
    about = dict.fromkeys(("joined", "date", "torch", "python", "machine", "cores"), "")
    line = {
        "network": "mlp-512x1",
        "setting": "dp=2@500",
        "plan": "dp=2",
        "mbit": 500,
        "servers": 0,
        **about,
        "rows": [row],
    }
    assert collect([line], [], tmp_path) == (1, 1)
    shutil.copytree(ROOT / "bench" / "data" / "box-gpu" / "graphs", tmp_path / "graphs")
    [example] = shared_gpu_jobs(tmp_path)
    assert setting_of(example.query) == "dp=2 on 2xh200@500Mbit/s"
    assert example.query.graph is not None
    assert any(128 in op.signature.outputs[0].shape for op in example.query.graph.ops if op.signature.outputs)
    found = example.measured
    assert found["step_time"] == pytest.approx(0.1)
    assert found["device_active_seconds"] == pytest.approx(0.025)
    assert found["device_idle_seconds"] == pytest.approx(0.075)
    assert found["device_peak"] == pytest.approx(1.0)
    assert found["network_tx_active_seconds"] == pytest.approx(0.05, rel=0.1)
    assert found["network_rx_peak"] == pytest.approx(1e8, rel=1e-3)
    assert "memory_bandwidth_peak" not in found  # nothing counted it


def test_the_device_s_own_counter_is_reduced_like_the_others(tmp_path: Path) -> None:
    zero = 1_800_000_000 * SECOND
    ms = SECOND // 1000
    worker = recorded(zero, [[0, 30 * ms]])
    row: dict[str, Any] = {"workers": [worker], "zero": [zero], "readings": [[i * 5 * ms, 0, 0] for i in range(41)]}
    line = dict.fromkeys(("plan", "joined", "date", "torch", "python", "machine", "cores"), "")
    counters = [[zero + i * 5 * ms, 0.5, 0.8 if i <= 20 else 0.0] for i in range(41)]
    collect([line | {"network": "n", "setting": "s", "mbit": 1, "servers": 0, "rows": [row]}], counters, tmp_path)
    [found] = gzip.decompress((tmp_path / "runs.jsonl.gz").read_bytes()).splitlines()
    assert json.loads(found)["memory_bandwidth_peak"] == pytest.approx(0.8)
    assert json.loads(found)["memory_bandwidth_active_seconds"] == pytest.approx(0.05)


def test_spans_of_kernels_are_united_and_counted_by_the_millisecond() -> None:
    assert merged([(5, 9), (0, 3), (2, 4), (9, 10)]) == [[0, 4], [5, 5]]
    assert binned([[500_000, 1_000_000]], 3_000_000) == [500, 500, 0]


def test_families_take_turns() -> None:
    first = in_turn()[:6]
    assert {name.split("-")[0] for name in first} == {name.split("-")[0] for name in ON_A_DEVICE}
    assert [setting.name for setting in GPU_SETTINGS] == ["dp=2@2000", "dp=2@500", "dp=2,servers=1@2000"]


def test_what_connections_of_a_process_carry_is_counted() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            try:
                carried = connections([os.getpid()])
                with carried as read, sampled(read) as readings:
                    near.sendall(bytes(100_000))
                    received = 0
                    while received < 100_000:
                        received += len(far.recv(65536))
                    patience = time.monotonic() + 60
                    while (not readings or readings[-1][2] < 100_000) and time.monotonic() < patience:
                        time.sleep(0.01)
            except PermissionError:
                pytest.skip("sockets of a process cannot be borrowed here")
    _, got, sent = readings[-1]
    assert got >= 100_000
    assert sent >= 100_000


# Collectives.


def test_links_fitted_on_three_times_predict_sizes_they_had_not_seen() -> None:
    cluster, true = emulated_cluster(2, 1e9 / 8), Links(bandwidth=0.2)

    def timed(kind: str, nbytes: int) -> Timed:
        group = Group(size=2)
        collective = Collective(kind=kind, nbytes=nbytes, group=group, name="", starts_after=0, waited_for_by=0)
        seconds = Timed(collective=collective, cluster=cluster, seconds=1.0).predicted(true)
        return Timed(collective=collective, cluster=cluster, seconds=seconds)

    kinds = ("all-reduce", "all-gather", "broadcast")
    times = {2: [timed(kind, nbytes) for kind in kinds for nbytes in (*FIT_SIZES, *TEST_SIZES)]}
    found = list(compare(times, 2e8, 2))
    assert [(row.kind, row.long) for row in found] == [(kind, long) for kind in kinds for long in (True, False)]
    for row in found[::2]:
        assert row.before > 0.5
        assert row.after < 0.2
