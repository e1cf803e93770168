"""A script written for a test, in a folder of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretell

Write = Callable[..., foretell.Script]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a script, which runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, **how: Any) -> foretell.Script:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return foretell.Script(path=str(path), **how)

    return write
