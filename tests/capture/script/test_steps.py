"""A capture that gets to the step: evaluation, play and preparation are cut short, and the step is what it was."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import foretell
from foretell.capture.script import passes
from foretell.capture.script.findings import Findings, StandIn
from foretell.sources.scripts import Script
from tests.capture.script.conftest import Write

MODEL = """
    import torch
    from torch import nn
    runs = 0
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        def forward(self, x):
            global runs
            runs += 1
            return x + self.second(torch.relu(self.first(x)))
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
        def forward(self, x, y=None):
            for block in self.blocks:
                x = block(x)
            return x, None if y is None else ((x - y) ** 2).mean()
    model = Net().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
"""
STEP = """
        loss = model(torch.randn(4, 8).to("cuda"), torch.randn(4, 8).to("cuda"))[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def ops(graph: foretell.Graph) -> list[Any]:
    return [(op.signature, op.phase, op.module, op.times) for op in graph.ops]


def caveats(graph: foretell.Graph) -> dict[str, str]:
    return {caveat.code: caveat.text for caveat in graph.caveats}


def test_evaluation_before_and_between_steps_is_cut_short_and_no_part_of_the_step(script: Write) -> None:
    plain = foretell.capture_graph(script(f"{MODEL}    for i in range(9):{STEP}"))
    graph = foretell.capture_graph(
        script(f"""{MODEL}
    @torch.no_grad()
    def evaluate():
        model.eval()
        losses = torch.zeros(200)
        for k in range(200):
            losses[k] = model(torch.randn(16, 8).to("cuda"), torch.randn(16, 8).to("cuda"))[1].item()
        model.train()
        return losses.mean()
    for i in range(9):
        evaluate()
        assert runs <= 3 * (2 + 3), runs{STEP}""")
    )
    assert ops(graph) == ops(plain)
    assert (graph.samples, graph.facts.inputs) == (4, (4, 8))
    assert "600 forward passes" in caveats(graph)["evaluation-not-in-step"]


@pytest.mark.parametrize("net", ["model", "copy.deepcopy(model)"])
def test_what_a_module_runs_again_and_again_is_cut_short_too(script: Write, net: str) -> None:
    plain = foretell.capture_graph(script(f"{MODEL}    for i in range(9):{STEP}"))
    graph = foretell.capture_graph(
        script(f"""{MODEL}
    class Sampler(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net
        def forward(self, x):
            for _ in range(200):
                x = x + self.net(x)[0]
            return x
    import copy
    sampler = Sampler({net}).eval()
    for i in range(9):
        with torch.no_grad():
            assert sampler(torch.randn(16, 8).to("cuda")).shape == (16, 8)
        model.train()
        assert runs <= 3 * (12 + 64) * (i + 1), runs{STEP}""")
    )
    assert [op.signature for op in graph.ops] == [op.signature for op in plain.ops]


def test_micro_steps_that_equal_those_before_are_not_run(script: Write) -> None:
    text = f"""{MODEL}
    for i in range(9):
        assert runs <= 3 * 2 * i or MICRO < 4, runs
        for micro in range(MICRO):
            x, y = torch.randn(4, 8).to("cuda"), torch.randn(4, 8).to("cuda")
            _, loss = model(x, y)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    """
    few, many = (foretell.capture_graph(script(text.replace("MICRO", str(n)))) for n in (2, 40))
    assert (few.grad_accumulation, many.grad_accumulation) == (2, 40)
    assert [each[:3] for each in ops(few)] == [each[:3] for each in ops(many)]
    assert {op.times for op in many.ops} == {1, 39}


def test_micro_steps_whose_loss_the_model_keeps_are_all_run(script: Write) -> None:
    text = f"""{MODEL}
    class Keeps(Net):
        def forward(self, x):
            out, self.loss = super().forward(x, x)
            return out
    model = Keeps().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(9):
        for micro in range(5):
            model(torch.randn(4, 8).to("cuda"))
            model.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    assert foretell.capture_graph(script(text)).grad_accumulation == 5


def test_a_text_that_gets_longer_and_a_loader_that_is_evaluated_end_soon(script: Write) -> None:
    graph = foretell.capture_graph(
        script(f"""{MODEL}
    from torch.utils.data import DataLoader, TensorDataset
    model.eval()
    with torch.no_grad():
        text = torch.zeros(1, 8).to("cuda")
        for _ in range(100):
            text = torch.cat([text, model(text)[0][-1:]])
    assert text.shape == (101, 8) and runs <= 3 * 4, runs
    loader = DataLoader(TensorDataset(torch.randn(4000, 8)), batch_size=8)
    taken = 0
    for (x,) in loader:
        with torch.set_grad_enabled(False):
            model(x.to("cuda"))
        taken += 1
    assert taken == 3 and len(loader) == 500
    def endless():
        while True:
            for (x,) in loader:
                yield x
    with torch.no_grad():
        batches, others = endless(), iter(loader)
        for _ in range(20):
            model(next(batches).to("cuda"))
            model(next(others)[0].to("cuda"))
    model.train()
    for (x,) in loader:
        loss = model(x.to("cuda"))[0].sum()
        loss.backward()
        optimizer.step()""")
    )
    assert graph.samples == 8
    assert "640 forward passes" in caveats(graph)["evaluation-not-in-step"]


def test_what_a_step_computes_without_gradients_is_part_of_it(script: Write) -> None:
    """As of a teacher."""
    text = f"""{MODEL}
    import copy
    teacher = copy.deepcopy(model).eval()
    for i in range(9):
        with torch.no_grad():
            for _ in range(TIMES):
                target = teacher(torch.randn(4, 8).to("cuda"))[0]
        loss = model(torch.randn(4, 8).to("cuda"), target)[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    once, often = (foretell.capture_graph(script(text.replace("TIMES", str(n)))) for n in (1, 12))
    forward = [sum(op.signature.name == "aten.addmm" for op in g.ops if op.phase == "forward") for g in (once, often)]
    assert forward == [6 + 6, 12 * 6 + 6]


def test_play_between_rounds_of_updates_is_counted_and_not_in_the_step(script: Write) -> None:
    graph = foretell.capture_graph(
        script(f"""{MODEL}
    for round in range(9):
        with torch.no_grad():
            values = torch.stack([model(torch.randn(3, 8).to("cuda"))[0] for _ in range(64)])
        for update in range(1):{STEP.replace("        ", "            ")}""")
    )
    assert graph.samples == 4
    assert sum(op.signature.name == "aten.addmm" for op in graph.ops if op.phase == "forward") == 6
    assert "64 forward passes of 3×8" in caveats(graph)["rollouts-not-in-step"]


def test_updates_written_by_hand_end_a_step(script: Write) -> None:
    """By a loop over parameters, over what they store, or over tensors of no module."""
    text = """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).cuda()
        weights = list(net.parameters())
        for i in range(9):
            net.zero_grad()
            loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
            loss.backward()
            UPDATE
    """
    by_hand = foretell.capture_graph(script(text.replace("UPDATE", "for w in weights: w.data -= 0.1 * w.grad")))
    under_no_grad = foretell.capture_graph(
        script(text.replace("UPDATE", "with torch.no_grad(): [w.sub_(0.1 * w.grad) for w in weights]"))
    )
    for graph in (by_hand, under_no_grad):
        updates = [op for op in graph.ops if op.phase == "optimizer" and op.signature.name == "aten.sub_"]
        assert (len(updates), graph.samples, graph.facts.parameters, len(graph.gradients)) == (4, 4, 280, 4)


def test_a_copy_of_what_is_trained_is_no_second_model(script: Write) -> None:
    graph = foretell.capture_graph(
        script(f"""{MODEL}
    import copy
    target = copy.deepcopy(model)
    for i in range(9):
        with torch.no_grad():
            wanted = target(torch.randn(4, 8).to("cuda"))[0]{STEP}""")
    )
    assert graph.facts.parameters == 3 * (8 * 32 + 32 + 32 * 8 + 8)


def test_a_text_that_transformers_generates_is_as_long_as_wanted_after_a_few_passes(script: Write) -> None:
    graph = foretell.capture_graph(
        script("""
        import torch, transformers
        config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        passes = 0
        forward = model.forward
        def count(*args, **kwargs):
            global passes
            passes += 1
            return forward(*args, **kwargs)
        model.forward = count
        for i in range(9):
            model.eval()
            text = model.generate(torch.randint(1, 50, (2, 6)).cuda(), max_new_tokens=512, pad_token_id=0)
            assert text.shape == (2, 518), text.shape
            model.train()
            x = torch.randint(0, 50, (4, 16)).cuda()
            model(x, labels=x).loss.backward()
            optimizer.step(); optimizer.zero_grad()
            assert passes <= 3 * (i + 1), passes
        """)
    )
    assert (graph.samples, graph.tokens) == (4, 64)
    assert sum(op.signature.name == "aten.embedding" for op in graph.ops) == 2
    assert "1,536 forward passes" in caveats(graph)["evaluation-not-in-step"]


def test_an_update_may_write_parts_of_parameters(script: Write) -> None:
    graph = foretell.capture_graph(
        script("""
        import torch

        class Sliced(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {})

            @torch.no_grad()
            def step(self):
                for parameter in self.param_groups[0]["params"]:
                    part = parameter[:4]
                    part.mul_(0.9)
                    part.add_(parameter.grad[:4], alpha=-0.1)

        model = torch.nn.Linear(8, 8).cuda()
        optimizer = Sliced(model.parameters())
        for _ in range(5):
            model(torch.ones(2, 8).cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
        """)
    )
    assert (graph.facts.parameters, graph.samples) == (72, 2)


def test_gradients_of_the_step_before_do_not_rest_beside_those_of_this_one(script: Write) -> None:
    text = """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = torch.utils.data.TensorDataset(torch.randn(64, 1024))
        for (x,) in torch.utils.data.DataLoader(data, batch_size=8):
            BEFORE
            loss = model(x.cuda()).mean()
            loss.backward()
            optimizer.step()
            AFTER
    """
    clear = "optimizer.zero_grad()"
    peaks = [
        foretell.forecast(script(text.replace("BEFORE", first).replace("AFTER", last)), "h100-sxm").memory.allocated
        for first, last in ((clear, "pass"), ("pass", clear))
    ]
    assert peaks[0] == peaks[1]


def test_a_script_that_misses_hundreds_of_files_is_told_of_a_few() -> None:
    missing = tuple(StandIn(what=f"pictures of {'folder/' * 10}{n}") for n in range(400))
    caveat = next(c for c in Findings(stand_ins=missing).caveats(Script(path="train.py")) if c.code == "fake-data")
    assert "folder/11" in caveat.text
    assert "folder/12" not in caveat.text
    assert "388 more, which --explain lists" in caveat.text


def test_a_hook_that_only_lets_gradients_pass_lets_micro_steps_be_left_out() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4))
    seen: list[object] = []
    model[0].register_forward_hook(lambda module, args, out: out.requires_grad_(True))
    assert not passes._has_hooks(model)
    model[1].register_forward_hook(lambda module, args, out: seen.append(out))
    assert passes._has_hooks(model)
