"""`foretell scale`: one workload on more and more devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.options import ExpertSkew, Jitter, Loader, conditions_of
from foretell.cli.predict import Model, Profile, profile_of
from foretell.cli.terminal import (
    AsJson,
    NoCache,
    Settings,
    Source,
    console_of,
    note,
    print_drawn,
    print_json,
    progress,
    read_settings,
)
from foretell.errors import InputError


def scale(
    source: Source,
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="The device to take more and more of: h100-sxm.")],
    up_to: Annotated[int, typer.Option("--up-to", min=1, metavar="N", help="The most devices.")],
    settings: Settings = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="PLAN", help="How a replica is spread: tp=8,pp=2,zero=1. dp grows.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the charts as one HTML file.")
    ] = None,
    loader: Loader = None,
    jitter: Jitter = None,
    expert_skew: ExpertSkew = None,
    model: Model = None,
    profile: Profile = None,
    as_json: AsJson = False,
    no_cache: NoCache = False,
) -> None:
    """Forecast a step on 1, 2, 4, … devices: throughput, efficiency, where the time goes."""
    from foretell.capture import capture
    from foretell.forecasting.assemble import DEFAULT_MODEL
    from foretell.forecasting.scale import scale as scale_up
    from foretell.hardware import Cluster
    from foretell.plan import Plan

    if Cluster.parse(on).devices != 1:
        raise InputError(f"--on takes one device for scale, got {on!r}. Write its name alone, like h100-sxm.")
    if plan is not None:
        Plan.parse(plan)
    conditions = conditions_of(loader, jitter, expert_skew)
    fitted = profile_of(profile)
    with progress() as say:
        graph = capture(source, read_settings(settings or []), progress=say, cache=not no_cache)
        priced_by = model or DEFAULT_MODEL
        points = scale_up(
            graph, on, plan, up_to=up_to, model=priced_by, profile=fitted, conditions=conditions, progress=say
        )
    if as_json:
        print_json([point.to_dict() for point in points])
    else:
        from foretell.report.scale import scaling_table

        print_drawn(scaling_table(points), console_of())
    if html is not None:
        from foretell.report.scale import write_scaling

        write_scaling(points, html)
        note(f"Report written to {html}")
