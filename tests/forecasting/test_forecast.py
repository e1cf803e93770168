"""The whole composition: the contract's JSON, what must add up, and what must hold when devices change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import foretell
from foretell.errors import CatalogError, InputError, PlanError, RequirementNotMet, WorkloadError
from foretell.forecasting.critical import critical_path
from foretell.forecasting.fit_batch import fit_batch
from foretell.graph import Graph, Op, Signature
from foretell.precision import Precision
from foretell.program import Role
from foretell.simulate.timeline import Span, Timeline

CONTRACT = {
    "schema_version", "foretell", "model", "workload", "cluster", "plan", "step_time", "device_time", "host_time",
    "exposed_communication", "bubble", "memory", "network", "resources", "throughput", "cost", "caveats",
}  # fmt: skip
BESIDE = {
    "explanation",
    "step",
    "profile",
    "host",
    "stragglers",
    "trainer",
    "input_wait",
    "energy",
    "critical_path",
    "job",
}  # what we give beyond it


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


def workload(batch: int = 32) -> foretell.Workload:
    return foretell.Workload(
        name="cnn", model=network,
        batch=lambda: {"x": torch.randn(batch, 3, 224, 224), "y": torch.randint(1000, (batch,))},
        loss=lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]),
        optimizer=lambda p: torch.optim.AdamW(p), precision="amp-bf16",
    )  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return foretell.forecast(workload(), on="h200").graph


def test_the_json_is_the_contracts(graph: Graph) -> None:
    f = foretell.forecast(graph, on="8xh100-sxm", plan=foretell.Plan(dp=8))
    answer = json.loads(f.to_json())
    assert answer == f.to_dict()
    assert set(answer) == CONTRACT | BESIDE
    assert (answer["schema_version"], answer["workload"], answer["cluster"], answer["plan"]) == (
        1,
        "cnn",
        "8xh100-sxm",
        "dp=8",
    )
    for name in ("step_time", "device_time", "host_time", "exposed_communication", "bubble"):
        assert set(answer[name]) == {"seconds", "low", "high"}
    assert set(answer["memory"]) == {
        *("allocated", "reserved", "context", "communicator", "total", "capacity"),
        *("fits", "fit_probability", "breakdown", "peak_module", "ranks"),
    }
    assert set(answer["resources"]) == {"device", "memory_bandwidth", "network_rx", "network_tx"}
    assert all(set(use) == {"idle_seconds", "active_seconds", "peak"} for use in answer["resources"].values())
    assert answer["step_time"]["low"] < answer["step_time"]["seconds"] < answer["step_time"]["high"]
    assert any(c["code"] == "calibrated-by-jobs" for c in answer["caveats"])
    assert f.step_time.seconds == answer["step_time"]["seconds"]
    assert f.resources.network_tx.peak == answer["resources"]["network_tx"]["peak"]


def test_memory_adds_up(graph: Graph) -> None:
    memory = foretell.forecast(graph, on="8xh100-sxm").memory
    parts = memory.breakdown
    assert sum(getattr(parts, name) for name in parts.__slots__) == memory.allocated
    assert memory.total == memory.reserved + memory.context + memory.communicator
    assert memory.allocated <= memory.reserved
    assert memory.fits
    assert memory.fit_probability > 0.99
    weights = sum(p.numel() * 4 for p in network().parameters())
    assert parts.parameters >= weights
    assert memory.ranks[0].count == 8


def test_data_parallelism_sends_what_a_ring_sends(graph: Graph) -> None:
    weights = sum(p.numel() * 4 for p in network().parameters())
    for ranks in (2, 4, 8):
        f = foretell.forecast(graph, on=f"{ranks}xh100-sxm")
        assert f.network.sent_bytes == pytest.approx(2 * (ranks - 1) / ranks * weights, rel=1e-6)
        assert f.network.sent_bytes == f.network.received_bytes
    alone = foretell.forecast(graph, on="h100-sxm")
    assert alone.network.sent_bytes == 0
    assert alone.exposed_communication.seconds == 0


def test_a_slower_network_never_makes_a_faster_step(graph: Graph) -> None:
    steps = [
        foretell.forecast(graph, on=f"2x8xh100-sxm@{link}").step_time.seconds
        for link in ("ib-400g", "eth-25g", "eth-1g")
    ]
    assert steps == sorted(steps)
    assert steps[-1] > foretell.forecast(graph, on="h100-sxm").step_time.seconds


def test_times_are_positive_and_consistent(graph: Graph) -> None:
    f = foretell.forecast(graph, on="h200")
    assert f.step_time.seconds >= (1 - 1e-9) * max(f.device_time.seconds, f.host_time.seconds)  # sums may round
    assert sum(s.duration for s in f.timeline.spans if s.stream == "device") == pytest.approx(f.device_time.seconds)
    assert f.throughput.samples_per_second == pytest.approx(32 / f.step_time.seconds)
    assert 0 < (f.throughput.mfu or 0) < 1


def test_a_large_product_runs_at_the_published_peak() -> None:
    """A slip of units would show: 2 × 8192³ operations at 989 TFLOP/s."""
    from foretell.cost.roofline import price_ops
    from foretell.graph import Layout, Op, Signature, Storage, Tensor
    from foretell.hardware import device

    n = 8192
    square = Layout((n, n), (n, 1), "bfloat16")
    ops = tuple(Op(Signature("aten.mm.default", (square, square), (square,)), "forward", "", (0, 1), (2,)) for _ in "1")
    storages = tuple(
        Storage(square.nbytes, "input" if i < 2 else "activation", -1 if i < 2 else 0, 1) for i in range(3)
    )
    tensors = tuple(Tensor(square, i) for i in range(3))
    product = Graph(
        name="mm", ops=ops, tensors=tensors, storages=storages, training=False, precision=Precision.parse("bf16")
    )
    [price] = price_ops(product, device("h200"))
    assert price.seconds == pytest.approx(2 * n**3 / 989.4e12, rel=0.02)


def test_a_mixed_cluster_is_as_slow_as_its_slowest_and_as_small_as_its_smallest(graph: Graph) -> None:
    mixed = foretell.forecast(graph, on="1xh200+1xt4@eth-100g")
    assert mixed.memory.capacity == foretell.forecast(graph, on="t4").memory.capacity
    assert mixed.device_time.seconds == pytest.approx(foretell.forecast(graph, on="2xt4").device_time.seconds)


def test_what_does_not_fit_is_said_with_numbers() -> None:
    f = foretell.forecast(workload(batch=4096), on="t4")
    assert not f.memory.fits
    assert f.memory.total > f.memory.capacity
    assert f.memory.fit_probability < 0.01


@pytest.mark.parametrize(
    ("on", "plan", "error", "expected"),
    [
        ("8xh100-sxm", "dp=4", PlanError, "4"),
        ("8xh100-sxm", "dp=4,tp=3", PlanError, "tp"),
        ("8xh10o", None, CatalogError, "Did you mean"),
        ("8xh100-sxm", "dq=8", PlanError, "Did you mean 'dp'"),
        ("8xh100-sxm", "dp=8,zero=7", PlanError, "0, 1, 2, 3"),
    ],
)
def test_impossible_questions_are_refused(
    graph: Graph, on: str, plan: str | None, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        foretell.forecast(graph, on=on, plan=plan)


SOURCE = """
import torch
from torch import nn
import foretell


def net(batch: int = 8, width: int = 8192) -> foretell.Workload:
    return foretell.Workload(
        name="net", model=lambda: nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 10)),
        batch=lambda: {"x": torch.randn(batch, 1024), "y": torch.randint(10, (batch,))},
        loss=lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]), optimizer=lambda p: torch.optim.AdamW(p),
    )
"""


def test_the_largest_batch_fits_and_a_larger_one_does_not(tmp_path: pytest.TempPathFactory) -> None:
    file = tmp_path / "net.py"  # type: ignore[operator]
    file.write_text(SOURCE)
    found = fit_batch(f"{file}:net", "t4", cache=False)
    assert found.forecast.memory.fits
    assert found.forecast.graph.samples == found.batch > 10_000
    larger = foretell.forecast(f"{file}:net", on="t4", settings={"batch": str(int(found.batch * 1.02))})
    assert not larger.memory.fits
    with pytest.raises(RequirementNotMet, match="even with batch 1"):
        fit_batch(f"{file}:net", "t4", settings={"width": "2000000"}, cache=False)
    with pytest.raises(InputError, match=r"batch of net\.graph is fixed"):
        fit_batch("net.graph", "t4")


def test_what_has_a_fixed_batch_is_refused_and_a_function_of_it_is_not(graph: Graph) -> None:
    for fixed in (graph, workload()):
        with pytest.raises(InputError, match=r"'cnn' is fixed. Give a SOURCE .* or a function that takes batch="):
            fit_batch(fixed, "t4")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="batch=8 is set, but the batch is what is searched for"):
        fit_batch("net.py:net", "t4", settings={"batch": "8"})
    with pytest.raises(InputError, match="settings are for a SOURCE"):
        fit_batch(workload, "t4", settings={"width": "8"})
    found = fit_batch(workload, "t4", model="roofline")
    assert found.forecast.graph.samples == found.batch
    assert found.forecast.memory.fits


@pytest.mark.parametrize(
    "wrong", [{"schedule": "2f2b"}, {"data_parallel": "fsdp"}, {"zero": 4}, {"checkpointing": "some"},
              {"checkpointing": 1.5}, {"servers": -1}, {"zero": True}, {"servers": True}, {"overlap": "no"}, {"checkpointing": True},
              {"stages": [1.5, 2], "pp": 2}, {"dp": 10**30}, {"checkpointing": float("nan")}],
)  # fmt: skip
def test_a_plan_is_checked_when_it_is_made(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        foretell.Plan(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": -1},
        {"samples": 0},
        {"samples": "many"},
        {"tokens": 1.5},
        {"clip_grad_norm": "x"},
        {"clip_grad_norm": float("nan")},
    ],
)
def test_a_workload_is_checked_when_it_is_made(wrong: dict[str, object]) -> None:
    with pytest.raises(WorkloadError, match=next(iter(wrong))):
        replace(workload(), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"on": 5}, {"on": ["h200"]}, {"plan": 5}, {"workload": 5}])
def test_questions_of_another_type_are_bad_input(graph: Graph, wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
        foretell.forecast(**{"workload": graph, "on": "h200", **wrong})  # type: ignore[arg-type]


def test_a_job_without_end_is_bad_input() -> None:
    for wrong in (float("inf"), float("nan"), "x", 0, True):
        with pytest.raises(InputError, match="length of a job must be"):
            foretell.JobLength(samples=wrong)  # type: ignore[arg-type]
    for text in ("²:1s", "9" * 5000 + ":1s", "1:1e400s", "1:", ":1s", "0:1s"):
        with pytest.raises(InputError):
            foretell.Pause.parse(text)
    with pytest.raises(InputError, match="loader must be"):
        foretell.Conditions(loader=1e-320)


@pytest.mark.parametrize(
    ("plan", "why"),
    [("servers=1", "dp=1 is one worker"), ("pp=1,virtual_stages=2", "pp=1 is none")],
)
def test_plans_that_make_no_sense_are_refused(graph: Graph, plan: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        foretell.forecast(graph, f"{foretell.Plan.parse(plan).devices}xh200", plan, model="roofline")


def test_an_answer_says_what_was_asked(graph: Graph) -> None:
    asked = foretell.forecast(graph, "8xh100-sxm", "dp=8,grad_accumulation=3").step
    assert asked is not None
    assert (asked.samples, asked.inputs, asked.grad_accumulation) == (32, "32×3×224×224", 3)
    assert (asked.precision, asked.optimizer, asked.parameters) == (graph.precision.name, "AdamW", 4_708_840)


def test_units_that_a_precision_lacks_or_leaves_out_are_named(graph: Graph) -> None:
    def codes(precision: str, on: str) -> set[str]:
        return {
            c.code
            for c in foretell.forecast(
                replace(graph, precision=Precision.parse(precision)), on, model="roofline"
            ).caveats
        }

    assert "precision-without-units" in codes("amp-bf16", "t4")
    assert "fp32-without-tensor-cores" in codes("fp32", "h100-sxm")
    assert not {"precision-without-units", "fp32-without-tensor-cores"} & codes("amp-bf16", "h100-sxm")


def test_repeated_blocks_are_one_part_of_the_critical_path() -> None:
    def span(module: str, task: int) -> Span:
        return Span("dp", "device", "aten.mm", module, "forward", float(task), 1.0, task, task - 1)

    timeline = Timeline(spans=(span("layers.0.mlp", 0), span("layers.1.mlp", 1)), makespan=4.0, period=4.0)
    nothing = Signature("aten.mm.default", (), ())
    ops = tuple(Op(nothing, "forward", "", (), (), times) for times in (1, 3))
    role = Role(name="dp", count=1, graph=Graph(name="two blocks", ops=ops, tensors=(), storages=()))
    [part] = critical_path(timeline, [role])
    assert (part.name, part.seconds) == ("layers.*.mlp", 4.0)


def test_a_price_has_a_source(graph: Graph) -> None:
    price = foretell.forecast(graph, "aws:p5.48xlarge", model="roofline").cost.price
    assert price is not None
    assert price.startswith("aws:p5.48xlarge, 20")
