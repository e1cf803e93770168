"""Users without a home, as in a container under a number of its own."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

import foretell
from foretell.campaign.driver import rescue
from foretell.folders import home, user_folders
from foretell.profile import Profile
from tests.measure.examples import record


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)


def test_with_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OURS", f"~/a:{tmp_path / 'b'}")
    assert user_folders("OURS", "kind") == (tmp_path / "a", tmp_path / "b", tmp_path / ".config" / "foretell" / "kind")


@pytest.mark.usefixtures("no_home")
def test_without_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert home() is None
    assert user_folders("NOSUCH", "kind") == ()
    assert foretell.device("h100-sxm").name == "h100-sxm"
    with pytest.raises(foretell.InputError):
        Profile.load("nosuch")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/null")
    assert str(tmp_path) in rescue([record(1)])
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
