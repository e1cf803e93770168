"""Launch lines, and the files of settings that accelerate's name: put together from what launchers take, and from nonsense."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any, Final

from foretell.sources.launch import read_launch
from tests.fuzz.mutate import VALUES, change

QUICK_WEIGHT = 0.5
LINES: Final = (
    "torchrun --nproc-per-node 8 --nnodes=2 train.py --lr 1e-3", "python -m torch.distributed.run --nproc_per_node=4 -m a.b --x",
    "CUDA_VISIBLE_DEVICES=0,1 python -u train.py a b", "deepspeed --include=host:0,1@other:0 --num_gpus 4 train.py --deepspeed ds.json",
    "accelerate launch --config_file {file} --num_processes 8 train.py", "accelerate launch --multi_gpu -m a.b --x 1",
    "composer -n 8 --world_size 16 train.py", "fabric run --accelerator=cuda --devices=4 --num-nodes=2 train.py",
    "srun -N2 --ntasks-per-node=8 --gpus-per-task 1 python train.py", "mpirun -np 16 -H a:8,b:8 -x NAME python train.py",
    "env A=b nohup python3.11 train.py > log 2>&1 &", "uv run --isolated torchrun --standalone train.py",
    "python -m torch.distributed.launch --nproc_per_node=2 train.py",
)  # fmt: skip
WORDS: Final = (
    "--", "-", "=", "-m", "--nnodes", "1:4", "-n8", "²", "٣", "9" * 5000, "-np", "'", '"', "\\", "&&", "|", ">", "$HOME", "${X", "a=b",
    "--nproc-per-node=²", "train.py", "-", "--config_file", "/dev/null", "/", "", "\0", "\ud800", "🦆", "run", "python", "torchrun",
    "--include=", "@" * 100, "0", "-1", "1e9", "x" * 10_000, "srun", "env", "sudo", "accelerate", "launch",
)  # fmt: skip
SETTINGS: Final = {
    "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8, "num_machines": 2, "dynamo_backend": "INDUCTOR",
    "fsdp_config": {"fsdp_sharding_strategy": "1", "fsdp_version": 2, "fsdp_offload_params": False},
    "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 2}, "parallelism_config": {"tp_size": 2},
}  # fmt: skip


def make(rng: random.Random) -> bytes:
    """A line, and after it the file that it may name."""
    words = rng.choice(LINES).split(" ")
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(words))
        match rng.randrange(4):
            case 0:
                del words[at : at + 1]
            case 1:
                words.insert(at, words[at])
            case 2:
                words[at] += rng.choice(WORDS)
            case _:
                words.insert(at, rng.choice(WORDS))
        words = words or [""]
    settings: dict[Any, Any] = json.loads(
        json.dumps(SETTINGS | {"distributed_type": rng.choice(("FSDP", "DEEPSPEED", "NO"))})
    )
    for _ in range(rng.choice((0, 1, 2, 4))):
        change(rng, settings)
    text = json.dumps(settings)
    if rng.random() < 0.1:
        text = f"1: {rng.choice(VALUES)}\n2020-01-01: x\nfsdp_config: {{3: 4}}"  # keys of YAML need not be texts
    return f"{' '.join(words)}\n{text}".replace("\0", "").encode("utf-8", "surrogatepass")


def use(data: bytes, rng: random.Random) -> None:
    line, _, settings = data.partition(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "accelerate.yaml"
        file.write_bytes(settings)
        launch = read_launch(line.decode("utf-8", "surrogatepass").replace("{file}", str(file)))
    assert launch.path or launch.module
    assert launch.processes is None or launch.processes >= 1
    assert all(isinstance(text, str) for item in launch.environment.items() for text in item)
