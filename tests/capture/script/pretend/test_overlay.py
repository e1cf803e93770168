"""Paths that a script makes lie in a folder of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foretell.capture.script.pretend.overlay import Overlay


def test_a_setting_that_names_no_file_does_not_name_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    overlay = Overlay(str(tmp_path.parent / "scratch"))
    assert overlay.there("") is None
    assert str(overlay.there("logs")).endswith(os.path.join(str(tmp_path), "logs"))
