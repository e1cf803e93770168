"""Agents that act with gradients on: what they drop is not run again and again, what they keep is, and the step is the same."""

from __future__ import annotations

import foretell
from tests.capture.script.conftest import Write
from tests.capture.script.test_steps import ops

AGENT = """
    import torch
    from torch import nn
    runs = 0
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 32), nn.Linear(32, 2)
        def forward(self, x):
            global runs
            runs += len(x) == 1
            return self.second(torch.relu(self.first(x)))
    model = Net().to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    def learn(*more):
        loss = model(torch.zeros(16, 4).to("cuda")).square().mean() + sum(more)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PLAIN = "    for _ in range(9): learn()"


def test_actions_that_are_dropped_are_not_run_again(script: Write) -> None:
    graph = foretell.capture_graph(
        script(f"""{AGENT}
    for _ in range(300):
        model(torch.zeros(1, 4).to("cuda")).argmax().item()
    assert runs < 40, runs
{PLAIN}""")
    )
    assert ops(graph) == ops(foretell.capture_graph(script(f"{AGENT}{PLAIN}")))


def test_actions_that_are_dropped_are_not_run_again_layer_by_layer(script: Write) -> None:
    foretell.capture_graph(
        script(f"""{AGENT}
    second = model.second.forward
    def count(x):
        global runs
        runs += len(x) == 1
        return second(x)
    model.second.forward = count
    for _ in range(300):
        model.forward(torch.zeros(1, 4).to("cuda")).argmax().item()
    assert runs < 340, runs  # the network's own 300, and few of its layer
{PLAIN}""")
    )


def test_actions_that_are_learnt_from_later_are_run(script: Write) -> None:
    graph = foretell.capture_graph(
        script(f"""{AGENT}
    for _ in range(9):
        before = runs
        learn(*[model(torch.zeros(1, 4).to("cuda")).log_softmax(1)[0, 0] for _ in range(60)])
        assert runs == before + 60, runs""")
    )
    assert sum("addmm" in str(op.signature) for op in graph.ops if op.phase == "forward") == 2 * 61


def test_an_action_that_is_learnt_from_after_all_is_run_in_another_run(script: Write) -> None:
    graph = foretell.capture_graph(
        script(f"""{AGENT}
    for _ in range(9):
        for _ in range(40):
            value = model(torch.zeros(1, 4).to("cuda")).max()
        learn(value)""")
    )
    assert sum("addmm" in str(op.signature) for op in graph.ops if op.phase == "forward") >= 2 * 2
