"""Time series in files that are not here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from foretell.capture.script.pretend import series_sets


def test_files_of_series_that_are_missing_are_series_of_the_frequency(tmp_path: Path) -> None:
    def read(path: Path, freq: str, one_dim_target: bool = True) -> Any:
        return path.read_text()

    heard: list[tuple[str, str]] = []
    library = SimpleNamespace(FileDataset=read, ListDataset=lambda rows, freq, flat: (rows, freq, flat))
    session: Any = SimpleNamespace(stand_in=lambda what, assumed: heard.append((what, assumed)))
    series_sets._stand_in(session, library)
    (tmp_path / "there.arrow").write_text("as it is")
    assert library.FileDataset(tmp_path / "there.arrow", freq="h") == "as it is"
    rows, freq, flat = library.FileDataset(path=tmp_path / "gone.arrow", freq="D")
    assert (freq, flat, heard[0][0]) == ("D", True, f"time series in {tmp_path / 'gone.arrow'}")
    assert {*rows[0]} == {"start", "target", "item_id"}
    assert rows[0]["target"].ndim == 1
