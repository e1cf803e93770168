"""`foretell laws`: what no forecast may break, checked of a step on devices."""

from __future__ import annotations

from typing import Annotated

from foretell.cli import options
from foretell.cli.options import OUTPUT, WHAT, option
from foretell.cli.terminal import answer, progress
from foretell.errors import RequirementNotMet


def laws(
    source: options.Source,
    on: Annotated[list[str], option(WHAT, "--on", "Devices to check, like h200 or one of your own files.", "DEVICE")],
    settings: options.Settings = None,
    only: Annotated[
        list[str] | None, option(WHAT, "--only", "Check this law alone; give several for more.", "LAW")
    ] = None,
    as_json: options.AsJson = False,
    explain: Annotated[
        bool, option(OUTPUT, "--explain", "Also what each law says, how far it may be off, and why.")
    ] = False,
    model: options.Model = None,
    no_cache: options.NoCache = False,
) -> None:
    """Check that forecasts obey physics: order of devices, precisions, batches and plans, roofline, sums, intervals."""
    import foretell
    from foretell.forecasting.forecast import DEFAULT_MODEL
    from foretell.report.laws import laws_table

    with progress() as report:
        found = foretell.check_laws(
            source,
            on,
            settings=options.read_settings(settings),
            only=only,
            model=model or DEFAULT_MODEL,
            cache=not no_cache,
            progress=report,
        )
    answer(as_json, found.to_dict, lambda width: laws_table(found, explain=explain))
    if not found.kept:
        names = ", ".join(each.law.name for each in found.broken)
        raise RequirementNotMet(f"{len(found.broken)} of {len(found.laws)} laws are broken: {names}.")
