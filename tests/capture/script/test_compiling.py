"""What a script compiles is captured as fused kernels, and all else as it is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import foretell
from foretell.graph import Graph
from foretell.graph.operators import ENTERED, FUSED, LAUNCHED_BY
from tests.capture.script.conftest import Write

SCRIPT = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
        def forward(self, x):
            scale = torch.ones(1, device="cuda")
            return x + self.down(nn.functional.gelu(self.up(self.norm(x)))) * scale

    def far(out):
        return (out.log_softmax(-1) * out).square().mean()

    model = nn.Sequential(Block(), Block()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = optimizer.step
    COMPILE
    for _ in range(9):
        loss = far(model(torch.randn(32, 64, device="cuda")))
        loss.backward()
        update()
        optimizer.zero_grad()
"""


def _graph(script: Write, compiled: str) -> Graph:
    return foretell.capture_graph(script(SCRIPT.replace("COMPILE", compiled.replace("\n", "\n    "))))


def _fused(graph: Graph) -> Iterator[str]:
    return (op.module for op in graph.ops if op.signature.name == FUSED)


def test_a_compiled_model_is_fused_and_what_is_around_it_is_not(script: Write) -> None:
    graph = _graph(script, "model = torch.compile(model)")
    names = {op.signature.name for op in graph.ops}
    assert "aten._log_softmax" in names
    assert not names & {"aten.native_layer_norm", "aten.gelu"}
    assert {"0.norm", "1.up", "1.down"} <= set(_fused(graph))
    assert len(graph.gradients or ()) == 12
    assert [c.code for c in graph.caveats if "compil" in c.code] == ["compiled"]


def test_blocks_a_loss_and_an_update(script: Write) -> None:
    """Each block is entered by itself; the update runs as it is written, and a caveat says so."""
    graph = _graph(
        script, "[block.compile() for block in model]\nfar = torch.compile(far)\nupdate = torch.compile(update)"
    )
    assert sum(op.signature.name == ENTERED for op in graph.ops) == 2 * 3
    assert {"0.norm", "1.norm", ""} <= set(_fused(graph))
    assert "aten._log_softmax" not in {op.signature.name for op in graph.ops}
    (left,) = [c.text for c in graph.caveats if c.code == "compile-not-modelled"]
    assert left.startswith("torch.compile of SGD.step: an optimizer's update is not compiled here")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("torch.compile(model, backend='onnxrt')", "the backend onnxrt is not modelled"),
        ("torch.compile(model, backend='eager')", None),
        ("torch.compile(model, disable=True)", None),
    ],
)
def test_what_is_not_compiled_is_the_eager_step(script: Write, how: str, reason: str | None) -> None:
    graph = _graph(script, f"model = {how}")
    assert not list(_fused(graph))
    assert [reason in c.text for c in graph.caveats if c.code == "compile-not-modelled" and reason] == [True] * bool(
        reason
    )


def test_graphs_of_cuda_launch_what_they_hold(script: Write) -> None:
    graph = _graph(script, "model = torch.compile(model, mode='reduce-overhead')")
    assert {op.signature.argument(LAUNCHED_BY) for op in graph.ops if op.signature.name == FUSED} == {"graph"}


def test_sharded_parameters_leave_the_step_eager(script: Write) -> None:
    text = SCRIPT.replace("COMPILE", "").replace(
        "    optimizer = torch.optim",
        """    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    dist.init_process_group("nccl")
    model = torch.compile(FSDP(model))
    optimizer = torch.optim""",
    )
    graph = foretell.capture_graph(script(text))
    assert not list(_fused(graph))
    assert any("kernels of sharded parameters are not compiled here" in c.text for c in graph.caveats)


def test_a_graph_break_leaves_two_pieces(script: Write) -> None:
    """What is between them runs as it is written; the script goes on as ever."""
    text = SCRIPT.replace(
        "return x + self.down(", "x = x * 2\n            torch._dynamo.graph_break()\n            return x + self.down("
    )
    graph = foretell.capture_graph(script(text.replace("COMPILE", "[block.compile() for block in model]")))
    assert sum(op.signature.name == ENTERED for op in graph.ops) == 2 * 2 + 3  # the data has no gradient
    assert "aten.gelu" not in {op.signature.name for op in graph.ops}


def test_what_cannot_be_compiled_runs_as_it_is_written(script: Write) -> None:
    """A number of a tensor decides: the compiler breaks there, and a function that nothing is left of is eager."""
    text = SCRIPT.replace(
        "    COMPILE",
        """
    @torch.compile
    def report(x):
        print(float(x))
    print = lambda *given: None
    COMPILE""",
    )
    graph = foretell.capture_graph(script(text.replace("COMPILE", "report(torch.ones(1).sum())")))
    assert not list(_fused(graph))


def test_a_script_that_fails_with_its_kernels_is_run_as_it_is_written(script: Write) -> None:
    """Whatever fails once something was compiled, be it the process: the forecast is that of the eager step, and says so."""
    text = SCRIPT.replace(
        "for _ in range(9):",
        """
    from torch._dynamo import eval_frame
    def broken(*given, **named):
        import os
        os._exit(7)
    torch._dynamo.optimize = broken
    for _ in range(9):""",
    )
    graph = foretell.capture_graph(script(text.replace("COMPILE", "model = torch.compile(model)")))
    assert not list(_fused(graph))
    assert "aten.gelu" in {op.signature.name for op in graph.ops}
    (left,) = [c.text for c in graph.caveats if c.code == "compile-not-modelled"]
    assert left.startswith("torch.compile of Sequential: with its kernels the script did not come to its third step")


def test_a_plan_that_cuts_what_a_script_compiles_has_its_eager_step(script: Write) -> None:
    subject = script(SCRIPT.replace("COMPILE", "model = torch.compile(model)"))
    found = foretell.forecast(subject, on="2xh100-sxm", plan="tp=2")
    assert any("kernels of a step that tp=2 cut are not compiled here" in c.text for c in found.caveats)


def test_what_a_script_compiles_is_sharded_by_blocks(script: Write) -> None:
    subject = script(SCRIPT.replace("COMPILE", "model = torch.compile(model)"))
    found = foretell.forecast(subject, on="2xh100-sxm", plan="dp=2,zero=3")
    assert {"compiled", "compiled-by-blocks"} <= {c.code for c in found.caveats}
