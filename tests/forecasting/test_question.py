"""One question decides graph, cluster and plan, for every function and every verb."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import foretell
from foretell.cli import app
from foretell.errors import InputError, PlanError
from foretell.forecasting.forecast import answer_to
from foretell.forecasting.question import decide
from foretell.graph import Graph
from foretell.plans import Plan, PlanTemplate
from foretell.watching.expected import expect
from tests.capture.tiny import mlp

LAUNCH = (
    "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 16 --vocab-size 128 --bf16 "
    "--tensor-model-parallel-size ${TP_SIZE:-1} --use-distributed-optimizer"
)
SCRIPT = """
import os
import torch
from torch import nn
from typer.testing import CliRunner
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("nccl")
model = nn.Linear(64, 64).cuda()
if torch.distributed.get_world_size() > 1:
    model = DistributedDataParallel(model, bucket_cap_mb=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    loss = model(torch.randn(4, 64, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def launch(tmp_path: Path) -> str:
    (tmp_path / "launch.sh").write_text(LAUNCH)
    return str(tmp_path / "launch.sh")


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


@pytest.fixture(scope="module")
def step() -> Graph:
    return foretell.capture_graph(mlp())


def test_a_plan_that_is_given_is_taken(step: Graph) -> None:
    for plan in ("dp=2,tp=2", Plan(dp=2, tp=2)):
        question = decide(step, "4xh200", plan)
        assert (question.plan, question.decided_by, question.cluster.devices) == (Plan(dp=2, tp=2), "caller", 4)
        assert question.graph is step
        assert not question.remark


def test_without_one_all_devices_are_data_parallel(step: Graph) -> None:
    question = decide(step, "4xh200")
    assert (question.plan, question.decided_by, question.remark) == (Plan(dp=4), "cluster", "")


def test_a_graph_keeps_the_plan_of_its_launch_script(launch: str) -> None:
    graph = foretell.capture_graph(launch)
    assert graph.facts.plan is not None
    again = Graph.from_bytes(graph.to_bytes())
    for subject in (launch, graph, again):
        question = decide(subject, "8xh200")
        assert question.decided_by == "configuration"
        assert str(question.plan) == "dp=8,zero=1,grad_accumulation=1,overlap=false"
        assert question.remark == "launch.sh is written for 4 devices; this is the forecast for 8."
    assert foretell.forecast(graph, "8xh200").plan == foretell.forecast(launch, "8xh200").plan
    assert decide(graph, "8xh200", "dp=8").plan == Plan(dp=8)


def test_the_environment_decides_what_a_launch_script_leaves_open(launch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert foretell.forecast(launch, "4xh200").plan.startswith("dp=4,zero=1")
    monkeypatch.setenv("TP_SIZE", "2")
    graph = foretell.capture_graph(launch)
    assert foretell.forecast(graph, "4xh200").plan.startswith("dp=2,tp=2,zero=1")
    with pytest.raises(PlanError, match="does not divide 3 devices"):
        foretell.forecast(launch, "3xh200")


def test_the_samples_of_a_step_stay_when_the_batch_is_searched_for(launch: str) -> None:
    """A batch of 8 divides 16 samples among 2 replicas; two captures at 8 and 16 show how the step grows."""
    assert foretell.forecast(launch, "2xh200", settings={"batch": 4}).plan.count("grad_accumulation=2") == 1
    graph = foretell.capture_graph(launch, {"batch": 8})
    assert graph.facts.plan is not None
    assert (graph.facts.plan.batch, graph.facts.plan.global_batch) == (8, 16)
    own = foretell.capture_graph(launch, {"grad_accumulation": 3})
    assert decide(own, "2xh200").plan.grad_accumulation is None
    assert own.grad_accumulation == 3


def test_every_function_decides_alike(launch: str) -> None:
    plan = decide(launch, "2xh200").plan
    assert foretell.forecast(launch, "2xh200").plan == str(plan)
    assert expect(launch, "2xh200", None, None, "roofline", None, None).columns["plan"] == str(plan)
    points = foretell.scale(launch, "h200", up_to=2, model="roofline")
    assert [point.forecast.plan for point in points] == [str(decide(launch, f"{n}xh200").plan) for n in (1, 2)]
    question = decide(launch, "2xh200")
    assert answer_to(question).to_dict() == foretell.forecast(launch, "2xh200").to_dict()


def test_a_script_is_run_as_it_finds_itself_on_the_cluster(train: str) -> None:
    question = decide(train, "4xh200")
    assert (str(question.plan), question.decided_by) == (f"dp=4,bucket_bytes={10 * 2**20}", "script")
    assert question.remark == f"Plan of {train} on 4xh200: {question.plan}. Give --plan for another."
    points = foretell.scale(train, "h200", up_to=2, model="roofline")
    assert [point.forecast.plan for point in points] == ["dp=1", f"dp=2,bucket_bytes={10 * 2**20}"]
    with pytest.raises(InputError, match="3 processes do not fill 4xh200"):
        decide(foretell.Script(path=train, processes=3), "4xh200")


def test_a_script_is_planned(train: str) -> None:
    result = foretell.plan(train, "2xh200", job=foretell.JobLength(samples=1e6))
    assert result.recommended is not None
    assert result.workload == "train"


def test_what_is_wrong_is_said_before_a_capture(monkeypatch: pytest.MonkeyPatch, launch: str) -> None:
    def never(*given: Any, **settings: Any) -> Any:
        raise AssertionError("captured")

    monkeypatch.setattr("foretell.forecasting.question.capture", never)
    monkeypatch.setenv("TP_SIZE", "4")
    with pytest.raises(PlanError, match="does not divide 2 devices"):
        decide(launch, "2xh200")
    with pytest.raises(PlanError, match="needs dp × tp"):
        decide(mlp(), "2xh200", "dp=4")
    with pytest.raises(PlanError, match="drives all devices from one process"):
        decide(mlp(), "2x8xh200", "dp=16,data_parallel=dp")
    with pytest.raises(InputError, match="workload must be"):
        decide(3, "h200")  # type: ignore[arg-type]


def test_a_workload_may_bring_a_plan() -> None:
    template = PlanTemplate(source="mine", by="configuration", settings={"zero": 3}, copies="nodes")
    question = decide(replace(mlp(), plan=template), "2x8xh200")
    assert question.plan == Plan(dp=16, zero=3, hybrid_shard=8)


def test_a_template_of_a_stranger_is_checked() -> None:
    template = PlanTemplate(source="a.sh", by="configuration", settings={"tp": 2, "stages": (1, 2)}, global_batch=8)
    read = PlanTemplate.from_dict(json.loads(json.dumps(template.to_dict())))
    assert read.to_dict() == json.loads(json.dumps(template.to_dict()))
    good = template.to_dict()
    for wrong in ({"by": "me"}, {"settings": 3}, {"settings": {"dp": 2}}, {"batch": 0}, {"copies": -1}, {"more": 1}):
        with pytest.raises(PlanError):
            PlanTemplate.from_dict({**good, **wrong})


def test_a_model_that_lies_in_memory_is_planned_by_its_devices() -> None:
    model = nn.Linear(8, 8)
    live = foretell.step(model, torch.optim.SGD(model.parameters()), lambda m, x: m(x).mean(), torch.randn(2, 8))
    assert decide(live, "2xh200").decided_by == "cluster"


def test_the_command_line_plans_a_script(train: str) -> None:
    found = CliRunner().invoke(
        app, ["plan", train, "--on", "2xh200", "--samples", "1e6", "--json", "--model", "roofline"]
    )
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["recommended"] is not None
    refused = CliRunner().invoke(app, ["plan", "timm/resnet18", "--on", "h200", "--samples", "1", "--", "--lr", "1"])
    assert "arguments after -- are for a training script" in str(refused.output) + str(refused.exception)
