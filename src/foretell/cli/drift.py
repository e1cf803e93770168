"""`foretell drift`: whether forecasts still hold for the jobs that were watched."""

from __future__ import annotations

from typing import Annotated

import typer

from foretell.cli.options import AsJson, Html
from foretell.cli.store import StorePath
from foretell.cli.terminal import answer, note
from foretell.errors import InputError, RequirementNotMet
from foretell.store import place


def drift(
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Only jobs forecast with this profile; '' for none.")
    ] = None,
    store: StorePath = place.DEFAULT_STORE,
    require: Annotated[bool, typer.Option("--require", help="Exit with 3 where a forecast no longer holds.")] = False,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Say since when, and by how much, watched jobs have left their forecasts."""
    from foretell.report.drift import drift_dict, drift_report, write_drift
    from foretell.watching.drift import courses

    found = courses(place.found(store, note).steps(), profile)
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
        text = (
            f"{len(drifted)} of {len(found)} kinds of job left their forecast. Fit a profile anew: "
            f"foretell adapt --from {store} --save NAME"
        )
        if require:
            raise RequirementNotMet(text)
        note(text)
