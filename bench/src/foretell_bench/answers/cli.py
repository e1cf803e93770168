"""The verb `foretell bench answers`; `python -m foretell_bench.answers` runs it with an older Foretell on the path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.terminal import guarded


@guarded
def answers(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Ask all questions and write a JSON line for each.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="BEFORE AFTER", help="Compare two files that --out wrote."),
    ] = None,
    only: Annotated[
        str, typer.Option("--only", metavar="TEXT", help="Only questions about sources with this in their name.")
    ] = "",
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that forecast side by side.")] = 1,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Fill in the table `answers` of this page.")
    ] = None,
) -> None:
    """Whether two versions give the same forecasts: a table of questions, asked of each and compared digit for digit."""
    from foretell.errors import InputError

    if (out is None) == (compare is None):
        raise InputError("give --out FILE to ask the questions, or --compare BEFORE AFTER to compare two such files.")
    if out is not None:
        from foretell_bench.answers.asking import ask_all
        from foretell_bench.answers.questions import questions

        ask_all(questions(only), out, workers=workers, progress=lambda text: print(text, file=sys.stderr, flush=True))
    if compare is not None:
        _compare(*compare, page)


def _compare(before: Path, after: Path, page: Path | None) -> None:
    from foretell_bench.answers import compare as comparing
    from foretell_bench.answers.asking import read_answers

    found = comparing.compare(read_answers(before), read_answers(after))
    typer.echo(comparing.summary(found))
    if page is not None:
        from foretell_bench.pages.benches import put_table

        put_table(page, "answers", comparing.markdown(found))
    if found.unexplained or found.missing:
        raise SystemExit(3)
