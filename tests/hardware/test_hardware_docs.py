"""docs/reference/hardware.md keeps its word: its files load under the names it gives them; tests/test_docs.py runs its Python."""

from __future__ import annotations

import re
from pathlib import Path

from foretell.hardware import Cluster, device, host, link

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "hardware.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_files_shown_are_whole_files(user_folder: Path) -> None:
    for text in blocks("toml"):
        place = re.match(r"# ~/\.config/foretell/catalog/(\S+)\n", text)
        assert place is not None
        path = user_folder / place[1]
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert device("4060").bandwidth == 272e9
    assert link("our-fabric").bandwidth == 25e9
    assert host("our-host").op_seconds == 9e-6
    assert Cluster.parse("4xhall:big").dollars_per_hour == 4 * 18.40


def test_the_clusters_shown_can_be_read() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    assert len(rows) >= 9
    for text in rows:
        Cluster.parse(text)
