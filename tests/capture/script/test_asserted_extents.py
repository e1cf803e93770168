"""A script that checks an extent itself says how large what was made up is to be."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path

import pytest

import foretell
from foretell.capture.script.asserted_extents import asserted_extents
from foretell.capture.script.ended import Ended
from foretell.capture.script.pretend.files.guessed import guessed
from foretell.capture.script.session import Session

CHECKS = (
    "assert vectors.shape[0] == words.size",
    "assert words.size == len(vectors), 'another vocabulary'",
    "assert vectors.shape == (words.size, 61)",
    """
    if vectors.shape[0] != words.size:
        raise ValueError('another vocabulary')
    """,
)
START = """
class words:
    size = 2500
"""


def _shown(check: str, folder: Path) -> list[list[int]]:
    session = Session(foretell.Script(path="train.py", fake_data=True))
    path = folder / "train.py"
    path.write_text(START + textwrap.dedent(check).strip() + "\n")
    with pytest.raises((AssertionError, ValueError)) as caught:
        runpy.run_path(str(path), {"vectors": guessed(session, "x.npy", [2039, 61])})
    ended = Ended(script=session.script, error=caught.value, stand_ins=(), missing=())
    return [made["shape"] for made in asserted_extents(ended, session.guesses).values()]


@pytest.mark.parametrize("check", CHECKS)
def test_what_was_made_up_is_as_large_as_the_script_checks(check: str, tmp_path: Path) -> None:
    assert _shown(check, tmp_path) == [[2500, 61]]


@pytest.mark.parametrize("check", ["assert 3 == words.size", "assert vectors.sum() == words.size"])
def test_other_checks_say_nothing(check: str, tmp_path: Path) -> None:
    assert _shown(check, tmp_path) == []
