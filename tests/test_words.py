"""Identifiers are plain nouns and verbs: words that say nothing of what a thing is stay out of the code.

Readers of old files have such words as text, the keys of those files, which are no identifiers.

`python -m tests.test_words` lists what there is of them, file by file.
"""

from __future__ import annotations

import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for top in ("src/foretell", "bench/src") for path in (ROOT / top).rglob("*.py"))
FORBIDDEN = frozenset("asked said told beside held elsewhere lost".split())
CLASSES = frozenset("Found Kept Taken Drawn".split())
MODULES = frozenset("several response description copies beside live masters moved cuts stretches".split())


def parts_of(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def identifiers(path: Path) -> Iterator[str]:
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NAME:
                yield token.string


def forbidden_in(path: Path) -> Counter[str]:
    return Counter(
        name
        for name in identifiers(path)
        if FORBIDDEN & set(parts_of(name)) or name in CLASSES or name.split("_")[-2:] in (["", "MOST"], ["MOST"])
    )


def test_words_are_found_in_names() -> None:
    assert parts_of("is_held") == ["is", "held"]
    assert parts_of("AskedOfHTTPServer") == ["asked", "of", "http", "server"]
    assert parts_of("beholden") == ["beholden"]


def test_no_name_has_a_forbidden_word() -> None:
    assert {path: found for path in FILES if (found := forbidden_in(path))} == {}
    assert [path for path in FILES if path.stem in MODULES] == []


if __name__ == "__main__":
    total = 0
    for each in FILES:
        if found := forbidden_in(each):
            total += found.total()
            print(f"{each.relative_to(ROOT)}: {', '.join(f'{name} {times}' for name, times in found.most_common())}")
        if each.stem in MODULES:
            print(f"{each.relative_to(ROOT)}: the module's name")
    print(total)
