"""What a script makes the host do in a step: counted, and part of the forecast."""

from __future__ import annotations

from dataclasses import replace

import pytest

import foretell
from foretell.graph.facts import HostWork, StepFacts
from tests.capture.script.conftest import Write

LOOP = """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for {batch}
            model(x).sum().backward()
            optimizer.step()
"""


def work(graph: foretell.Graph) -> HostWork:
    assert graph.facts.host is not None
    return graph.facts.host


def test_a_batch_drawn_on_the_host_takes_its_time(script: Write) -> None:
    start = "        import torch\n        model = torch.nn.Linear(1000, 8).cuda()\n"
    batch = "step in range(9):\n            x = torch.randn(4000, 1000{where}){moved}"
    drawn = foretell.capture_graph(script(start + LOOP.format(batch=batch.format(where="", moved=".cuda()"))))
    assert (work(drawn).drawn, work(drawn).copied, work(drawn).waits) == (4_000_000, 16_000_000, True)
    there = foretell.capture_graph(script(start + LOOP.format(batch=batch.format(where=", device='cuda'", moved=""))))
    assert (work(there).drawn, work(there).copied, work(there).waits) == (0, 0, False)
    seconds = [foretell.forecast(graph, "h200").step_time.seconds for graph in (drawn, there)]
    assert seconds[0] > seconds[1] + 4_000_000 * 1e-9  # no thread draws a thousand million numbers in a second


@pytest.mark.parametrize(
    ("workers", "pinned", "how", "expected"),
    [
        (0, False, "", HostWork(drawn=32, copied=128, waits=True)),
        (4, False, "", HostWork(copied=128, waits=True)),
        (4, True, "", HostWork(pinned=128, waits=True)),
        (4, True, "non_blocking=True", HostWork(pinned=128)),
    ],
)
def test_workers_of_a_loader_work_for_themselves(
    script: Write, workers: int, pinned: bool, how: str, expected: HostWork
) -> None:
    start = f"""
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1000
            def __getitem__(self, i):
                return torch.rand(8)
        model = torch.nn.Linear(8, 8).cuda()
        loader = torch.utils.data.DataLoader(Data(), 4, num_workers={workers}, pin_memory={pinned})
"""
    batch = f"x in loader:\n            x = x.to('cuda', {how})"
    found = work(foretell.capture_graph(script(start + LOOP.format(batch=batch))))
    assert replace(found, ops=0, moved=0) == expected  # how many ops there are is the loader's to know


def test_work_of_a_host_is_read_back_or_refused() -> None:
    some = HostWork(ops=3, drawn=5, moved=7, copied=11, pinned=13, waits=True)
    text = "ops=3,drawn=5,moved=7,copied=11,pinned=13,waits=1"
    assert StepFacts(host=some).to_provenance() == {"step.host": text}
    assert StepFacts.from_provenance({"step.host": text}).host == some
    assert StepFacts.from_dict(StepFacts(host=some).to_dict()).host == some
    assert StepFacts.from_provenance({}) == StepFacts()
    for wrong in ("", "ops=-1", f"{text},ops=1", text.replace("5", "5e9")):
        with pytest.raises(ValueError, match=r"step\.host"):
            StepFacts.from_provenance({"step.host": wrong})
    for entries in ({"ops": -1}, {"ops": 5e9}, {"waits": 1}):
        with pytest.raises(ValueError, match="host work"):
            StepFacts.from_dict({"host": entries})


def test_an_answer_says_what_was_asked(script: Write) -> None:
    start = "        import torch\n        model = torch.nn.Linear(16, 8).cuda()\n"
    asked = script(start + LOOP.format(batch="step in range(9):\n            x = torch.randn(4, 16).cuda()"))
    said = foretell.forecast(asked, "h200").step
    assert (said.inputs, said.optimizer, said.parameters) == ("4×16", "SGD", 16 * 8 + 8)
