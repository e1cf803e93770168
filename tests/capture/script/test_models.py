"""What counts as a script's parameters: those of the modules that it trains, with what is frozen in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import foretell
from foretell.report.findings import step_words

Write = Callable[..., foretell.Script]

PARTS = """
import torch
from torch import nn

encoder = nn.Linear(8, 8).cuda().requires_grad_(False)
teacher = nn.Linear(8, 16).cuda()
model = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 4)).cuda()
scale = nn.Parameter(torch.ones(1, device="cuda"))
nn.Linear(8, 3).cuda()(torch.randn(2, 8).cuda())  # once, before the loop
optimizer = torch.optim.SGD([*model[1].parameters(), scale], lr=0.1)
for _ in range(9):
    x = torch.randn(6, 8).cuda()
    with torch.no_grad():
        seen, wanted = encoder(x), teacher(x)
    loss = (model(seen) * scale).pow(2).mean() + wanted.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_only_runs_forward_is_named_apart(script: Write) -> None:
    graph = foretell.capture_graph(script(PARTS))
    assert graph.facts.parameters == 8 * 8 + 8 + 8 * 4 + 4 + 1
    assert graph.facts.untrained == 8 * 8 + 8 + 8 * 16 + 16
    assert foretell.Graph.from_bytes(graph.to_bytes()).facts == graph.facts
    forecast = foretell.forecast(graph, on="h100-sxm")
    assert "216 more in modules that are not trained" in step_words(forecast)
    assert forecast.to_dict()["step"]["untrained"] == 216


@pytest.mark.parametrize(
    ("updated", "numbers", "others"),
    [
        ("[image]", 3 * 6 * 6, 4 * 3 * 9 + 4),  # a picture that is painted: the net is not trained
        ("masters", 4 * 3 * 9 + 4, None),  # copies of what the net has, kept by the optimizer
    ],
)
def test_tensors_that_no_module_owns(script: Write, updated: str, numbers: int, others: int | None) -> None:
    graph = foretell.capture_graph(
        script(f"""
        import torch
        from torch import nn

        net = nn.Conv2d(3, 4, 3).cuda()
        image = torch.randn(1, 3, 6, 6, device="cuda", requires_grad=True)
        masters = [p.detach().clone().requires_grad_() for p in net.parameters()]
        optimizer = torch.optim.SGD({updated}, lr=0.1)
        for _ in range(9):
            x = torch.randn(1, 3, 6, 6).cuda()
            (net(image) - net(x)).pow(2).mean().backward()
            for copy, p in zip(masters, net.parameters()):
                copy.grad = p.grad.clone()
            optimizer.step()
        """)
    )
    assert (graph.facts.parameters, graph.facts.untrained) == (numbers, others)
