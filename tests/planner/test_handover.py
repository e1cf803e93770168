"""What is handed over is what the tools take: read back by the project's readers of configurations, or run."""

from __future__ import annotations

import multiprocessing
import re
import shlex
import subprocess
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
from foretell.hardware import Cluster
from foretell.planner.handover import TOOLS, fields, hand_over
from foretell.planner.result import Choice, Range
from foretell.plans import Plan
from tests.parallel.models import Llama


def chosen(plan: str, cluster: str = "2x8xh100-sxm", batch: int = 2, precision: str = "fp32") -> Choice:
    hours = Range(median=3600.0 * 30, low=3600.0 * 25, high=3600.0 * 36.5)
    return Choice(
        cluster=cluster, devices=16, plan=plan, batch=batch, global_batch=64, settings={"seq": "4096"}, precision=precision,
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
        "job-name": "llama-8b", "nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "8", "cpus-per-task": "64",
        "time": "1-12:30:00",
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
    task = yaml.safe_load(hand_over(chosen("dp=16,zero=3", "2xaws:p5.48xlarge"), "skypilot"))
    assert task["resources"] == {"accelerators": "H100:8", "infra": "aws", "network_tier": "best"}
    assert task["num_nodes"] == 2
    assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0


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


@pytest.mark.parametrize(
    ("plan", "to", "message"),
    [
        ("dp=8,pp=2", "deepspeed", r"cannot say pp=2"),
        ("dp=8,pp=2", "accelerate", r"cannot say pp=2"),
        ("dp=16,zero=1", "torchtitan", "zero=1"),
        ("dp=8,pp=2,schedule=dualpipe,grad_accumulation=8", "torchtitan", "schedule=dualpipe"),
        ("dp=16,ep=2,overlap_ep=true,grad_accumulation=8", "torchtitan", "overlap_ep"),
        ("dp=16,zero=3,checkpointing=selective", "torchtitan", "checkpointing=selective"),
        ("dp=8,pp=2", "fsdp", r"cannot say pp=2. .*hand over to torchtitan"),
        ("dp=16,zero=3,checkpointing=full", "deepspeed", r"cannot say checkpointing=full. .* torchtitan or fsdp"),
        ("dp=16,zero=3,checkpointing=selective", "accelerate", "whole blocks or nothing"),
        ("dp=8,tp=2,sequence_parallel=true,zero=3", "accelerate", "cannot say sequence_parallel=True"),
        ("dp=8,pp=2,schedule=interleaved,virtual_stages=3", "torchtitan", "has 2 stages on a device"),
        ("dp=8,tp=2", "torchtitan", "sequence_parallel=true"),
        ("dp=16,zero=3,offload=optimizer", "torchtitan", "moves parameters"),
        ("dp=16,zero=3,checkpointing=full", "lightning", "cannot say checkpointing=full"),
    ],
)
def test_what_a_tool_cannot_say_is_refused(plan: str, to: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        hand_over(chosen(plan), to)


def test_precisions_that_a_tool_keeps_otherwise_are_refused() -> None:
    with pytest.raises(PlanError, match=r"cannot say precision=bf16. It has fp32, .*hand over to fsdp"):
        hand_over(chosen("dp=16,zero=3", precision="bf16"), "deepspeed")  # it would keep fp32 copies
    with pytest.raises(PlanError, match="under FSDP alone"):
        hand_over(chosen("dp=16,checkpointing=full", precision="amp-bf16"), "accelerate")
    with pytest.raises(PlanError, match="no optimizer with fp32 copies"):
        hand_over(chosen("dp=16,zero=3", precision="parameters:bf16/master:fp32"), "fsdp")


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
    for to in TOOLS:
        assert hand_over(chosen("dp=16,zero=3"), to).endswith("\n")


def test_a_spot_price_asks_for_spot_nodes() -> None:
    on_demand, spot = (
        yaml.safe_load(hand_over(replace(chosen("dp=16,zero=3"), term=term), "skypilot"))["resources"]
        for term in ("on-demand", "spot")
    )
    assert spot == {**on_demand, "use_spot": True}
    assert "use_spot" not in on_demand


def test_the_script_is_told_the_plan() -> None:
    choice = chosen("dp=8,tp=2,zero=3,grad_accumulation=4")
    line = hand_over(choice, "torchrun", command="train.py --tp {tp} --batch {batch} --json '{\"a\": 1}'").splitlines()
    assert shlex.split(line[-1])[-6:] == ["train.py", "--tp", "2", "--batch", "2", "--json", '{"a": 1}'][-6:]
    told = dict(word.split("=", 1) for word in shlex.split(line[1])[1:])
    assert told["FORETELL_PLAN"] == choice.plan
    assert (told["FORETELL_BATCH"], told["FORETELL_GRAD_ACCUMULATION"], told["FORETELL_ZERO"]) == ("2", "4", "3")
    assert told["FORETELL_PRECISION"] == choice.precision
    assert yaml.safe_load(hand_over(choice, "skypilot"))["envs"] == told
    job = next(yaml.safe_load_all(hand_over(choice, "kubernetes")))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == told
    with pytest.raises(InputError, match=r"'tpp' is not known. Did you mean 'tp'"):
        hand_over(choice, "torchrun", command="train.py --tp {tpp}")


def test_boards_have_the_names_of_each_cloud() -> None:
    def resources(cluster: str) -> dict[str, Any]:
        plan = f"dp={Cluster.parse(cluster).devices}"
        found: dict[str, Any] = yaml.safe_load(hand_over(chosen(plan, cluster), "skypilot"))["resources"]
        return found

    assert resources("2x8xh100-sxm")["network_tier"] == "best"
    assert "network_tier" not in resources("8xh100-sxm")
    assert resources("rtx-4090")["accelerators"] == "RTX4090:1"
    on_runpod = resources("runpod:h100-sxm")
    assert on_runpod["infra"] == "runpod"
    assert on_runpod["accelerators"].startswith("H100-SXM:")


@pytest.mark.parametrize(("board", "resource"), [("mi300x", "amd.com/gpu"), ("gaudi2", "habana.ai/gaudi")])
def test_kubernetes_asks_for_the_vendors_devices_and_shared_memory(board: str, resource: str) -> None:
    job = next(yaml.safe_load_all(hand_over(chosen("dp=8", f"8x{board}"), "kubernetes")))
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {resource: 8}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert pod["volumes"] == [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]


def test_the_guide_shows_the_table_of_fields() -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/hand-over.md").read_text()
    assert fields.table() in guide, "write it again, as fields.table() has it"
    for tool in TOOLS.values():
        assert f"`{tool.file}`" in guide
        assert tool.checked in guide
