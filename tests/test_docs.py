"""The README and docs/ keep their word: their commands and their Python run, and their links lead somewhere.

What is run, page by page, in a folder of the page's own that also holds examples/:

- a ```toml block that begins with `# ~/…` and a ```python block that begins with `# name.py` are written to that file;
- in a ```console block each line `$ foretell …` must exit 0, or the code given at its end as `# exits 3`; output that is
  shown below it must be what it prints, numbers apart, up to a line `…`;
- all ```python blocks of a page are one program.

`python -m tests.test_docs` (`make docs-write`) writes what pages quote: those outputs, and `<!-- devices -->137<!-- -->`.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from foretell.cli import app
from foretell.hardware import devices, instances, links

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
NOTES = sorted((ROOT / "bench" / "notes").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *NOTES]
# Pages that time this machine.
MEASURING = ("adapting.md", "campaigns.md", "choosing.md", "hosts.md", "measuring.md", "methods.md")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ foretell (.*)\n((?:(?!\$ ).*\n)*)", flags=re.MULTILINE)
FACT = re.compile(r"<!-- (\w+) -->([\d,]+)<!-- -->")
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
    shown: str  # below it; nothing where no output is shown


def blocks(page: str) -> Iterator[Block]:
    for match in FENCE.finditer(page):
        yield Block(language=match[1], text=match[2], line=page.count("\n", 0, match.start(2)) + 1)


def commands(page: str) -> Iterator[Command]:
    for block in blocks(page):
        for found in COMMAND.finditer(block.text if block.language == "console" else ""):
            wanted = re.search(r"# exits (\d+)$", found[1])
            line = block.line + block.text.count("\n", 0, found.start())
            arguments = shlex.split(found[1], comments=True)
            yield Command(arguments=arguments, exit_code=int(wanted[1]) if wanted else 0, line=line, shown=found[2])


def words_of(output: str) -> str:
    """Without what may differ as numbers do: digits and their units, bars, frames, where lines break."""
    plain = " ".join(re.sub(r"[─-▟]+", " ", output).split())
    return re.sub(r"[<>±]? ?\d[\d.,e-]*(?: (?:[KMGT]iB|[mµ]?s|%))?", "#", plain)


def is_shown(shown: str, printed: str) -> bool:
    beginning, more, _ = shown.partition("…\n")
    wanted, got = words_of(beginning), words_of(printed)
    return got.startswith(wanted) if more else got == wanted


@cache
def facts() -> dict[str, int]:
    """The numbers that pages quote."""
    captured = Counter(
        line["name"].partition("/")[0]
        for line in map(json.loads, (ROOT / "bench" / "results" / "capture_coverage.jsonl").read_text().splitlines())
        if line["ok"]
    )
    kinds = {"devices": devices, "links": links, "instances": instances}
    return {**{name: len(all_of()) for name, all_of in kinds.items()}, **captured}


def write_quotes(path: Path, run: Callable[[list[str]], str]) -> None:
    page = path.read_text(encoding="utf-8")
    page = FACT.sub(lambda found: f"<!-- {found[1]} -->{facts()[found[1]]:,}<!-- -->", page)
    for command in commands(page):
        if command.shown:
            printed = run(command.arguments)
            if "…\n" in command.shown:  # as many lines as were shown
                printed = "".join(printed.splitlines(keepends=True)[: command.shown.count("\n") - 1]) + "…\n"
            page = page.replace(command.shown, printed, 1)
    path.write_text(page, encoding="utf-8")


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


def pages_with_code() -> Iterator[object]:
    for path in filter(has_code, PAGES):
        yield pytest.param(path, marks=pytest.mark.nightly if path.name in MEASURING else ())


@pytest.mark.slow
@pytest.mark.parametrize("path", list(pages_with_code()), ids=name_of)
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
        if command.shown:
            assert is_shown(command.shown, ended.stdout), f"make docs-write: {told}\n{ended.stdout}"
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


def test_numbers_of_the_catalog_are_right() -> None:
    quoted = [found for path in PAGES for found in FACT.findall(path.read_text(encoding="utf-8"))]
    assert {name for name, _ in quoted} == set(facts())
    assert [(name, number) for name, number in quoted if number != f"{facts()[name]:,}"] == [], "make docs-write"


def test_output_that_is_shown_is_compared() -> None:
    assert is_shown("│ 29.6 ms ███ 3 % │\n", "│  131 ms  █ 12 %\n│\n")
    assert is_shown("a 1\n…\n", "a 2\nb\n")
    assert not is_shown("a 1\n", "a 2\nb\n")
    [command] = commands("```console\n$ foretell devices h200  # exits 2\nh200  141 GB\n```\n")
    assert (command.arguments, command.exit_code, command.shown) == (["devices", "h200"], 2, "h200  141 GB\n")


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


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "accuracy").glob("*.md")), ids=name_of)
def test_a_page_of_figures_is_short(path: Path) -> None:
    """What was tried is told in bench/notes."""
    words = re.findall(r"\S*\w\S*", path.read_text(encoding="utf-8"))
    assert len(words) <= 1000


@pytest.mark.parametrize("path", [*DOCS, *NOTES], ids=name_of)
def test_a_bar_is_called_one(path: Path) -> None:
    assert re.findall(r"\(asked\b.*?\)|asked were|\| asked \|", path.read_text(encoding="utf-8"), re.IGNORECASE) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        environment = {**os.environ, "HOME": folder, "COLUMNS": "100"}

        def run_command(arguments: list[str]) -> str:
            command = [sys.executable, "-m", "foretell", *arguments]
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=True
            ).stdout

        for each in PAGES:
            write_quotes(each, run_command)
