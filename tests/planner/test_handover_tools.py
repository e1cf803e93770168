"""Files are read by the tools that they are written for, in versions that pip and Debian have, and two are run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from foretell.planner.handover import TOOLS, hand_over
from tests.planner.test_handover import chosen

_PINNED = ("deepspeed==0.19.8", "torchtitan==0.2.2", "tyro==1.0.16", "triton", "jsonargparse[signatures]==4.53.0")
# Each reads the file it is given with its tool, and prints what it understood.
_READERS = {
    "deepspeed": """
import os; os.environ["DS_ACCELERATOR"] = "cpu"
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
read = DeepSpeedConfig.__new__(DeepSpeedConfig)
read._param_dict, read.world_size = json.load(open(sys.argv[1])), 16
read._initialize_params(read._param_dict); read._configure_train_batch_size(); read._do_sanity_check()
zero = read.zero_config
print(json.dumps([read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps,
                  read.zero_optimization_stage, zero.overlap_comm, zero.reduce_bucket_size, zero.offload_param.device]))
""",
    "torchtitan": """
import json, sys
from torchtitan.config.manager import ConfigManager
read = ConfigManager().parse_args(["--job.config_file", sys.argv[1]])
cut, step = read.parallelism, read.training
print(json.dumps([cut.tensor_parallel_degree, cut.pipeline_parallel_degree, cut.pipeline_parallel_schedule,
                  cut.data_parallel_shard_degree, cut.fsdp_reshard_after_forward, step.local_batch_size,
                  step.global_batch_size, step.mixed_precision_param, read.activation_checkpoint.selective_ac_option]))
""",
    "lightning": """
import json, sys
from foretell.sources.named.torchvision_ops import make_torchvision_importable; make_torchvision_importable()
from jsonargparse import ArgumentParser
from lightning.pytorch import Trainer
parser = ArgumentParser(); parser.add_class_arguments(Trainer, "trainer"); parser.add_argument("--config", action="config")
read = parser.parse_args(["--config", sys.argv[1]]).trainer
print(json.dumps([read.devices, read.num_nodes, read.precision, read.accumulate_grad_batches, read.max_time,
                  read.strategy.init_args.sharding_strategy.name]))
""",
    "skypilot": """
import json, sys, sky
read = sky.Task.from_yaml(sys.argv[1])
[resources] = read.resources
print(json.dumps([read.num_nodes, resources.accelerators, str(resources.cloud), str(resources.network_tier.value),
                  resources.use_spot, read.envs["FORETELL_BATCH"]]))
""",
}
_CASES: dict[str, tuple[Any, list[Any]]] = {
    "deepspeed": (
        chosen("dp=16,zero=3,grad_accumulation=4,offload=parameters,bucket_bytes=67108864", precision="parameters:bf16/master:fp32"),
        [128, 2, 4, 3, True, 33554432, "cpu"],
    ),
    "torchtitan": (
        chosen("dp=2,tp=4,pp=2,zero=2,grad_accumulation=8,sequence_parallel=true,checkpointing=selective-op",
               precision="parameters:fp32/compute:bf16/reduce:fp32"),
        [4, 2, "1F1B", 2, "never", 16, 32, "bfloat16", "op"],
    ),
    "lightning": (
        chosen("dp=16,zero=3,grad_accumulation=4", precision="bf16"),
        [8, 2, "bf16-true", 4, "01:12:30:00", "FULL_SHARD"],
    ),
    "skypilot": (chosen("dp=16,zero=3", "2xaws:p5.48xlarge"), [2, {"H100": 8}, "AWS", "best", False, "2"]),
}  # fmt: skip


def _environment(folder: Path, packages: tuple[str, ...], *, seeing_ours: bool) -> str:
    """An interpreter with these packages, and with those of this suite."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin/python")
    if seeing_ours:
        site = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
        ).stdout.strip()  # fmt: skip
        # Named by a line of code, for else the .pth files that lie there, of an editable install, are not read.
        Path(site, "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _environment(tmp_path_factory.mktemp("trainers") / "venv", _PINNED, seeing_ours=True)


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _environment(tmp_path_factory.mktemp("sky") / "venv", ("skypilot==0.14.1",), seeing_ours=False)


@pytest.mark.nightly
@pytest.mark.parametrize("to", _CASES)
def test_the_tool_understands_its_file(to: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    choice, wanted = _CASES[to]
    path = tmp_path / TOOLS[to].file
    path.write_text(('[model]\nname = "llama3"\nflavor = "8B"\n' if to == "torchtitan" else "") + hand_over(choice, to))
    python = request.getfixturevalue("sky" if to == "skypilot" else "trainers")
    ran = subprocess.run(
        [python, "-c", _READERS[to], str(path)], capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout.strip().splitlines()[-1]) == wanted


@pytest.mark.parametrize(
    ("plan", "precision", "half"),
    [
        ("dp=16,zero=3", "parameters:fp32/compute:bf16", "bf16"),
        ("dp=16,zero=2,checkpointing=full", "fp32", "no"),
        ("dp=16", "amp-fp16", "fp16"),
        ("dp=4,tp=4,zero=3", "parameters:fp32/compute:bf16", "bf16"),
    ],
)
def test_accelerate_takes_its_file(plan: str, precision: str, half: str, tmp_path: Path) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    path = tmp_path / "accelerate.yaml"
    path.write_text(hand_over(chosen(plan, precision=precision), "accelerate"))
    wanted = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    read, _, _ = launch._validate_launch_command(wanted)
    assert (read.num_processes, read.num_machines, read.mixed_precision) == (16, 2, half)
    assert read.use_fsdp == ("zero" in plan)
    if read.use_fsdp:
        assert read.fsdp_activation_checkpointing == ("checkpointing=full" in plan)


def test_kubernetes_takes_the_job_and_its_service() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(hand_over(chosen("dp=16,zero=3"), "kubernetes", name="llama")):
        validator.validate(document, "1.30", strict=True)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("slurmctld") is None, reason="there is no Slurm")
def test_slurm_would_start_the_job(tmp_path: Path) -> None:
    """A controller with one node of 64 processors and eight boards that are not there: `--test-only` never starts a job."""
    from tests.planner.slurm import controller

    script = tmp_path / "job.sbatch"
    script.write_text(hand_over(chosen("dp=8,zero=3", "8xh100-sxm"), "slurm"))
    with controller(tmp_path, cpus=64, boards=8) as environment:
        ran = subprocess.run(
            ["sbatch", "--test-only", str(script)], capture_output=True, text=True, env=environment, check=False
        )
    assert ran.returncode == 0, ran.stderr
    assert "using 64 processors" in ran.stderr


_UNDER_ACCELERATE = """
from foretell.sources.named.torchvision_ops import make_torchvision_importable; make_torchvision_importable()
import json, os, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
batch = int(os.environ["FORETELL_BATCH"])
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = torch.randn(10 * accelerator.gradient_accumulation_steps * batch * accelerator.num_processes, 32)
model, optimizer, batches = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(rows, batch_size=batch))
samples = updates = 0
for x in batches:
    with accelerator.accumulate(model):
        samples += len(x)
        accelerator.backward(model(x).square().mean())
        updates += accelerator.sync_gradients
        optimizer.step(); optimizer.zero_grad()
everyone = accelerator.gather(torch.cat([p.detach().flatten() for p in model.parameters()])[None])
if accelerator.is_main_process:
    print(json.dumps([samples, updates, accelerator.num_processes, accelerator.mixed_precision, type(model).__name__,
                      bool(torch.equal(everyone[0], everyone[1]))]), flush=True)
accelerator.end_training()  # one that leaves while gloo still talks to the other is aborted
"""
# Its launcher, where torchvision's kernels may be missing.
_LAUNCH = """
from foretell.sources.named.torchvision_ops import make_torchvision_importable; make_torchvision_importable()
from accelerate.commands.launch import main; main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "half"), [("fp32", "no"), ("amp-bf16", "bf16")])
def test_accelerate_runs_the_plan(precision: str, half: str, tmp_path: Path) -> None:
    """Ten steps on two processes. Its launcher took micro-steps as an argument, and handed them on for DeepSpeed alone."""
    pytest.importorskip("accelerate.commands.launch")
    choice = chosen("dp=2,grad_accumulation=3", "2xh100-sxm", batch=4, precision=precision)
    script, file = tmp_path / "train.py", tmp_path / "accelerate.yaml"
    script.write_text(_UNDER_ACCELERATE)
    file.write_text(hand_over(choice, "accelerate", command=str(script)))
    *variables, line = file.read_text().splitlines()[1].removeprefix("# ").partition("accelerate launch ")
    told = dict(part.split("=", 1) for part in variables[0].split())
    ran = subprocess.run(
        [sys.executable, "-c", _LAUNCH, *line.replace("FILE", str(file)).split()], capture_output=True, text=True, check=False,
        timeout=300, env=os.environ | told | {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    wanted = [10 * 3 * 4, 10, 2, half, "DistributedDataParallel", True]
    assert json.loads(ran.stdout.strip().splitlines()[-1]) == wanted


_TRAIN = """
import json, os, sys, torch, torch.distributed as dist
from torch.distributed.tensor import DTensor
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fsdp_setup as setup
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()) for _ in range(4)))
whole = sum(p.numel() for p in model.parameters())
model = setup.parallelize(model, blocks=model, device_type="cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples, losses = 0, []
for step in range(10):
    for micro in range(setup.GRAD_ACCUMULATION):
        batch = torch.randn(setup.MICRO_BATCH, 32).to(next(model.parameters()).dtype)
        samples += len(batch)
        loss = model(batch).float().square().mean() / setup.GRAD_ACCUMULATION
        loss.backward()
    optimizer.step(); optimizer.zero_grad()
    losses.append(loss.item())
here = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())
state = {str(v.dtype) for s in optimizer.state.values() for v in s.values() if v.dim()}
if dist.get_rank() == 0:
    print(json.dumps({"samples": samples, "share": here / whole, "world": dist.get_world_size(), "state": sorted(state),
                      "told": os.environ["FORETELL_GRAD_ACCUMULATION"], "fell": losses[-1] < losses[0]}))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "precision", "share", "state"),
    [
        ("dp=2,zero=3,grad_accumulation=3,checkpointing=full", "parameters:fp32/compute:bf16", 0.5, ["torch.float32"]),
        ("dp=2,grad_accumulation=2", "bf16", 1.0, ["torch.bfloat16"]),
    ],
)
def test_the_launch_line_runs_the_setup_code(
    plan: str, precision: str, share: float, state: list[str], tmp_path: Path
) -> None:
    choice = chosen(plan, "2xh100-sxm", batch=4, precision=precision)
    (tmp_path / "fsdp_setup.py").write_text(hand_over(choice, "fsdp"))
    (tmp_path / "train.py").write_text(_TRAIN)
    (tmp_path / "launch.sh").write_text(hand_over(choice, "torchrun", command=str(tmp_path / "train.py")))
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    ran = subprocess.run(
        ["bash", str(tmp_path / "launch.sh")], capture_output=True, text=True, check=False, timeout=300,
        env={"PATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    accumulation = choice.plan.partition("grad_accumulation=")[2].partition(",")[0]
    assert found["samples"] == 10 * int(accumulation) * 4
    assert (found["world"], found["told"], found["state"]) == (2, accumulation, state)
    assert found["share"] == pytest.approx(share, abs=0.02)
    assert found["fell"]
