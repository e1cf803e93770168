"""Vocabularies in texts that are not on this machine: a word in each line, or numbers by words."""

from __future__ import annotations

import json
import os
import re
import string
import types
from typing import Final

from foretell.capture.script.pretend.files import words
from foretell.capture.script.pretend.files.callers import function_source, source_of
from foretell.capture.script.pretend.files.kinds import ending_of
from foretell.capture.script.pretend.files.line_parts import WORDS
from foretell.capture.script.session import Session

_USUAL: Final = 30_522  # words, as BERT's
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>", "<s>", "</s>", "<eos>")
_NAMED: Final = re.compile(r"""(["'])(\[[A-Z]{2,8}\]|<[/|]?[A-Za-z_]{1,16}\|?>)\1""")


def is_vocabulary(path: str) -> bool:
    """Whether a text of that name has one: by its name, or by the ending that programs give it that make tokenizers."""
    ending = ending_of(path)
    return ending == ".vocab" or (ending in (".json", ".txt") and "vocab" in os.path.basename(path).lower())


def vocabulary(session: Session, path: str, frame: types.FrameType) -> str:
    """As many words as the script says that there are, the special ones that its own code names among them."""
    size = words.size_of(session.script.arguments, _USUAL)
    named = [found[2] for found in _NAMED.finditer(source_of(frame.f_code.co_filename))]
    first = dict.fromkeys([*_SPECIAL, *named, *WORDS.split(), *string.printable.split()])
    known = [*first, *(f"word{i}" for i in range(size))][:size]
    session.stand_in(f"vocabulary {path}", f"{size:,} words", decides_size=True)
    if ending_of(path) == ".json":
        return json.dumps({word: i for i, word in enumerate(known)})
    scored = ending_of(path) == ".vocab" and "split(" in function_source(frame)  # the word, and how likely it is
    return "".join(f"{word}\t{-i}\n" if scored else f"{word}\n" for i, word in enumerate(known))
