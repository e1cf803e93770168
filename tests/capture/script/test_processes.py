"""How a script finds itself among processes: by a launch line, by processes of its own, alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

import foretell
from foretell import cli
from foretell.capture.script.pretend.workers import trains
from tests.capture.script.conftest import Write

STEPS = """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(9):
        model(torch.randn(4, 8).cuda()).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_module_runs_as_python_m_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("WIDTH = 8\n")
    head = """
    import os, sys, torch
    import torch.distributed as dist
    from . import WIDTH
    assert __spec__.name == "pkg.train" and __name__ == "__main__"
    assert sys.argv[1:] == ["--lr", "1e-4"] and sys.path[0] == os.getcwd()
    assert os.environ["KIND"] == "small" and os.environ["LOCAL_RANK"] == "0"
    dist.init_process_group("nccl", init_method="env://")
    assert dist.get_world_size() == 8 and dist.get_backend() == "nccl"
    """
    (tmp_path / "pkg" / "train.py").write_text(textwrap.dedent(head) + textwrap.dedent(STEPS))
    script = foretell.Script.from_launch("KIND=small torchrun --nproc-per-node 8 -m pkg.train --lr 1e-4")
    found = foretell.forecast(script, on="8xh100-sxm")
    assert (found.plan, found.workload) == ("dp=8", "train")


def test_a_second_group_is_there_whatever_it_runs_on(script: Write) -> None:
    """As one of gloo for what is exchanged on the host, which Lightning and DeepSpeed make."""
    head = """
    import torch
    import torch.distributed as dist
    dist.init_process_group("nccl")
    host = dist.new_group(backend="gloo")
    assert (dist.get_world_size(host), dist.get_backend(host), dist.get_backend()) == (8, "gloo", "nccl")
    told = [None] * 8
    dist.all_gather_object(told, 1, group=host)
    dist.monitored_barrier(group=host)
    assert told == [1] * 8 and dist.get_world_size(dist.new_group(ranks=[0, 1], backend="nccl")) == 2
    """
    graph = foretell.capture_graph(script(textwrap.dedent(head) + textwrap.dedent(STEPS), processes=8))
    assert graph.facts.plan is not None


@pytest.mark.slow
def test_a_script_for_a_launcher_runs_alone(script: Write) -> None:
    """It reads a launcher's variables without a default; who asks whether there is one hears that there is none."""
    head = """
    import os, torch
    assert "RANK" not in os.environ and os.environ.get("WORLD_SIZE", -1) == -1 and "SLURM_PROCID" not in os.environ
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert (rank, world, os.environ["SLURM_NTASKS"]) == (0, 1, "1")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl", rank=rank, world_size=world)
    torch.distributed.init_process_group("nccl")  # as a library and the script both do
    """
    assert foretell.capture_graph(script(textwrap.dedent(head) + textwrap.dedent(STEPS))).facts.parameters == 72


@pytest.mark.slow
def test_processes_that_a_script_starts_itself(script: Write) -> None:
    """The first of those that train runs in place; others are started as they are."""
    text = """
    import torch
    import torch.multiprocessing as mp
    import torch.distributed as dist

    def fetch(queue):
        queue.put(3)

    def train(rank, world):
        assert rank == 0
        dist.init_process_group("nccl", init_method="tcp://localhost:23456", rank=rank, world_size=world)
        STEPS

    if __name__ == "__main__":
        queue = mp.Queue()
        other = mp.Process(target=fetch, args=(queue,))
        other.start()
        assert queue.get() == 3
        other.join()
        workers = [mp.Process(target=train, args=(rank, 4)) for rank in reversed(range(4))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    """
    text = text.replace("        STEPS\n", textwrap.indent(STEPS, " " * 4))
    graph = foretell.capture_graph(script(text, processes=4))
    assert graph.facts.plan is not None
    assert graph.facts.plan.devices == 4


@pytest.mark.slow
def test_processes_that_nobody_waits_for_run_when_the_script_ends(script: Write) -> None:
    text = """
    import torch
    import torch.multiprocessing as mp
    import torch.distributed as dist

    def train(rank, world):
        assert rank == 0
        dist.init_process_group("nccl", init_method="tcp://localhost:23456", rank=rank, world_size=world)
        STEPS

    if __name__ == "__main__":
        mp.set_start_method("spawn")
        for rank in range(3):
            mp.Process(target=train, args=(rank, 3)).start()
    """
    text = text.replace("        STEPS\n", textwrap.indent(STEPS, " " * 4))
    graph = foretell.capture_graph(script(text, processes=3))
    assert graph.facts.plan is not None
    assert (graph.facts.plan.devices, graph.facts.parameters) == (3, 72)


def test_which_functions_train() -> None:
    def step(loss: object) -> None:
        loss.backward()  # type: ignore[attr-defined]

    def play(queue: object) -> None:
        queue.put(1)  # type: ignore[attr-defined]

    def run(rank: int, function: object) -> None:
        function(rank)  # type: ignore[operator]

    assert trains(step)
    assert trains(run, (0, step))
    assert not trains(play)
    assert not trains(None)


@pytest.mark.slow
def test_what_a_script_asserts_of_numbers_on_the_device_holds(script: Write) -> None:
    text = """
        import torch
        model = torch.nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(9):
            boxes = model(torch.randn(64, 8).cuda())
            assert (boxes[:, 2:] >= boxes[:, :2]).all()
            assert not (boxes[:, 2:] < boxes[:, :2]).any(), "these are no boxes"
            boxes.sum().backward()
            optimizer.step()
    """
    graph = foretell.capture_graph(script(text))
    assert any("asserts" in caveat.text for caveat in graph.caveats)


def test_verbs_take_launch_lines(script: Write) -> None:
    script("import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n" + textwrap.dedent(STEPS))
    call = CliRunner().invoke
    shown = call(cli.app, ["inspect", "--launch", "torchrun --nproc-per-node 2 train.py", "--json", "--no-cache"])
    assert shown.exit_code == 0, shown.output
    assert "Linear" in shown.stdout or "aten" in shown.stdout
    pasted = call(cli.app, ["inspect", "torchrun --nproc-per-node 2 train.py", "--json", "--no-cache"])
    assert pasted.stdout == shown.stdout, "a line is one without --launch too"
    for verb in (["scale", "--on", "h100-sxm", "--up-to", "2"], ["plan"], ["inspect"]):
        both = call(cli.app, [*verb, "train.py", "--launch", "torchrun train.py"])
        assert "Leave out SOURCE" in both.output + str(both.exception)
        neither = call(cli.app, verb)
        assert "SOURCE is missing" in neither.output + str(neither.exception)
