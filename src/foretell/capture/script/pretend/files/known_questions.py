"""Files of questions whose answers lie in a text, in the form in which SQuAD is published and many others are."""

from __future__ import annotations

import functools
import json
import os
import re
from typing import Any, Final

_NAME: Final = re.compile(r"^((train|dev|test)-v\d\.\d|squad\w*(-v?\d\.\d)?)\.json$", re.IGNORECASE)
_ARTICLES, _PARAGRAPHS, _QUESTIONS = 32, 16, 4  # of an article, and of a paragraph
_WORDS: Final = 120  # of a paragraph, as most have
_ANSWER: Final = 3  # words
QUESTIONS: Final = _ARTICLES * _PARAGRAPHS * _QUESTIONS
WORDS: Final = 10_000  # that differ


def has_questions(path: str) -> bool:
    return _NAME.search(os.path.basename(path)) is not None


@functools.cache
def questions(path: str) -> str:
    """The file: every answer is where it says that it begins."""
    newer = re.search(r"v?2\.0", os.path.basename(path)) is not None
    articles = [
        {
            "title": f"Title_{article}",
            "paragraphs": [_paragraph(article * _PARAGRAPHS + i, newer) for i in range(_PARAGRAPHS)],
        }
        for article in range(_ARTICLES)
    ]
    return json.dumps({"version": "v2.0" if newer else "1.1", "data": articles})


def _paragraph(number: int, newer: bool) -> dict[str, Any]:
    words = [f"word{(number * _WORDS + i) % WORDS}" for i in range(_WORDS)]
    context = " ".join(words) + "."
    posed = []
    for i in range(_QUESTIONS):
        first = 7 * i + 2
        start = len(" ".join(words[:first])) + 1
        answer = {"text": " ".join(words[first : first + _ANSWER]), "answer_start": start}
        one: dict[str, Any] = {
            "id": f"{number:08x}{i:04x}",
            "question": f"What comes after {words[first - 1]} and before {words[first + _ANSWER]}?",
            "answers": [answer],
        }
        posed.append(one | {"is_impossible": False} if newer else one)
    return {"context": context, "qas": posed}
