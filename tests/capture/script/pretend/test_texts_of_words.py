"""Texts of vocabularies that are not here: the words that the script asks for by name are in them."""

from __future__ import annotations

import foretell
from tests.capture.script.conftest import Write

TOKENIZER = """
import torch
BEGIN, UNKNOWN = "[BOS]", "[UNK]"
words = {}
with open("data/wiki.vocab") as file:
    for i, line in enumerate(file.readlines()):
        words[line.split()[0]] = i
first = words.get(BEGIN, words.get(UNKNOWN))
net = torch.nn.EmbeddingBag(len(words), 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net(torch.tensor([[first] * 6] * 5).cuda()).mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def test_a_vocabulary_has_the_special_words_that_the_script_names(script: Write) -> None:
    graph = foretell.capture_graph(script(TOKENIZER, arguments=("--vocab_size=9000",), fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (5, 9000 * 8)
    said = " ".join(map(str, graph.caveats))
    assert "vocabulary data/wiki.vocab (9,000 words)" in said
    assert "made up" not in said
