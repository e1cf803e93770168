"""What surrounds a step: data loaders, ranks that differ, jobs of many steps, where bytes and time go."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import foretell
from foretell import Conditions, forecast
from foretell.cli import app
from foretell.cost.power import shipped_power
from foretell.errors import InputError
from foretell.forecasting.job import USUAL_SAVING, Interruptions, Job, JobLength, Pause, best_period
from foretell.graph import Graph
from foretell.report.resources import resource_series
from foretell.workload import Workload
from tests.parallel.models import Attention, Block, GatedMlp, graph, loss

QUIET = Conditions(jitter=0.0)


def answer(on: str = "4xh100-sxm", plan: str = "dp=4", family: str = "llama", **asked: object):  # type: ignore[no-untyped-def]
    return forecast(graph(family), on=on, plan=plan, model="roofline", **asked)  # type: ignore[arg-type]


def test_a_loader_that_is_too_slow_sets_the_pace_and_is_named() -> None:
    free = answer(conditions=QUIET)
    assert free.input_wait.seconds == 0
    samples = free.graph.samples
    assert samples is not None
    slow = answer(conditions=Conditions(jitter=0.0, loader=samples / (3 * free.step_time.seconds)))
    assert slow.step_time.seconds == pytest.approx(3 * free.step_time.seconds)
    assert slow.input_wait.seconds == pytest.approx(2 * free.step_time.seconds)
    fast = answer(conditions=Conditions(jitter=0.0, loader=samples / (0.9 * free.step_time.seconds)))
    assert fast.step_time.seconds == free.step_time.seconds
    with pytest.raises(InputError, match="more than 0"):
        Conditions(loader=0)
    with pytest.raises(InputError, match=r"loader must be samples per second.*got 'x'"):
        Conditions(loader="x")  # type: ignore[arg-type]


def test_a_loader_feeds_every_micro_step() -> None:
    one, four = (
        answer(plan=f"dp=4,grad_accumulation={n}", conditions=Conditions(jitter=0.0, loader=1.0)) for n in (1, 4)
    )
    assert four.step_time.seconds == pytest.approx(4 * one.step_time.seconds)


def test_ranks_that_differ_make_the_step_wait_for_the_slowest() -> None:
    quiet, usual, rough = (answer(conditions=Conditions(jitter=j)) for j in (0.0, 0.004, 0.1))
    assert quiet.stragglers.seconds == 0
    assert 0 < usual.stragglers.seconds < rough.stragglers.seconds
    assert usual.step_time.seconds == pytest.approx(quiet.step_time.seconds + usual.stragglers.seconds)
    assert answer(conditions=Conditions(jitter=0.004)).step_time == usual.step_time
    alone = [
        forecast(graph("llama"), on="h100-sxm", model="roofline", conditions=Conditions(jitter=j)) for j in (0, 0.1)
    ]
    assert alone[0].step_time == alone[1].step_time
    assert alone[1].stragglers.seconds == 0


def test_compute_beside_communication_is_slower_by_what_is_asked() -> None:
    none, usual, much = (
        answer(plan="dp=4,zero=3", conditions=Conditions(jitter=0.0, slowdown=times)) for times in (1.0, None, 2.0)
    )
    active = [f.resources.device.active_seconds for f in (none, usual, much)]
    assert active[0] < active[1] < active[2]
    assert none.device_time == usual.device_time == much.device_time  # it is communication that adds
    assert none.step_time.seconds <= usual.step_time.seconds <= much.step_time.seconds


@pytest.mark.parametrize("plan", ["dp=4", "tp=2,dp=2", "pp=2,dp=2,grad_accumulation=4", "dp=4,zero=3"])
def test_resources_are_unions_within_the_step(plan: str) -> None:
    f = answer(on="4x1xh100-sxm@eth-10g", plan=plan)
    for use in (f.resources.device, f.resources.memory_bandwidth, f.resources.network_tx, f.resources.network_rx):
        assert use.idle_seconds >= 0
        assert use.active_seconds > 0
        assert use.idle_seconds + use.active_seconds == pytest.approx(f.step_time.seconds)
    assert f.resources.network_tx.active_seconds >= f.exposed_communication.seconds * 0.5
    assert sum(link.sent_bytes for link in f.network.links) == f.network.sent_bytes


def test_bytes_are_given_by_link() -> None:
    f = answer(on="2x2xh100-sxm@eth-10g")
    links = {use.link: use.sent_bytes for use in f.network.links}
    assert links["eth-10g"] == pytest.approx(
        links["nvlink-4"], rel=1e-6
    )  # of two neighbours one communicates with the other node
    inside = answer(on="2x2xh100-sxm@eth-10g", plan="dp=2,tp=2").network.links
    assert {use.link for use in inside} == {"eth-10g", "nvlink-4"}  # gradients between nodes, products inside


def test_communication_of_every_micro_step_is_counted() -> None:
    one, eight = (
        answer(on="2x1xh100-sxm@eth-10g", plan=f"tp=2,grad_accumulation={n}", conditions=QUIET) for n in (1, 8)
    )
    assert eight.exposed_communication.seconds == pytest.approx(8 * one.exposed_communication.seconds, rel=0.02)
    assert eight.resources.network_tx.active_seconds == pytest.approx(
        8 * one.resources.network_tx.active_seconds, rel=0.02
    )


def test_the_critical_path_names_modules_and_collectives() -> None:
    f = answer(on="2x1xh100-sxm@eth-1g", plan="dp=2")
    assert f.critical_path[0].stream == "network"
    assert "all-reduce bucket" in f.critical_path[0].name
    assert {part.stream for part in f.critical_path} > {"network"}
    lengths = [part.seconds for part in f.critical_path]
    assert lengths[:12] == sorted(lengths[:12], reverse=True)
    assert sum(lengths) == pytest.approx(f.step_time.seconds)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_critical_path_of_a_pipeline_sums_to_its_step(schedule: str, tmp_path: Path) -> None:
    graph = foretell.capture_graph("hf/gpt2", {"layers": 4, "batch": 1, "seq": 64, "grad_accumulation": 8})
    plan = f"pp=4,schedule={schedule}"
    f = foretell.forecast(graph, "4xh100-sxm", plan, model="roofline")
    assert sum(part.seconds for part in f.critical_path) == pytest.approx(f.step_time.seconds)
    sent = [s for s in f.timeline.spans if s.kind == "send"]
    received = [s for s in f.timeline.spans if s.kind == "receive"]
    assert len(sent) == len(received) >= 2 * 3 * 4, "forward and back over three boundaries"
    assert {(s.role, s.peer, s.name) for s in sent} == {(s.peer, s.role, s.name) for s in received}
    assert all(s.nbytes > 0 for s in sent)
    files = f.timeline.to_chakra(tmp_path / "p.et")
    assert len(files) == 4
    for number, file in enumerate(files):
        data = file.read_bytes()
        assert (b"comm_dst" in data, b"comm_src" in data, b"comm_tag" in data) == (True, True, True), number
    series = {each.label: each.values for each in resource_series(f)}
    device, memory = np.array(series["device"]), np.array(series["memory"])
    assert (memory[device > 0.5] > 0).all(), "a device that is busy moves bytes"
    assert max(series["network"]) == 1.0


def test_a_job_is_its_steps_and_its_pauses() -> None:
    f = answer(job=JobLength(samples=1000, evaluation=Pause(every=10, seconds=5.0), checkpoint=Pause.parse("50:2s")))
    samples = f.graph.samples
    assert samples is not None
    assert f.job is not None
    steps = -(-1000 // (samples * 4))
    assert f.job.steps == steps
    assert (f.job.evaluation_seconds, f.job.checkpoint_seconds) == (steps // 10 * 5.0, steps // 50 * 2.0)
    assert f.job.seconds == pytest.approx(steps * f.step_time.seconds + steps // 10 * 5.0 + steps // 50 * 2.0)
    assert f.job.dollars == pytest.approx((f.cost.dollars_per_hour or 0) * f.job.seconds / 3600)
    assert f.energy is not None
    limit = 4 * 700
    idle = shipped_power().idle * limit
    assert idle < f.energy.watts < limit
    assert idle * f.job.seconds < f.job.joules < limit * f.job.seconds
    tokens = answer(job=JobLength(tokens=1000)).job
    assert tokens is not None
    assert tokens.steps == -(-1000 // ((f.graph.tokens or 0) * 4))


@pytest.mark.parametrize("text", ["45s", "0:3s", "x:3s", "10:"])
def test_a_pause_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Pause.parse(text)
    with pytest.raises(InputError, match="samples or its tokens"):
        JobLength()


def test_the_command_line_asks_the_same(tmp_path: Path) -> None:
    graph("cnn").save(tmp_path / "cnn.graph")
    asked = ["predict", str(tmp_path / "cnn.graph"), "--on", "2xh100-sxm", "--model", "roofline", "--json"]
    ran = CliRunner().invoke(app, [*asked, "--loader", "10", "--job-samples", "1e4", "--checkpoint", "100:5s"])
    assert ran.exit_code == 0
    found = json.loads(ran.stdout)
    assert found["step_time"]["seconds"] == pytest.approx((graph("cnn").samples or 0) / 10)
    assert (found["job"]["steps"], found["job"]["checkpoint_seconds"]) == (1250, 60.0)
    assert CliRunner().invoke(app, [*asked, "--checkpoint", "100:5s"]).exit_code == 2
    assert CliRunner().invoke(app, [*asked, "--job-samples", "many"]).exit_code == 2


class Tower(torch.nn.Module):
    """A Llama of sixteen blocks with eight heads: what can be split over tp = 8 and pp = 16."""

    def __init__(self, width: int = 64, vocabulary: int = 128) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(
            Block(torch.nn.RMSNorm, Attention(width, 8, 8, causal=True, bias=False), GatedMlp(width), width)
            for _ in range(16)
        )
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def tower() -> Graph:
    from foretell.capture import capture

    def batch() -> dict[str, torch.Tensor]:
        return {"x": torch.randint(96, (2, 16)), "y": torch.randint(96, (2, 16))}

    return capture(
        Workload(name="tower", model=Tower, batch=batch, loss=loss, optimizer=lambda p: torch.optim.AdamW(p))
    )


def test_sixteen_thousand_devices_cost_what_a_hundred_do() -> None:
    """Seconds of CPU, best of three: they do not grow with the number of replicas."""
    step = tower()

    def seconds(dp: int) -> float:
        taken = []
        for _ in range(3):
            began = time.process_time()
            plan = f"dp={dp},tp=8,pp=16,grad_accumulation=32"
            found = forecast(step, on=f"{dp * 16}x8xh100-sxm", plan=plan, model="roofline")
            taken.append(time.process_time() - began)
            assert sum(r.count for r in found.memory.ranks) == dp * 128
        return min(taken)

    few, many = seconds(1), seconds(128)
    assert many < 8 * few + 1.0  # of 128 times as many devices


def test_interruptions_lose_the_work_since_the_last_checkpoint() -> None:
    rate = Interruptions(per_device_hour=1e-3, restart=600)
    hours, devices = 3600 * 1000.0, 100
    often, seldom = rate.lengthened(hours, 3600, devices), rate.lengthened(hours, 4 * 3600, devices)
    # To first order, each of 100 failures costs half a segment and the restart.
    assert often == pytest.approx(hours + 100 * (1800 + 600), rel=0.02)
    assert seldom > often
    assert rate.lengthened(hours, hours, devices) > 1e3 * hours  # without checkpoints it never ends
    assert Interruptions(per_device_hour=0).lengthened(hours, 3600, devices) == hours


def test_a_job_adds_up() -> None:
    length = JobLength(samples=1e6, startup=300, checkpoint=Pause(every=100, seconds=10), interruptions=Interruptions())
    job = length.cost(
        step=1.0,
        within=(0.9, 1.2),
        devices=1000,
        nodes=125,
        samples=100,
        tokens=0,
        dollars_per_hour=3600,
        watts=1e6,
        idle_watts=1e5,
    )
    parts = job.steps * 1.0 + job.checkpoint_seconds + job.startup_seconds + job.interruption_seconds
    assert job.seconds == pytest.approx(parts)
    assert job.interruption_seconds > 0
    assert job.low is not None and job.high is not None and job.low < job.seconds < job.high  # noqa: PT018
    assert job.goodput == pytest.approx(job.steps / job.seconds)
    assert job.dollars == pytest.approx(job.seconds)


def test_every_node_of_a_cluster_may_be_taken_back() -> None:
    def interrupted(on: str, **rates: float) -> float:
        length = JobLength(
            samples=1e8,
            checkpoint=Pause(every=100, seconds=1.0),
            interruptions=Interruptions(**{"per_device_hour": 0.0} | rates),
        )
        job = answer(on=on, plan="dp=4", job=length).job
        assert job is not None
        return job.interruption_seconds

    assert interrupted("4x1xh100-sxm", per_node_hour=0.1) == pytest.approx(
        interrupted("4x1xh100-sxm", per_device_hour=0.1)
    )
    assert interrupted("4xh100-sxm", per_node_hour=0.1) < 0.5 * interrupted("4x1xh100-sxm", per_node_hour=0.1)


def job_of(days: float, devices: int, interruptions: Interruptions, checkpoint: Pause) -> Job:
    """Steps of one second that take so many days without a pause."""
    length = JobLength(samples=days * 86400, checkpoint=checkpoint, interruptions=interruptions)
    return length.cost(
        step=1.0, devices=devices, nodes=devices // 8, samples=1, tokens=0, dollars_per_hour=None, watts=1.0, idle_watts=1.0
    )  # fmt: skip


def test_goodput_of_llama_3() -> None:
    """54 days on 16,384 H100: 419 unexpected interruptions, over 90 % effective (arXiv 2407.21783, section 3.3.4)."""
    usual = Interruptions()
    rate = usual.rate(16384, 2048)
    assert rate * 54 * 86400 == pytest.approx(419, rel=0.02)
    period = best_period(USUAL_SAVING, rate)
    assert period is not None
    job = job_of(0.9 * 54, 16384, usual, Pause(every=round(period), seconds=USUAL_SAVING))
    assert job.best_checkpoint_period == pytest.approx(period)
    assert job.seconds / 86400 == pytest.approx(54, rel=0.05)
    assert job.goodput == pytest.approx(0.9, abs=0.04)
    assert job.goodput_low < 0.9 < job.goodput_high


def test_goodput_of_opt_175b() -> None:
    """180 B tokens at 147 TFLOP/s on each of 992 A100 are 34 days (4.3e23 FLOP); the logbook's run took 57, with some 35
    restarts by hand and 70 others (arXiv 2205.01068, section 2.5). That comes to 4.5 hours until one goes on, as by hand:
    an account that adds up, not a forecast."""
    ideal, took, stops = 4.3e23 / 147e12 / 992 / 86400, 57.0, 105
    logbook = Interruptions(per_device_hour=stops / (ideal * 24 * 992), restart=4.5 * 3600)
    job = job_of(ideal, 992, logbook, Pause(every=3600, seconds=60))
    assert job.goodput == pytest.approx(ideal / took, abs=0.05)
    assert job.goodput_low < ideal / took < job.goodput_high


@pytest.mark.parametrize(("saving", "rate"), [(30.0, 1e-4), (300.0, 1e-5), (5.0, 1e-3)])
def test_no_other_period_loses_less_than_the_best(saving: float, rate: float) -> None:
    best = best_period(saving, rate)
    assert best is not None

    def takes(period: float) -> float:
        stops = Interruptions(per_device_hour=rate * 3600, restart=0.0)
        return stops.lengthened(1e6 / period * (period + saving), period + saving, 1)

    assert takes(best) <= min(takes(best * factor) for factor in (0.5, 0.8, 1.25, 2.0))
    assert best == pytest.approx((2 * saving / rate) ** 0.5, rel=0.15), "near Young's"


def test_chance_and_clusters_widen_a_jobs_interval() -> None:
    pause = Pause(every=1000, seconds=30)
    never, known, usual = (
        job_of(10, 4096, each, pause)
        for each in (Interruptions(per_device_hour=0), Interruptions(per_device_hour=2.1e-5), Interruptions())
    )
    assert never.goodput_low == never.goodput == never.goodput_high
    assert known.goodput_low < known.goodput < known.goodput_high
    assert usual.goodput_low < known.goodput_low, "a rate that is given is known"
    assert usual.goodput_high <= never.goodput
