"""Live objects as a Workload, and a cell of a notebook as a script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import foretell
from foretell.errors import InputError, WorkloadError


def test_a_step_of_live_objects_is_the_workload_of_them() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.5, 0.9))
    batch = {"x": torch.randn(32, 8), "y": torch.randint(4, (32,))}
    live = foretell.step(
        model,
        optimizer,
        lambda model, b: nn.functional.cross_entropy(model(b["x"]), b["y"]),
        batch,
        precision="amp-bf16",
    )
    before = [p.clone() for p in model.parameters()]
    graph = foretell.capture_graph(live)
    assert (graph.samples, graph.precision.name, live.name) == (32, "amp-bf16", "Sequential")
    assert sum(op.signature.name == "aten._foreach_addcdiv_" for op in graph.ops) == 2  # once per group
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy], ids=["module", "function"])
def test_a_loss_of_torchs_own_is_given_outputs_and_targets(loss: Any) -> None:
    model = nn.Linear(8, 4)
    pair = (torch.randn(32, 8), torch.randint(4, (32,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = foretell.step(model, optimizer, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), pair)
    assert foretell.capture_graph(foretell.step(model, optimizer, loss, pair)).ops == foretell.capture_graph(plain).ops
    with pytest.raises(WorkloadError, match="no pair"):
        foretell.step(model, optimizer, loss, {"x": pair[0], "y": pair[1]})


def test_a_forecast_shows_itself_in_a_notebook() -> None:
    model = nn.Linear(8, 8)
    asked = foretell.step(model, None, lambda model, x: model(x), torch.randn(2, 8), name="<b>")
    shown = foretell.forecast(asked, "h100-sxm")._repr_html_()
    assert "Step time" in shown
    assert "&lt;b&gt; on h100-sxm" in shown


def test_a_cell_is_forecast_as_a_script() -> None:
    found: dict[str, Any] = {}

    class Shell:
        def register_magic_function(self, function: Any, kind: str, name: str) -> None:
            found[f"{kind} {name}"] = function

    foretell.load_ipython_extension(Shell())
    cell = """
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert found["cell foretell"]("h100-sxm", cell).workload == "cell"
    with pytest.raises(InputError, match="one cluster"):
        found["cell foretell"]("", cell)
