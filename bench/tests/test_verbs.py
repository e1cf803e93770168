"""`foretell bench`: every verb explains itself, and every page names verbs, options and files that are there."""

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foretell_bench
import pytest
from foretell_bench.cli import app
from typer.main import get_command
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench" / "notes").rglob("*.md"),
        *(ROOT / "src" / "foretell").rglob("*.py"),
        *(ROOT / "bench" / "src").rglob("*.py"),
        *(ROOT / "bench" / "results").glob("*.json"),
        ROOT / "README.md",
        ROOT / "Makefile",
        ROOT / "bench" / "data" / "README.md",
    ]
)
NAMED = re.compile(r"foretell bench ((?:[a-z][\w-]*[ \t]?)+)((?:--[\w-]+)?)")
FILES = re.compile(r"bench/(?:results|data|src|tests|notes)/[\w./-]*\w")


def verbs(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from verbs(command, (*path, name))
        else:
            yield (*path, name), command


VERBS = dict(verbs(get_command(app)))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_explains_itself_and_its_options(verb: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(app, [*verb, "--help"])
    assert ran.exit_code == 0, ran.output
    assert VERBS[verb].help
    for parameter in VERBS[verb].params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            assert parameter.help, (verb, parameter.name)


def test_listing_the_verbs_loads_no_torch() -> None:
    code = "import sys, foretell_bench.cli; sys.exit(bool({'torch', 'numpy', 'sklearn'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_module_can_be_imported() -> None:
    """Verbs import what they run when they run: a name that moved in Foretell would show only then."""
    for module in pkgutil.walk_packages(foretell_bench.__path__, "foretell_bench."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_pages_name_verbs_that_are_there() -> None:
    groups = {verb[0] for verb in VERBS if len(verb) > 1}
    missing = []
    for page in PAGES:
        for words, option in NAMED.findall(page.read_text(encoding="utf-8")):
            first, *rest = words.split()
            verb = (first, *rest[:1]) if first in groups else (first,)
            options = {name for parameter in VERBS[verb].params for name in parameter.opts} if verb in VERBS else set()
            if (verb not in VERBS and verb[0] not in groups) or (option and verb in VERBS and option not in options):
                missing.append((page.name, words, option))
    assert missing == []


def test_pages_name_files_that_are_there() -> None:
    """A file of results may be compressed: its whole name counts, not a part of it."""
    missing = [
        (page.name, name)
        for page in PAGES
        if page.suffix == ".md"
        for name in FILES.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert missing == []
