"""The status page is what its command writes from the results that are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from foretell_bench.pages.status import status_page
from typer.testing import CliRunner

from foretell.cli import app

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_page_is_what_the_command_writes() -> None:
    notes = (ROOT / "bench" / "notes" / "status.md").read_text(encoding="utf-8")
    wanted = status_page(ROOT / "bench" / "results", notes)
    assert (ROOT / "docs" / "status.md").read_text(encoding="utf-8") == wanted, (
        "write it again: foretell bench status --page docs/status.md"
    )
    assert "\n## Next\n" in wanted
    assert "(asked" not in wanted


def test_results_that_are_missing_are_said(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("# Notes\n\nnothing\n")
    command = [
        "bench",
        "status",
        "--page",
        str(tmp_path / "page.md"),
        "--results",
        str(tmp_path),
        "--notes",
        str(notes),
    ]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 2
    assert "cannot be read" in ended.output
