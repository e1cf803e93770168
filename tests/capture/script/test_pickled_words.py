"""A pickled vocabulary is what the script uses it as: words by number, numbers by word, or an object with both."""

from __future__ import annotations

import pickle

import pytest

import foretell
from foretell.capture.script.pretend.files.pickled_words import COUNT, PickledWords, is_of_words, words_in
from tests.capture.script.conftest import Write


@pytest.mark.parametrize("name", ["vocab.pkl", "word2id.pkl", "idx2word.p", "wordmap.pickle", "char_to_int.pkl"])
def test_files_of_words_are_known_by_their_names(name: str) -> None:
    assert is_of_words(name)
    assert not is_of_words("features.pkl")


def test_it_is_what_it_is_used_as() -> None:
    words = pickle.loads(pickle.dumps(PickledWords()))
    assert len(words) == words.n_words == len({word: i for i, word in enumerate(words)}) == COUNT
    assert words[words[17]] == 17
    assert words("<pad>") == words.stoi["<pad>"] == 0
    assert 0 <= words["a word that nobody knows"] < COUNT
    assert words[:2] == ["<pad>", "<unk>"]
    word2id, id2word = words
    assert id2word[word2id["<unk>"]] == "<unk>"
    with pytest.raises(AttributeError):
        words.shape  # noqa: B018


LIST_OF_WORDS = """
    import os, pickle, numpy as np, torch
    with open("data/vocab.pkl", "rb") as file:
        id2word = pickle.load(file)
    word2id = dict([(id2word[i], i) for i in range(len(id2word))])
    vectors = np.load("data/embedding.npy")
    assert vectors.shape[0] == len(word2id)
    net = torch.nn.Embedding(*vectors.shape).cuda()
    net.weight.data.copy_(torch.from_numpy(vectors))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.full((8, 5), word2id.get("the", 0)).cuda()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_words_are_as_many_as_their_vectors(script: Write) -> None:
    graph = foretell.capture_graph(script(LIST_OF_WORDS, fake_data=True))
    assert graph.facts is not None
    assert (graph.samples, graph.facts.parameters) == (8, COUNT * 300)


@pytest.mark.parametrize(
    ("name", "count"), [("data/2014/vocab_32000.pkl", 32_000), ("en.60000.pth", 60_000), ("vocab-2013.pkl", COUNT)]
)
def test_a_name_may_say_how_many_words_there_are(name: str, count: int) -> None:
    assert words_in(name) == count


SAVED = """
    import torch
    data = torch.load("data/mono/train.en.3000.pth")
    words = data["dico"]
    assert len(words) == 3000 and words.index("<pad>") != words.index("</s>") and words == torch.load("data/mono/train.en.3000.pth")["dico"]
    net = torch.nn.Embedding(len(words), 4, padding_idx=words.index("<pad>")).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.full((8, 5), words.index("the")).cuda()).mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_a_dictionary_in_a_saved_file_has_words(script: Write) -> None:
    graph = foretell.capture_graph(script(SAVED, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (8, 12_000)
    assert "vocabulary 'dico' in data/mono/train.en.3000.pth (3,000 words)" in " ".join(c.text for c in graph.caveats)
