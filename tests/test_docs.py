"""The README and docs/ keep their word: their commands and their Python run, and their links lead somewhere.

What is run, page by page, in a folder of the page's own that also holds examples/:

- a ```toml block that begins with `# ~/…` and a ```python block that begins with `# name.py` are written to that file;
- in a ```console block each line `$ foretell …` must exit 0, or the code given at its end as `# exits 3`;
- all ```python blocks of a page are one program.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from foretell.cli import app

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
NOTES = sorted((ROOT / "bench" / "notes").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS, *NOTES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)#?([^)\s]*)\)")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


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


def has_code(path: Path) -> bool:
    page = path.read_text(encoding="utf-8")
    return any(commands(page)) or bool(program(page).strip())


def write_files(page: str, home: Path) -> None:
    for block in blocks(page):
        named = {"toml": r"# ~/(\S+)\n", "python": r"# (\w+\.py)\n"}.get(block.language)
        if named and (place := re.match(named, block.text)):
            path = home / place[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in PAGES if has_code(p)], ids=name_of)
def test_a_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_foretell: Run, run_forked: Run
) -> None:
    page = path.read_text(encoding="utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    write_files(page, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    for command in commands(page):
        ended = run_foretell(*command.arguments, cwd=tmp_path)
        told = f"{name_of(path)}:{command.line}: exit code {ended.returncode}\n{ended.stdout[-1000:]}{ended.stderr[-2000:]}"
        assert ended.returncode == command.exit_code, told
    code = program(page)
    if code.strip():
        script = tmp_path / f"{path.stem}_page.py"
        script.write_text(code, encoding="utf-8")
        ended = run_forked(lambda: runpy.run_path(str(script), run_name="__main__"), cwd=tmp_path)
        assert ended.returncode == 0, f"{name_of(path)}\n{ended.stderr[-3000:]}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    """To a file that is there, and to a heading that is in it."""
    missing = []
    for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        page = path.parent / target if target else path
        if not page.exists() or (anchor and anchor not in anchors(page.read_text(encoding="utf-8"))):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text(encoding="utf-8"))}
    assert {p for p in DOCS if p != index} <= named


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and every name of the API page leads somewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr[-4000:]
    assert (tmp_path / "site" / "reference" / "api" / "index.html").is_file()


def test_the_command_line_page_names_every_option() -> None:
    """Of each verb, here or in the guide that its section names."""
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    verbs = {name: verb for name, verb in get_command(app).commands.items() if name != "bench"}  # type: ignore[attr-defined]
    verbs |= verbs.pop("store").commands
    options = {option for verb in verbs.values() for p in verb.params if not p.hidden for option in p.opts}
    missing = sorted(option for option in options if option.startswith("--") and f"`{option}" not in page)
    assert missing == []


def test_every_example_is_shown_to_work() -> None:
    shown = {a for path in PAGES for c in commands(path.read_text(encoding="utf-8")) for a in c.arguments}
    for example in (ROOT / "examples").glob("*.py"):
        assert any(argument.startswith(f"examples/{example.name}:") for argument in shown), example.name


def test_the_architecture_page_names_what_is_there() -> None:
    """Every room and top-level module is named, and every file named exists."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py|[\w/]+/)`", page))
    package = ROOT / "src" / "foretell"
    rooms = {f"{path.name}/" if path.is_dir() else path.name for path in package.iterdir() if path.name[0] != "_"}
    assert rooms - named - {"py.typed"} == set()
    there = [f"/{path.relative_to(ROOT)}" for top in ("src", "bench", "tests") for path in (ROOT / top).rglob("*")]
    there.append("/conftest.py")
    missing = [name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in there)]
    assert missing == []
