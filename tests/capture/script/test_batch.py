"""The batch of a step: what its losses were computed from, not what was moved first."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group

import foretell
from foretell.capture.script.batch import Fetch, batch_of
from foretell.capture.script.consumed import Consumed, Source
from foretell.graph.facts import StepFacts
from foretell.graph.notes import Note
from foretell.report.html import page
from foretell.report.terminal import explanation_section, forecast_panel
from tests.capture.script.conftest import Write

START = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = one_step(step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
REPLAY = """
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).cuda()
seen, done = torch.randn(1000, 4), torch.zeros(1000, dtype=torch.int64)
def one_step(step):
    acts = model(torch.randn(1, 4).cuda()).argmax()  # no part of the loss
    chosen = torch.randint(1000, (128,))
    q = model(seen[chosen].cuda()).gather(1, done[chosen].cuda().unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = model(seen[chosen].cuda()).max(1).values
    return F.smooth_l1_loss(q, best)
"""
RESIDENT = """
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10)).cuda()
images, labels = torch.zeros(500, 3, 8, 8, dtype=torch.uint8).cuda(), torch.zeros(500, dtype=torch.int64).cuda()
order = torch.randperm(500, device="cuda")
def one_step(step):
    chosen = order[step * 48:(step + 1) * 48]
    return F.cross_entropy(model(images[chosen].float() / 255), labels[chosen])
"""
SLICED = RESIDENT.replace("images[chosen]", "images[step*24:step*24+24]").replace("[chosen])", "[step*24:step*24+24])")
WHOLE_GRAPH = """
model = nn.Linear(16, 7).cuda()
x, adjacency, y = torch.randn(270, 16).cuda(), torch.eye(270).to_sparse().cuda(), torch.zeros(270, dtype=torch.int64).cuda()
train = torch.arange(140).cuda()
def one_step(step):
    return F.nll_loss(F.log_softmax(torch.spmm(adjacency, model(x)), 1)[train], y[train])
"""
BY_EDGES = """
model = nn.Linear(16, 7).cuda()
x, edges, y = torch.randn(270, 16).cuda(), torch.zeros(2, 1300, dtype=torch.int64).cuda(), torch.zeros(270, dtype=torch.int64).cuda()
train = torch.arange(140).cuda()
def one_step(step):
    h = model(x)
    at = edges[1].unsqueeze(-1).expand(-1, 7)
    out = torch.zeros_like(h).scatter_add(0, at, h.index_select(0, edges[0]))
    return F.cross_entropy(out.index_select(0, train), y.index_select(0, train))
"""
DROPPED_EDGES = """
model = nn.Linear(16, 7).cuda()
x, edges, y = torch.randn(270, 16).cuda(), torch.zeros(2, 1300, dtype=torch.int64).cuda(), torch.zeros(270, dtype=torch.int64).cuda()
def one_step(step):
    left = edges[:, torch.rand(1300, device="cuda") >= 0.3]
    h = model(x)
    out = torch.zeros_like(h).scatter_add(0, left[1].unsqueeze(-1).expand(-1, 7), h.index_select(0, left[0]))
    return F.cross_entropy(out, y)
"""
VIEWS = """
class Pairs(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): return [torch.zeros(3, 8, 8), torch.zeros(3, 8, 8)], 0
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 32)).cuda()
batches = iter(DataLoader(Pairs(), batch_size=12))
def one_step(step):
    views, _ = next(batches)
    out = F.normalize(model(torch.cat(views).cuda()), dim=1)
    alike = out @ out.T
    others = (torch.ones_like(alike) - torch.eye(24, device=alike.device)).bool()
    return F.cross_entropy(alike.masked_select(others).view(24, -1), torch.arange(24).cuda() % 23)
"""
PICTURES = """
class Boxes(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): return torch.zeros(3, 16, 16 + i), {"boxes": torch.zeros(i + 1, 4)}
model = nn.Conv2d(3, 4, 3).cuda()
batches = iter(DataLoader(Boxes(), batch_size=3, collate_fn=lambda samples: tuple(zip(*samples))))
def one_step(step):
    pictures, targets = next(batches)
    found = [model(p.cuda()).mean((1, 2)) for p in pictures]
    return sum((f - t["boxes"].cuda().mean(0)).abs().sum() for f, t in zip(found, targets))
"""
MADE_BATCHES = """
class Batches(Dataset):
    def __len__(self): return 100
    def __getitem__(self, i): return torch.zeros(20, 5), torch.zeros(20)
model = nn.Linear(5, 1).cuda()
batches = iter(DataLoader(Batches(), batch_size=1, collate_fn=lambda samples: samples[0]))
def one_step(step):
    x, y = next(batches)
    return F.mse_loss(model(x.cuda()).squeeze(1), y.cuda())
"""
RAYS = """
model = nn.Linear(6, 3).cuda()
def one_step(step):
    rays, target = torch.randn(2, 100, 3).cuda(), torch.randn(100, 3).cuda()
    return ((model(torch.cat([rays[0], rays[1]], -1)) - target) ** 2).mean()
"""
TIME_FIRST = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(99, 16), nn.LSTM(16, 16), nn.Linear(16, 99)
    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])
model = Model().cuda()
corpus = torch.zeros(500, 6, dtype=torch.int64).cuda()
def one_step(step):
    x, y = corpus[step * 35:step * 35 + 35], corpus[step * 35 + 1:step * 35 + 36]
    return F.cross_entropy(model(x).view(-1, 99), y.reshape(-1))
"""
RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.keys, self.head = nn.Embedding(99, 16), nn.Linear(16, 16), nn.Linear(16, 99)
    def forward(self, x, memory):
        here = self.embedding(x)
        keys = self.keys(torch.cat([memory, here]))
        scores = torch.einsum("ibd,jbd->ijb", here, keys).softmax(1)
        return self.head(torch.einsum("ijb,jbd->ibd", scores, keys)), here.detach()
model = Model().cuda()
corpus, memory = torch.zeros(500, 6, dtype=torch.int64).cuda(), torch.zeros(35, 6, 16).cuda()
def one_step(step):
    global memory
    x, y = corpus[step * 35:step * 35 + 35], corpus[step * 35 + 1:step * 35 + 36]
    out, memory = model(x, memory)
    return F.cross_entropy(out.view(-1, 99), y.reshape(-1), reduction="none").view(35, -1).mean()
"""
LANGUAGE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.block = nn.Embedding(99, 16), nn.Embedding(33, 16), nn.Linear(16, 99)
    def forward(self, x):
        return self.block(self.words(x) + self.places(torch.arange(x.shape[1], device=x.device)))
model = Model().cuda()
def one_step(step):
    text = torch.zeros(5, 33, dtype=torch.int64).cuda()
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
"""
CATEGORIES = """
embedding = nn.Embedding(50, 4)
model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(9 * 4, 1)).cuda()
def one_step(step):
    return F.mse_loss(model(torch.zeros(64, 9, dtype=torch.int64).cuda()).squeeze(1), torch.zeros(64).cuda())
"""
EPISODE = """
model = nn.Linear(4, 2).cuda()
def one_step(step):
    chosen = [model(torch.randn(1, 4).cuda()).log_softmax(1)[0, 0] for _ in range(11)]
    return -(torch.stack(chosen) * torch.ones(11).cuda()).sum()
"""


@pytest.mark.parametrize(
    ("step", "samples", "tokens", "doubt"),
    [
        pytest.param(REPLAY, 128, None, "", id="replay buffer"),
        pytest.param(RESIDENT, 48, None, "", id="chosen on the device"),
        pytest.param(SLICED, 24, None, "", id="sliced on the device"),
        pytest.param(WHOLE_GRAPH, 270, None, "a whole data set or graph", id="whole graph"),
        pytest.param(BY_EDGES, 270, None, "a whole data set or graph", id="whole graph by its edges"),
        pytest.param(
            DROPPED_EDGES, 270, None, "a whole data set or graph", id="whole graph, some of its edges dropped"
        ),
        pytest.param(VIEWS, 12, None, "", id="views"),
        pytest.param(PICTURES, 3, None, "", id="list of pictures"),
        pytest.param(MADE_BATCHES, 20, None, "", id="data set of batches"),
        pytest.param(RAYS, 100, None, "", id="rays"),
        pytest.param(TIME_FIRST, 6, 210, "", id="time first"),
        pytest.param(RECURRENT, 6, 210, "", id="memory of the step before"),
        pytest.param(LANGUAGE, 5, 160, "", id="language"),
        pytest.param(CATEGORIES, 64, None, "", id="categories"),
        pytest.param(EPISODE, 11, None, "", id="episode"),
    ],
)
def test_the_batch_is_what_the_loss_is_computed_from(
    script: Write, step: str, samples: int, tokens: int | None, doubt: str
) -> None:
    graph = foretell.capture_graph(script(START + step + LOOP))
    assert (graph.samples, graph.tokens) == (samples, tokens)
    assert doubt in " ".join(c.text for c in graph.caveats if c.code == "batch-assumed")
    assert bool(doubt) == any(c.code == "batch-assumed" for c in graph.caveats)
    assert ("2 views of each" in graph.facts.notes[0].what) == (step == VIEWS)


def test_a_script_is_its_own_trainer(script: Write) -> None:
    """What published trainers add was not measured on it: its loop was run."""
    job = script(
        START + RAYS.replace(".cuda()\ndef", ".cuda()\nmodel = nn.parallel.DistributedDataParallel(model)\ndef") + LOOP
    )
    answer = foretell.forecast(job, "2xh100-sxm")
    assert answer.plan == "dp=2"
    assert answer.trainer.seconds == 0
    assert not any(caveat.code == "trainer-added" for caveat in answer.caveats)


def test_all_that_was_assumed_is_explained(script: Write, tmp_path: Path) -> None:
    text = (
        "import numpy as np\nassert int(np.fromfile('/nowhere/a.bin', dtype=np.uint8)[0]) == 0\n" + START + RAYS + LOOP
    )
    answer = foretell.forecast(script(text, fake_data=True), "h100-sxm")
    topics = {note.topic: note for note in answer.explanation}
    assert (topics["batch"].taken, topics["precision"].taken) == ("100 samples", "torch-fp32")
    assert "a.bin" in topics["stand-in"].what
    assert answer.to_dict()["explanation"][0]["topic"] == "batch"
    answer.graph.save(tmp_path / "step.graph")
    assert foretell.Graph.load(tmp_path / "step.graph").facts.notes == answer.graph.facts.notes
    again = dataclasses.replace(
        answer, explanation=(Note(topic="stand-in", what="words", taken="65", decides_size=True),)
    )
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(Group(forecast_panel(again), explanation_section([again])))
    shown = console.export_text()
    assert "size rests on words (65)" in shown
    assert "What was assumed" in shown
    assert "size rests on what was assumed: words (65)" in page([again])


def test_a_note_of_a_strangers_file_is_checked() -> None:
    for wrong in ({"topic": "weather"}, {"what": 3}, {"what": "x" * 9999}, {"decides_size": "yes"}):
        with pytest.raises(ValueError, match="note"):
            StepFacts.from_dict({"notes": [{"topic": "value", "what": "x", **wrong}]})


@pytest.mark.parametrize(
    ("shapes", "samples"),
    [(((3, 320), (3, 2, 320)), 3), (((3, 64, 48), (3, 4)), 1)],  # mixtures and their parts; a picture and its boxes
)
def test_a_data_set_that_gives_whole_batches_is_told_from_a_picture(
    shapes: tuple[tuple[int, ...], ...], samples: int
) -> None:
    sources = tuple(Source(shape=shape, is_integer=False, kind="arrived") for shape in shapes)
    consumed = Consumed(sources=sources, ends=(3,), batches=(), lengths=(), sequences=())
    assert batch_of(consumed, [Fetch(loader=1, samples=1)]).samples == samples


def test_what_each_layer_makes_anew_is_no_batch() -> None:
    """The diagonal of a graph of 137 nodes in ten layers, and four windows of its series."""
    shapes = [(4, 168, 137), *[(137, 137)] * 10, (137,), (4, 137)]
    sources = tuple(Source(shape=shape, is_integer=False, kind="arrived") for shape in shapes)
    assert batch_of(Consumed(sources=sources, ends=(4,), batches=(), lengths=(), sequences=()), ()).samples == 4


def test_a_text_that_lies_on_the_device_is_cut_time_first() -> None:
    """And states that recurrent layers begin with are (layers, batch, numbers): their first side is no batch."""
    text = Source(shape=(70, 20), is_integer=True, kind="resident")
    state = Source(shape=(1, 20, 1150), is_integer=False, kind="resident")
    found = batch_of(
        Consumed(sources=(text, state, state), ends=(69, 70, 1400), batches=(20,), lengths=(70,), sequences=()), ()
    )
    assert (found.samples, found.doubt) == (20, "")
    frames = Source(shape=(61, 67), is_integer=False, kind="arrived")
    state = Source(shape=(4, 1, 128), is_integer=False, kind="arrived")
    found = batch_of(Consumed(sources=(frames, state, state), ends=(1,), batches=(1,), lengths=(61,), sequences=()), ())
    assert found.samples == 1


def test_a_batch_that_layers_contradict_is_said_to_be_taken() -> None:
    frames = Source(shape=(61, 67), is_integer=False, kind="arrived")
    of: dict[str, Any] = {"sources": (frames,), "ends": (), "lengths": (7,), "sequences": ()}
    assert batch_of(Consumed(**of, batches=(32,)), ()).doubt == "Recurrent layers or attention have 32."
    assert batch_of(Consumed(**of, batches=(61,)), ()).doubt == batch_of(Consumed(**of, batches=(122,)), ()).doubt == ""
    assert batch_of(Consumed(**of, batches=()), ()).doubt == ""
