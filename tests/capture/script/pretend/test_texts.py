"""Scripts with torchtext, of its older and newer versions, run beside any torch."""

from __future__ import annotations

import textwrap

import pytest

import foretell
from tests.capture.script.conftest import Write

MODEL = """
    class Model(torch.nn.Module):
        def __init__(self, words, classes):
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(words, 8), torch.nn.Linear(8, classes)
        def forward(self, tokens):
            return self.head(self.embedding(tokens).mean(0))
    def train(model, batches):
        model.cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for tokens, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
FIELDS = """
    import torch
    from torchtext import data, datasets
    TEXT = data.Field(tokenize="spacy", lower=True, include_lengths=True)
    LABEL = data.LabelField(dtype=torch.long)
    train_data, test_data = datasets.IMDB.splits(TEXT, LABEL)
    train_data, valid_data = train_data.split(random_state=None)
    TEXT.build_vocab(train_data, max_size=25_000, vectors="glove.6B.100d")
    LABEL.build_vocab(train_data)
    iterator, _, _ = data.BucketIterator.splits((train_data, valid_data, test_data), batch_size=16, device=torch.device("cuda"))
    assert TEXT.vocab.vectors.shape[1] == 100
    train(Model(len(TEXT.vocab), len(LABEL.vocab)), ((b.text[0], b.label) for b in iterator))
"""
ROWS = """
    import torch, torchtext
    from torchtext.data.utils import get_tokenizer
    from torchtext.vocab import build_vocab_from_iterator
    tokenizer = get_tokenizer("basic_english")
    vocab = build_vocab_from_iterator((tokenizer(text) for _, text in torchtext.datasets.AG_NEWS(split="train")), specials=["<unk>"])
    vocab.set_default_index(vocab["<unk>"])
    def collate(rows):
        tokens = [torch.tensor(vocab(tokenizer(text))) for _, text in rows]
        return torch.nn.utils.rnn.pad_sequence(tokens).cuda(), torch.tensor([label - 1 for label, _ in rows]).cuda()
    rows = list(torchtext.datasets.AG_NEWS(split="train"))
    loader = torch.utils.data.DataLoader(rows, batch_size=16, collate_fn=collate)
    train(Model(len(vocab), 4), loader)
"""
PIECES = """
    import torch
    from torchtext.legacy import data, datasets
    TEXT = data.Field()
    parts = datasets.PennTreebank.splits(TEXT)
    TEXT.build_vocab(parts[0])
    iterator, _, _ = data.BPTTIterator.splits(parts, batch_size=16, bptt_len=35, device=0, repeat=False)
    class Words(Model):
        def forward(self, tokens):
            return self.head(self.embedding(tokens)).flatten(0, 1)
    train(Words(len(TEXT.vocab), len(TEXT.vocab)), ((b.text, b.target.flatten()) for b in iterator))
"""


@pytest.mark.parametrize(
    ("text", "words", "classes"),
    [(FIELDS, 25_002, 2), (ROWS, 95_811, 4), (PIECES, 10_001, 10_001)],
    ids=["fields", "rows", "pieces"],
)
def test_a_vocabulary_is_as_large_as_the_published_one(script: Write, text: str, words: int, classes: int) -> None:
    head, _, rest = textwrap.dedent(text).lstrip().partition("\n")
    graph = foretell.capture_graph(script(f"{head}\n{textwrap.dedent(MODEL)}\n{rest}", fake_data=True))
    assert graph.facts.parameters == words * 8 + 9 * classes
    assert text is PIECES or graph.samples == 16
    assert any("texts of" in caveat.text for caveat in graph.caveats)
