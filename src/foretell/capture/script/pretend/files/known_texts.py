"""Texts that many scripts read, as they are published: CelebA's tables, corpora with as many words as they have."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foretell.capture.script.pretend.files.known_questions import QUESTIONS, WORDS, has_questions, questions
from foretell.capture.script.pretend.files.known_views import CAMERA, PAIRS, camera, is_of_a_camera, is_of_pairs, pairs

_FACES: Final = 202_599
_PEOPLE: Final = 10_177
_ATTRIBUTES: Final = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair Blurry "
    "Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks Sideburns "
    "Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie Young"
)  # fmt: skip
_LANDMARKS: Final = (
    "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownText:
    """What is in a well-known file, in words, and the text."""

    assumed: str
    text: Callable[[], str]
    decides_size: bool = False  # as where a vocabulary is made of its words


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corpus:
    """A corpus: different words (the end of a line apart), and how many of them each part has."""

    words: int
    parts: dict[str, int]
    first: tuple[str, ...] = ("<unk>", "N")
    others: Callable[[int], str] = "w{}".format
    written: int = 3_000_000  # words that are written out


def _letter(number: int) -> str:
    return chr(ord("a") + number)


_CHARACTERS: Final = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
_CORPORA: Final = {
    r"penn|ptb": _Corpus(words=9_999, parts={"train": 887_521, "valid": 70_390, "test": 78_669}),
    r"wikitext-?_?103|wt103": _Corpus(words=267_734, parts={"train": 103_227_021, "valid": 217_646, "test": 245_569}),
    r"wikitext-?_?2|wt2": _Corpus(words=33_277, parts={"train": 2_051_910, "valid": 213_886, "test": 241_211}),
    # As the scripts that prepare them for language models write them: bytes as numbers, letters with blanks in between.
    "enwik8": _Corpus(
        words=204, parts=_CHARACTERS, first=("32", "101"), others=lambda i: str(i + 11), written=1_000_000
    ),
    "text8": _Corpus(words=27, parts=_CHARACTERS, first=("_", "e"), others=_letter, written=1_000_000),
}


def known_text(path: str) -> KnownText | None:
    name = os.path.basename(path).lower()
    if name.startswith("list_attr_celeba"):
        return KnownText(assumed=f"{_FACES:,} faces, 40 attributes", text=functools.partial(_attributes, name))
    if name.startswith("list_eval_partition"):
        return KnownText(assumed=f"{_FACES:,} faces", text=lambda: _faces(lambda i: str((i > 162_770) + (i > 182_637))))
    if name.startswith("identity_celeba"):
        return KnownText(assumed=f"{_PEOPLE:,} people", text=lambda: _faces(lambda i: str(1 + i % _PEOPLE)))
    if name.startswith("list_bbox_celeba"):
        head = f"{_FACES}\nimage_id x_1 y_1 width height\n"
        return KnownText(assumed=f"{_FACES:,} faces", text=lambda: head + _faces(lambda i: "95 71 226 313"))
    if re.match(r"list_landmarks(_align)?_celeba", name):
        head = f"{_FACES}\n{_LANDMARKS}\n"
        return KnownText(
            assumed=f"{_FACES:,} faces", text=lambda: head + _faces(lambda i: "69 109 106 113 77 142 73 152 108 154")
        )
    if has_questions(path):
        assumed = f"{QUESTIONS:,} questions, {WORDS:,} different words"
        return KnownText(assumed=assumed, text=functools.partial(questions, path), decides_size=True)
    if is_of_pairs(path):
        return KnownText(assumed=PAIRS, text=pairs)
    if is_of_a_camera(path):
        return KnownText(assumed=CAMERA, text=camera)
    return _corpus_of(path)


def _corpus_of(path: str) -> KnownText | None:
    part = re.search(r"train|valid|test", os.path.basename(path).lower().replace("val.", "valid."))
    if part is None or re.search(r"char", path, re.IGNORECASE):
        return None
    for where, corpus in _CORPORA.items():
        if re.search(where, path, re.IGNORECASE):
            words = f"{corpus.words:,} different words" if part[0] == "train" else "words"
            return KnownText(assumed=words, text=functools.partial(_corpus, where, part[0]))
    return None


@functools.cache
def _corpus(which: str, part: str) -> str:
    """Every word, then the first ones again and again, twenty to a line."""
    corpus = _CORPORA[which]
    count = min(corpus.parts[part], corpus.written)
    words = [*corpus.first, *(word for i in range(corpus.words) if (word := corpus.others(i)) not in corpus.first)]
    every = words[: corpus.words] if part == "train" else []
    lines = [" ".join(every[at : at + 20]) for at in range(0, len(every), 20)]
    usual = " ".join(words[:20])
    lines += [usual] * ((count - len(every)) // 20)
    return "".join(f" {line} \n" for line in lines)


def _attributes(name: str) -> str:
    comma = name.endswith(".csv")
    row = " ".join("1" if i % 3 == 0 else "-1" for i in range(40))
    if comma:
        head = f"image_id,{_ATTRIBUTES.replace(' ', ',')}\n"
        return head + _faces(lambda i: row).replace(" ", ",")
    return f"{_FACES}\n{_ATTRIBUTES} \n" + _faces(lambda i: row)


def _faces(values: Callable[[int], str]) -> str:
    return "".join(f"{i:06}.jpg {values(i)}\n" for i in range(1, _FACES + 1))
