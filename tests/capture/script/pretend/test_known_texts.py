"""Corpora have as many different words as are published, and enough text for a step."""

from __future__ import annotations

import pytest

from foretell.capture.script.pretend.files.known_texts import known_text


@pytest.mark.parametrize(
    ("path", "words", "least"),
    [
        ("../data/enwik8/train.txt", 204, 1_000_000),
        ("/data/text8/train.txt", 27, 1_000_000),
        ("data/penn/train.txt", 9_999, 887_000),
    ],
)
def test_a_corpus_has_as_many_words_as_published(path: str, words: int, least: int) -> None:
    known = known_text(path)
    assert known is not None
    text = known.text().split()
    assert len(set(text)) == words
    assert len(text) >= least - 20
    if "enwik8" in path:
        assert all(0 <= int(word) < 256 and word != "10" for word in set(text))  # a new line is one
    parts = known_text(path.replace("train", "test"))
    assert parts is not None
    assert set(parts.text().split()) <= set(text)
