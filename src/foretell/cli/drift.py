"""`foretell drift`: whether forecasts still hold for the jobs that were watched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.options import AsJson, Html
from foretell.cli.store import StorePath
from foretell.cli.terminal import answer, note
from foretell.errors import InputError, RequirementNotMet
from foretell.store.place import DEFAULT_STORE

if TYPE_CHECKING:
    from foretell.store.place import Kept


def drift(
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Only jobs forecast with this profile; '' for none.")
    ] = None,
    store: StorePath = DEFAULT_STORE,
    require: Annotated[bool, typer.Option("--require", help="Exit with 3 where a forecast no longer holds.")] = False,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Say since when, and by how much, watched jobs have left their forecasts."""
    from foretell.report.drift import drift_dict, drift_report, write_drift
    from foretell.watching.drift import courses

    kept = _opened(store)
    found = courses(kept.steps(), profile)
    if not found:
        whose = "" if profile is None else f" with profile {profile!r}"
        raise InputError(
            f"{store} holds no watched job{whose}. Watch one: for batch in foretell.watch(SOURCE).over(loader), "
            "as docs/guide/watching.md shows."
        )
    answer(as_json, lambda: [drift_dict(course) for course in found], lambda width: drift_report(found, width))
    if html is not None:
        write_drift(found, html)
        note(f"Report written to {html}")
    drifted = [course for course in found if course.is_drift]
    if drifted:
        first, place = (
            (f"foretell store import {store}, ", "") if store.suffix == ".jsonl" else ("", f" --store {store}")
        )
        text = (
            f"{len(drifted)} of {len(found)} courses left the forecast. Fit a profile anew: {first}"
            f"foretell store export steps.csv --for-adapt{place}, foretell adapt --from steps.csv --save NAME"
        )
        if require:
            raise RequirementNotMet(text)
        note(text)


def _opened(path: Path) -> Kept:
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store

    if path.suffix == ".jsonl":
        return RecordFile(path)
    if not (store := Store(path, warn=note)).exists():
        raise InputError(f"there is no store at {path}. Name one with --store or $FORETELL_STORE.")
    return store
