"""The sentence that every made-up text is of, and how it is known again in what a script or an error says."""

from __future__ import annotations

import re
from typing import Final

SENTENCE: Final = (
    "the quick brown fox jumps over the lazy dog and runs away into the deep dark forest near the river bank "
)
PROSE: Final = re.compile(r"quick brown|fox jumps over")  # as every text that is made up has it
QUOTED_WORD: Final = re.compile(rf"""(['"])({"|".join(sorted(set(SENTENCE.split())))})\1""")  # as an error quotes one
TEXT: Final = "text of "  # what a guess about one begins with
TABLE: Final = "rows of the table "  # and of one in a text
