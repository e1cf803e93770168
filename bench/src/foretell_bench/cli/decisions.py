"""Choices of the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, guarded, progress
from foretell_bench.cli.options import Page, PublicData, Saved, Workers, show


@guarded
def planner(
    data: PublicData = None,
    workers: Workers = 1,
    saved: Saved = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Keep what was found of each table.")
    ] = None,
    page: Page = None,
    spaces: Annotated[
        int | None,
        typer.Option("--spaces", min=1, metavar="N", help="Instead, N random spaces: is the best ever beaten?"),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option("--answers", metavar="FILE", help="Keep each space's answer, to go on after a run was stopped."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plans chosen from measured configurations: what they lose to the best, compared with CherryPick."""
    from dataclasses import asdict

    from foretell.errors import InputError
    from foretell_bench.pages import planner as pages
    from foretell_bench.pages.benches import put_table
    from foretell_bench.tables import planner as bench
    from foretell_bench.tables import spaces as random_spaces

    if spaces is not None:
        with progress() as say:
            counted = random_spaces.figures(random_spaces.run(spaces, say, workers=workers, answers=answers))
        show(counted, as_json)
        return
    if saved is not None:
        found = bench.read(saved)
    elif data is None:
        raise InputError("give --data FOLDER to plan anew, or --from FILE to show what was saved.")
    else:
        with progress() as say:
            found = bench.run(data, say, workers=workers, keep=save)
    summaries = bench.summaries(found)
    if page is not None:
        put_table(page, "planner", pages.markdown(found, summaries))
    answer(as_json, lambda: [asdict(f) for f in found], lambda width: pages.drawn(summaries))
