"""The README and docs/ keep their word: their commands and their Python run, and their links lead somewhere.

What is run, page by page, in a folder of the page's own that also holds examples/:

- a ```toml block that begins with `# ~/…` and a ```python block that begins with `# name.py` are written to that file;
- in a ```console block each line `$ foretell …` must exit 0, or the code given at its end as `# exits 3`;
- all ```python blocks of a page are one program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    language: str
    text: str
    line: int  # of its first line in the page


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    arguments: list[str]
    exit_code: int
    line: int


def blocks(page: str) -> Iterator[Block]:
    for match in FENCE.finditer(page):
        yield Block(language=match[1], text=match[2], line=page.count("\n", 0, match.start(2)) + 1)


def commands(page: str) -> Iterator[Command]:
    for block in blocks(page):
        for offset, text in enumerate(block.text.splitlines()):
            if block.language == "console" and text.startswith("$ foretell "):
                wanted = re.search(r"# exits (\d+)$", text)
                arguments = shlex.split(text.removeprefix("$ foretell "), comments=True)
                yield Command(arguments=arguments, exit_code=int(wanted[1]) if wanted else 0, line=block.line + offset)


def program(page: str) -> str:
    """All Python of a page, each line where it stands there, so that a traceback names the page's lines."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def write_files(page: str, home: Path) -> None:
    for block in blocks(page):
        named = {"toml": r"# ~/(\S+)\n", "python": r"# (\w+\.py)\n"}.get(block.language)
        if named and (place := re.match(named, block.text)):
            path = home / place[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all pages: the workers of a parallel run have folders side by side."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "docs-graphs"


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_runs(path: Path, tmp_path: Path, shared_cache: Path) -> None:
    page = path.read_text(encoding="utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    write_files(page, tmp_path)
    environment = {**os.environ, "FORETELL_CACHE": str(shared_cache), "HOME": str(tmp_path), "COLUMNS": "100"}
    environment.pop("XDG_CONFIG_HOME", None)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    for command in commands(page):
        ended = run(sys.executable, "-m", "foretell.cli", *command.arguments)
        said = f"{path.name}:{command.line}: exit code {ended.returncode}\n{ended.stdout[-1000:]}{ended.stderr[-2000:]}"
        assert ended.returncode == command.exit_code, said
    code = program(page)
    if code.strip():
        script = tmp_path / f"{path.stem}_page.py"
        script.write_text(code, encoding="utf-8")
        ended = run(sys.executable, str(script))
        assert ended.returncode == 0, f"{path.name}\n{ended.stderr[-3000:]}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    targets = [target for target in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []


def test_every_example_is_shown_to_work() -> None:
    shown = {a for path in PAGES for c in commands(path.read_text(encoding="utf-8")) for a in c.arguments}
    for example in (ROOT / "examples").glob("*.py"):
        assert any(argument.startswith(f"examples/{example.name}:") for argument in shown), example.name
