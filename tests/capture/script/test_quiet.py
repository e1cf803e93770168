"""What surrounds training is quiet: terminals, drivers, trackers and tracers; and what libraries were is still there."""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path

import pytest

import foretell
from foretell.capture.script.pretend import trackers
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

SURROUNDED = """
    import collections, math, os, subprocess, sys
    import numpy as np, torch
    from torch import nn

    # The terminal, and other programs
    rows, columns = os.popen("stty size", "r").read().split()
    assert (rows, columns) == ("24", "80") and os.get_terminal_size().columns == 80 and input("go? ") == "y"
    query = ["nvidia-smi", "--query-gpu=memory.free,name", "--format=csv,nounits,noheader"]
    free, name = subprocess.check_output(query, text=True).splitlines()[0].split(", ")
    assert int(free) > 70_000 and "H100" in name
    os.system("nvidia-smi -q -d Memory | grep -A4 GPU | grep Free >free.txt")
    assert int(open("free.txt").readlines()[0].split()[2]) == int(free)
    os.system("rm -r kept; wget http://example.com/data.zip")
    assert subprocess.run(["unzip", "data.zip"]).returncode == 0 and os.path.isdir("kept")
    assert subprocess.check_output("echo seen | cat", shell=True) == b"seen\\n"
    subprocess.run(["bash", "-c", "touch new; rm -r kept"], check=True)
    assert os.path.isdir("kept") and not os.path.exists("new")

    # Trackers, plots and profilers, installed or not
    import clearml, swanlab, visdom
    from progress.bar import Bar
    from thop import clever_format, profile
    from torch.utils.tensorboard import SummaryWriter

    from typing import Optional, Union
    import gradio, openai
    from openai import openai_object
    import rouge_chinese

    class Board(swanlab.Board):
        pass

    Answer = Union[str, openai_object.OpenAIObject]

    def ask(text: str | openai_object.OpenAIObject) -> Optional[Answer]:
        return gradio.Interface(text)

    assert not rouge_chinese.Rouge().get_scores("a", "b")["rouge-1"]["f"] > 0.1

    Board().log(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    writer = SummaryWriter("runs/first")
    writer.add_graph(model, torch.zeros(1, 8).cuda())
    flops, params = profile(model, inputs=(torch.zeros(1, 8).cuda(),))
    assert "%.1f" % (flops / 1e6) == "0.0" and len(clever_format([flops, params])) == 2
    torch.onnx.export(model, torch.zeros(1, 8), "model.onnx")
    torch.jit.trace(model, torch.zeros(1, 8).cuda())
    model = torch.jit.script(model)

    class Scripted(torch.jit.ScriptModule):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(1, 1)

        @torch.jit.script_method
        def forward(self, x):
            return scaled(self.last(x)) + torch.zeros(1, device=x.device)

    @torch.jit.script
    def scaled(x):
        return x * 2

    model.append(Scripted().cuda())

    # Names of older versions
    from torch._six import container_abcs, string_classes
    assert np.float is float and isinstance([], collections.Iterable) and np.float_ is np.float64
    data = torch.utils.data.TensorDataset(torch.randn(100, 8), torch.randn(100, 1))
    batches = iter(torch.utils.data.DataLoader(data, batch_size=10))

    optimizer, best, losses = torch.optim.SGD(model.parameters(), lr=0.1), 1e9, []
    bar = Bar("steps", max=5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for step in range(5):
            x, y = batches.next()
            loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
            optimizer.zero_grad(); loss.backward(); optimizer.step(); profiler.step()
            assert math.isfinite(loss) and not torch.isnan(loss).any()
            best = min(best, loss.item()) if loss < best else best
            print(f"{loss:.3f} {loss}", "%f" % loss, float(loss), int(loss), profiler.key_averages().table())
            writer.add_scalar("loss", loss, step)
            writer.add_histogram("weight", model[0].weight, step)
            bar.suffix = "{left:.1f}{time}".format(left=1.0, time=bar.elapsed_td)
            bar.next()
            losses.append(loss)
            np.mean([l.detach().cpu().numpy() for l in losses]), torch.stack(losses).mean().item(), sum(losses) / len(losses)
"""


def test_what_surrounds_a_step_is_quiet(script: Write, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    graph = foretell.capture_graph(script(SURROUNDED))
    assert graph.samples == 10
    assert (tmp_path / "kept").is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "train.py"}


def test_a_tracker_that_fails_when_it_is_imported_is_quiet(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "tensorboard_logger"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise TypeError('Descriptors cannot be created directly.')")
    monkeypatch.syspath_prepend(str(package.parent))
    text = """
        import tensorboard_logger as tb
        import torch
        logger = tb.Logger(logdir="runs")
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.randn(3, 2).cuda()).sum().backward()
            optimizer.step()
            logger.log_value("loss", 0.0, step)
    """
    assert foretell.capture_graph(script(text)).samples == 3


def test_a_tracker_that_is_not_installed_gives_settings_back(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        import sys
        sys.modules.pop("wandb", None)
        import argparse, torch, wandb
        from torch import nn
        arguments = argparse.Namespace(width=16, lr=0.1)
        if not hasattr(wandb, "__file__"):  # not installed
            wandb.init(project="tests", config=arguments)
            wandb.config.update({"batch": 12})
            arguments.width, batch = wandb.config.width, wandb.config["batch"]
            wandb.log({"table": wandb.Table(columns=["a"])})
        else:
            batch = 12
        model = nn.Linear(arguments.width, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
        for step in range(5):
            model(torch.randn(batch, arguments.width).cuda()).sum().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text)).samples == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import absent_package.part", r"absent_package in line 1.*pip install absent_package"),
        ("import upfirdn2d_cuda", r"compiled for a GPU.*foretell\.opaque\('upfirdn2d_cuda\.FUNCTION'"),
        ("from torch.utils import absent_name", r"absent_name from torch\.utils in line 1.*torch [\d.]+\S* has not.*pip install"),
        ("import torch.absent", r"torch\.absent in line 1.*which torch"),
        ("import os\nos.system('python other.py --lr 1')", r"starts another program: python other\.py.*--launch"),
    ],
)  # fmt: skip
def test_what_is_not_here_is_named_with_a_way_out(script: Write, text: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words) as caught:
        foretell.capture_graph(script(text))
    assert "failed in its own code" not in str(caught.value)


def test_a_tracker_takes_settings_of_other_versions() -> None:
    class Settings:
        model_fields: Mapping[str, str] = {"mode": ""}

        def __init__(self, mode: str = "") -> None:
            self.mode = mode

    module = types.SimpleNamespace(Settings=Settings, init=lambda project=None: project)
    trackers._take_any_setting(module)
    assert module.Settings(start_method="fork", mode="a").mode == "a"
    assert module.init(project="b", sync_tensorboard=True) == "b"
