"""Launch lines, as people type them: what they start, in how many processes, with which variables."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError
from foretell.forecasting.question import on_cluster
from foretell.sources.launch import is_launch_line, read_launch

LINES = [
    ("torchrun --nproc-per-node 8 train.py --lr 1e-4", "train.py", ["--lr", "1e-4"], 8, 1),
    ("torchrun --standalone --nnodes=2 --nproc_per_node=4 --rdzv_id 1 train.py", "train.py", [], 8, 2),
    ("torchrun --nproc-per-node gpu train.py", "train.py", [], None, 1),
    ("python -u train.py -a 3 > log.txt 2>&1", "train.py", ["-a", "3"], None, None),
    ("CUDA_VISIBLE_DEVICES=0,1 python3.11 train.py | tee log", "train.py", [], 2, None),
    ("python -m torch.distributed.launch --nproc_per_node=4 --use_env a/main.py -x", "a/main.py", ["-x"], 4, 1),
    ("python -m torch.distributed.launch --nproc_per_node 4 main.py -x", "main.py", ["--local_rank=0", "-x"], 4, 1),
    ("deepspeed --num_gpus 4 t.py --deepspeed ds.json", "t.py", ["--local_rank=0", "--deepspeed", "ds.json"], 4, None),
    ("deepspeed --include localhost:0,1 --no_local_rank t.py", "t.py", [], 2, 1),
    ("accelerate launch --multi_gpu --num_processes 8 --num_machines 2 t.py --x", "t.py", ["--x"], 8, 2),
    ("srun -n16 -N 2 --label python train.py", "train.py", [], 16, 2),
    ("srun -N 2 torchrun --nnodes 2 --nproc-per-node 8 train.py", "train.py", [], 16, 2),
    ("mpirun -np 8 --allow-run-as-root -x PATH -mca btl tcp python t.py", "t.py", [], 8, None),
    ("composer -n 8 t.py conf.yaml", "t.py", ["conf.yaml"], 8, None),
    ("fabric run --devices 4 --strategy ddp t.py", "t.py", [], 4, None),
    ("uv run --frozen torchrun --nproc_per_node 2 t.py", "t.py", [], 2, 1),
    ("OMP_NUM_THREADS=1 torchrun --nproc_per_node=8 \\\n t.py \\\n --name 'a b'", "t.py", ["--name", "a b"], 8, 1),
    ("torchrun --nproc-per-node 2 --no-python python t.py", "t.py", [], 2, 1),
    ("torchrun --nproc-per-node 2 t.py -- --depth=4 -- x", "t.py", ["--depth=4", "--", "x"], 2, 1),
    ("accelerate launch --num_processes 2 t.py -- --depth=4", "t.py", ["--depth=4"], 2, None),
    ("python t.py -- --depth=4", "t.py", ["--", "--depth=4"], None, None),
]


@pytest.mark.parametrize(("line", "path", "arguments", "processes", "nodes"), LINES, ids=[line[0] for line in LINES])
def test_a_line_says_script_arguments_and_processes(
    line: str, path: str, arguments: list[str], processes: int | None, nodes: int | None
) -> None:
    launch = read_launch(line)
    assert (launch.path, launch.arguments, launch.processes, launch.nodes) == (path, arguments, processes, nodes)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "starts nothing"),
        ("cd examples && python train.py", "several commands"),
        ("tune run full_finetune --config x", "THE_CONFIG.yaml"),
        ("bash missing.sh", "cannot be read"),
        ("python -c 'print(1)'", "runs no file"),
        ("torchrun --nproc-per-node $NO_SUCH_COUNT train.py", "Write it out"),
        ("torchrun --nproc-per-node", "lacks its value"),
        ("torchrun --nproc-per-node 2² train.py", "Write it out"),
        (f"mpirun -np {'9' * 5000} python train.py", "Write it out"),
        ("torchrun --nproc-per-node 8 -m no_such_package.train", "no module 'no_such_package.train'"),
        ("python 'train.py", "Quote it"),
        ("./a.out", "no Python script"),
    ],
)
def test_what_is_no_launch_line_is_refused_with_a_way_out(line: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        foretell.Script.from_launch(line)


def test_a_script_of_the_shell_is_read_for_what_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(
        "#!/bin/bash\nset -e\nexport KIND=small\nGPUS=${GPUS:-4}\nmkdir -p out\nDATA=$1\n"
        "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=$GPUS \\\n  train.py --data $DATA --name run-$(date +%s) | tee log\n"
    )
    for line, count in (("bash run.sh imagenet", 4), ("GPUS=2 sh -x ./run.sh imagenet", 2), ("./run.sh imagenet", 4)):
        found = read_launch(line)
        assert (found.path, found.processes, found.launcher) == ("train.py", count, "torchrun")
        assert found.arguments == ["--data", "imagenet", "--name", "run-unknown"]
        assert found.environment["KIND"] == "small"
    Path("count.sh").write_text("torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py")
    assert read_launch("bash count.sh").processes is None, "one for each device"
    for text, why in (
        ("python a.py\npython b.py", "several programs: a.py, b.py"),
        ("echo hello", "no Python program"),
    ):
        Path("other.sh").write_text(text)
        with pytest.raises(InputError, match=why):
            read_launch("bash other.sh")


@pytest.mark.parametrize(
    ("text", "is_line"),
    [
        ("torchrun --nproc-per-node 8 train.py", True),
        ("CUDA_VISIBLE_DEVICES=0 python train.py", True),
        ("train.py --lr 1", True),
        ("bash scripts/train.sh", True),
        ("./run.sh 8", True),
        ("train.py", False),
        ("hf/gpt2", False),
        ("my scripts/train.py", False),
        ("my old.py train.py", False),
    ],
)
def test_what_begins_as_a_launch_line(
    text: str, is_line: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_launch_line(text) is is_line
    (tmp_path / "train.py --lr 1").touch()
    assert not is_launch_line("train.py --lr 1"), "a file of that name"


def test_a_script_of_a_line_is_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "__main__.py").touch()
    script = foretell.Script.from_launch("A=b torchrun --nproc-per-node 8 -m pkg --x", fake_data=True)
    assert (script.path, script.module, script.name) == ("pkg/__main__.py", "pkg", "pkg")
    assert foretell.Script.from_dict(script.to_dict()) == script
    assert hash(script)


def test_accelerates_file_is_what_its_library_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n"
        "fsdp_config:\n  fsdp_sharding_strategy: 2\n  fsdp_offload_params: false\n"
    )
    launch = read_launch("accelerate launch --config_file fsdp.yaml --mixed_precision fp16 t.py")
    assert launch.processes == 4
    assert launch.environment["ACCELERATE_USE_FSDP"] == "true"
    assert launch.environment["FSDP_SHARDING_STRATEGY"] == "SHARD_GRAD_OP"
    assert launch.environment["ACCELERATE_MIXED_PRECISION"] == "fp16"
    launch = read_launch("accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu t.py")
    assert launch.environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    with pytest.raises(InputError, match=r"no file 'none\.yaml'"):
        read_launch("accelerate launch --config_file none.yaml t.py")
    with pytest.raises(InputError, match="no file 'aaa"):
        read_launch(f"accelerate launch --config_file {'a' * 5000} t.py")
    (tmp_path / "odd.yaml").write_text("fsdp_config: true\n")
    with pytest.raises(InputError, match=r"fsdp_config of 'odd\.yaml' must be a table of settings, got True"):
        read_launch("accelerate launch --config_file odd.yaml t.py")
    (tmp_path / "odd.yaml").write_text("1: 2\nuse_fsdp: true\nfsdp_config: {2: 3, fsdp_sharding_strategy: 3²}\n")
    launch = read_launch("accelerate launch --config_file odd.yaml t.py")
    assert launch.environment["FSDP_SHARDING_STRATEGY"] == "3²"


@pytest.mark.parametrize(
    ("line", "cluster", "both"),
    [
        ("torchrun --nproc-per-node 8 t.py", "h100-sxm", ("8 processes", "1 device", "--on 8xh100-sxm")),
        ("torchrun --nnodes 2 --nproc-per-node 8 t.py", "8xh100-sxm", ("16 processes", "--on 2x8xh100-sxm")),
        ("torchrun --nnodes 2 --nproc-per-node 4 t.py", "8xh100-sxm", ("2 nodes", "has 1", "--on 2x4xh100-sxm")),
    ],
)
def test_a_line_and_a_cluster_that_disagree_are_both_named(line: str, cluster: str, both: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        on_cluster(foretell.Script.from_launch(line), foretell.Cluster.parse(cluster))
    assert all(part in str(error.value) for part in both), error.value
