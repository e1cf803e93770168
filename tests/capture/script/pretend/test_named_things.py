"""Metrics, encodings, models and sets of graphs by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import foretell
from foretell.capture.script.pretend.graph_sets import SETS, _known
from foretell.capture.script.pretend.named_things import Encoding, Metric
from tests.capture.script.conftest import Write


def test_a_metric_answers_under_its_own_names() -> None:
    assert Metric("seqeval").compute(predictions=[], references=[])["overall_f1"] == 0.0
    assert Metric("wer").compute() == 0.0
    assert len(Metric("mean_iou").compute(num_labels=3)["per_category_iou"]) == 3
    assert Metric("of mine").compute() == {"of mine": 0.0}


def test_an_encoding_has_its_vocabulary() -> None:
    assert (Encoding("gpt2").n_vocab, Encoding("cl100k_base").n_vocab) == (50257, 100277)
    assert len(Encoding("gpt2").encode("the quick brown fox", allowed_special="all")) == 5
    assert Encoding("gpt2").encode("<|endoftext|>") == [50256]


def test_graphs_are_those_that_the_arguments_name() -> None:
    assert _known("Planetoid", ("/data", "PubMed"), {}) == SETS["pubmed"]
    assert _known("TUDataset", ("/data",), {"name": "ENZYMES"}) == SETS["enzymes"]
    assert _known("ZINC", ("/data",), {"subset": True}) == SETS["zinc-subset"]
    assert _known("Reddit", ("/data",), {}) == SETS["reddit"]
    assert _known("TUDataset", ("/data", "Nothing"), {}) is None


LIBRARIES = """
    import torch, evaluate, tiktoken, nltk
    nltk.download("punkt")
    metric, encoding = evaluate.load("accuracy"), tiktoken.get_encoding("gpt2")
    model = torch.nn.Embedding(encoding.n_vocab, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        tokens = torch.tensor([encoding.encode("a text of some words")] * 2).cuda()
        model(tokens).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        metric.add_batch(predictions=tokens, references=tokens); metric.compute()["accuracy"]
"""


@pytest.mark.skipif("evaluate" in sys.modules, reason="the library itself is there")
def test_what_libraries_would_fetch_is_stood_in_for(script: Write, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    for name, text in {
        "evaluate": "def load(path, *args):\n    raise ConnectionError(path)\n",
        "tiktoken": "def get_encoding(name):\n    raise ConnectionError(name)\n",
        "nltk": "def download(name):\n    raise ConnectionError(name)\n",
    }.items():
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text(text)
    found = f"    import sys; sys.path.insert(1, {str(installed)!r})\n"
    graph = foretell.capture_graph(script(found + LIBRARIES, fake_data=True))
    assert graph.facts.parameters == 50257 * 4
    (text,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    assert "metric accuracy" in text
    assert "encoding gpt2 of tiktoken" in text


GRAPHS = """
    import torch
    from torch_geometric.datasets import Planetoid, TUDataset
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv
    small = TUDataset("/nowhere", name="MUTAG").shuffle()
    assert len(small) == 188 and next(iter(DataLoader(small[:64], batch_size=32))).x.shape == (576, 7)
    cora = Planetoid("/nowhere", "Cora")
    data = cora[0].to("cuda")
    model = GCNConv(cora.num_features, cora.num_classes).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        out = model(data.x, data.edge_index)
        torch.nn.functional.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_graphs_have_their_published_sizes(script: Write) -> None:
    pytest.importorskip("torch_geometric")
    graph = foretell.capture_graph(script(GRAPHS, fake_data=True))
    assert graph.facts.parameters == 1433 * 7 + 7
