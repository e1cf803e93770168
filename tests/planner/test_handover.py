"""What is handed over is what the tools take: read back by the project's readers of configurations, or run."""

from __future__ import annotations

import json
import multiprocessing
import re
import shlex
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from torch.distributed.fsdp import fully_shard as _loaded_before_forking  # noqa: F401
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from foretell.errors import InputError, PlanError
from foretell.forecasting.job import Job
from foretell.planner.handover import FORMATS, hand_over
from foretell.planner.result import Choice, Range
from foretell.plans import Plan
from foretell.sources.configs import configuration_of
from tests.parallel.models import Llama


def chosen(plan: str, cluster: str = "2x8xh100-sxm", batch: int = 2) -> Choice:
    hours = Range(median=3600.0 * 30, low=3600.0 * 25, high=3600.0 * 36.5)
    return Choice(
        cluster=cluster, devices=16, plan=plan, batch=batch, global_batch=64, settings={"precision": "bf16", "seq": "4096"},
        step=hours.times(1e-5), time=hours, cost=None, price=None, goodput=hours, kwh=hours, memory=1, capacity=2, headroom=0.5,
        fit_probability=1.0, deadline_probability=None, budget_probability=None, mfu=0.4, exposed_communication=0.0,
        bubble=0.0, calibrated=False,
        job=Job(steps=1, seconds=1.0, evaluation_seconds=0, checkpoint_seconds=0, dollars=None, joules=0.0),
    )  # fmt: skip


def test_a_launch_line_has_the_nodes_and_their_devices() -> None:
    line = hand_over(chosen("dp=16,zero=3"), "torchrun", command="train.py --lr 3e-4").splitlines()[-1]
    words = shlex.split(line)
    assert words[:5] == ["torchrun", "--nnodes", "2", "--nproc-per-node", "8"]
    assert words[-3:] == ["train.py", "--lr", "3e-4"]
    alone = hand_over(chosen("dp=8", "8xh100-sxm"), "torchrun")
    assert "--standalone" in alone


def test_a_slurm_job_ends_at_the_upper_end_of_the_interval(tmp_path: Path) -> None:
    script = hand_over(chosen("dp=16,zero=3"), "slurm", name="Llama 8B!")
    told = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, flags=re.MULTILINE))
    assert told == {
        "job-name": "llama-8b", "nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "8", "time": "1-12:30:00",
    }  # fmt: skip
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_kubernetes_job_for_kueue() -> None:
    job, service = yaml.safe_load_all(hand_over(chosen("dp=16,zero=3"), "kubernetes", name="llama"))
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert spec["activeDeadlineSeconds"] == 131400
    assert job["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] == "131400"
    [container] = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_a_skypilot_task() -> None:
    task = yaml.safe_load(hand_over(chosen("dp=16,zero=3"), "skypilot"))
    assert task["resources"]["accelerators"] == "H100:8"
    assert task["num_nodes"] == 2
    assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "plan", ["dp=16,zero=3,grad_accumulation=2", "dp=16,zero=2,grad_accumulation=4", "dp=16,grad_accumulation=2"]
)
@pytest.mark.parametrize("to", ["accelerate", "deepspeed", "torchtitan"])
def test_a_trainers_file_reads_back_as_the_plan(plan: str, to: str, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[to][0]
    text = hand_over(chosen(plan), to)
    if to == "torchtitan":
        text = '[model]\nname = "llama3"\nflavor = "8B"\n' + text
        tomllib.loads(text)
    path.write_text(text)
    read = configuration_of(str(path))
    assert read is not None
    got, wanted = read.template().plan_for(16, 2), Plan.parse(plan)
    assert (got.dp, got.zero) == (16, wanted.zero)
    if to == "accelerate":  # its launcher takes them as an argument
        assert f"--gradient_accumulation_steps {wanted.grad_accumulation} " in text
    else:
        assert (got.grad_accumulation or read.settings.get("grad_accumulation")) == wanted.grad_accumulation


def test_precisions_said_apart_are_those_computed_in() -> None:
    apart = {"precision": "parameters:bf16/gradients:fp32/master:fp32"}
    choice = replace(chosen("dp=16,zero=2"), settings=apart)
    assert yaml.safe_load(hand_over(choice, "accelerate"))["mixed_precision"] == "bf16"
    assert json.loads(hand_over(choice, "deepspeed"))["bf16"] == {"enabled": True}


# What tools say of their own files, where they are installed.


def test_torchrun_takes_its_line() -> None:
    from torch.distributed.run import get_args_parser

    for choice in (chosen("dp=16,zero=3"), chosen("dp=8", "8xh100-sxm")):
        words = shlex.split(hand_over(choice, "torchrun", command="train.py --lr 3").splitlines()[-1])
        read = get_args_parser().parse_args(words[1:])
        assert (int(read.nnodes) * int(read.nproc_per_node), read.training_script) == (
            Plan.parse(choice.plan).devices,
            "train.py",
        )


@pytest.mark.parametrize("plan", ["dp=16,zero=3", "dp=16,zero=2,checkpointing=full", "dp=16", "dp=4,tp=4,zero=3"])
def test_accelerate_takes_its_file(plan: str, tmp_path: Path) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    path = tmp_path / "accelerate.yaml"
    path.write_text(hand_over(chosen(plan), "accelerate"))
    asked = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    read, _, _ = launch._validate_launch_command(asked)
    assert (read.num_processes, read.num_machines, read.mixed_precision) == (16, 2, "bf16")
    assert read.use_fsdp == ("zero" in plan)


def test_deepspeed_takes_its_file() -> None:
    zero = pytest.importorskip("deepspeed.runtime.zero.config")
    for stage in (1, 2, 3):
        told = json.loads(hand_over(chosen(f"dp=16,zero={stage}"), "deepspeed"))
        assert zero.DeepSpeedZeroConfig(**told["zero_optimization"]).stage == stage


def test_kubernetes_takes_the_job_and_its_service() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(hand_over(chosen("dp=16,zero=3"), "kubernetes", name="llama")):
        validator.validate(document, "1.30", strict=True)


def test_skypilot_takes_the_task() -> None:
    schemas = pytest.importorskip("sky.utils.schemas")
    jsonschema = pytest.importorskip("jsonschema")
    task = yaml.safe_load(hand_over(chosen("dp=16,zero=3"), "skypilot"))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


def test_torchtitan_takes_every_degree(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = hand_over(
        chosen("dp=2,tp=4,pp=2,zero=2,grad_accumulation=8,sequence_parallel=true,checkpointing=full"), "torchtitan"
    )
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\n' + text)
    found = configuration_of(str(path))
    assert found is not None
    read = found.template().plan_for(16, 2)
    assert (read.dp, read.tp, read.pp, read.zero, read.checkpointing) == (2, 4, 2, 2, "full")
    assert (found.settings["batch"], read.grad_accumulation) == (
        2,
        8,
    )  # the tool's own batch is that of all micro-batches
    assert tomllib.loads(text)["parallelism"]["pipeline_parallel_microbatch_size"] == 2


@pytest.mark.parametrize(
    ("plan", "to", "message"),
    [
        ("dp=8,pp=2", "deepspeed", r"cannot say pp=2"),
        ("dp=8,pp=2", "accelerate", r"cannot say pp=2"),
        ("dp=16,zero=1", "torchtitan", "zero=1"),
        ("dp=8,pp=2,schedule=dualpipe,grad_accumulation=8", "torchtitan", "schedule=dualpipe"),
        ("dp=16,ep=2,overlap_ep=true,grad_accumulation=8", "torchtitan", "overlap_ep"),
        ("dp=16,zero=3,checkpointing=selective", "torchtitan", "checkpointing=selective"),
        ("dp=8,pp=2", "fsdp", "pp need a trainer"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(plan: str, to: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        hand_over(chosen(plan), to)


def test_unknown_tools_and_uneven_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="Did you mean 'slurm'"):
        hand_over(chosen("dp=16"), "slurn")
    with pytest.raises(InputError, match="launchers take equal ones"):
        hand_over(replace(chosen("dp=16"), cluster="8xh100-sxm+4xh100-sxm"), "torchrun")


def _train(rank: int, code: str, store: str, results: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(compile(code, "setup.py", "exec"), scope)
    styles = {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    whole = Llama(width=32, layers=2)
    tokens = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(1))
    expected = whole(tokens).sum().item()
    model = scope["parallelize"](whole, blocks=whole.layers, styles=styles, device_type="cpu")
    out = model(tokens)
    out.sum().backward()
    sharded = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())
    results.put((expected, out.sum().item(), sharded, scope["MICRO_BATCH"]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["dp=2,zero=3,checkpointing=full", "dp=1,tp=2"])
def test_the_setup_code_shards_a_model_that_computes_the_same(plan: str, tmp_path: Path) -> None:
    code = hand_over(chosen(plan, "2xh100-sxm"), "fsdp")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=_train, args=(rank, code, str(tmp_path / "store"), results)) for rank in range(2)]
    for process in ranks:
        process.start()
    answers = [results.get(timeout=300) for _ in ranks]
    for process in ranks:
        process.join(300)
        assert process.exitcode == 0
    parameters = sum(p.numel() for p in Llama(width=32, layers=2).parameters())
    for expected, got, sharded, batch in answers:
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-3)
        assert sharded < 0.8 * parameters
        assert batch == 2


def test_every_format_is_text() -> None:
    for to in FORMATS:
        assert hand_over(chosen("dp=16,zero=3"), to).endswith("\n")
    assert json.loads(hand_over(chosen("dp=16,zero=3"), "deepspeed"))["train_batch_size"] == 32


def test_a_spot_price_asks_for_spot_nodes() -> None:
    on_demand, spot = (
        yaml.safe_load(hand_over(replace(chosen("dp=16,zero=3"), term=term), "skypilot"))["resources"]
        for term in ("on-demand", "spot")
    )
    assert spot == {**on_demand, "use_spot": True}
    assert "use_spot" not in on_demand
