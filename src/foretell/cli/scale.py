"""`foretell scale`: one workload on more and more devices."""

from __future__ import annotations

from typing import Annotated

from foretell.cli import options
from foretell.cli.options import WHAT, option
from foretell.cli.terminal import answer, note, progress


def scale(
    on: Annotated[str, option(WHAT, "--on", "The device to take more and more of: h100-sxm.", "DEVICE")],
    up_to: Annotated[int, option(WHAT, "--up-to", "The most devices.", "N", min=1)],
    source: options.SourceOrLaunch = None,
    arguments: options.Arguments = None,
    settings: options.Settings = None,
    plan: Annotated[
        str | None, option(WHAT, "--plan", "How a replica is parallelized: tp=8,pp=2,zero=1. dp grows.", "PLAN")
    ] = None,
    launch: options.Launch = None,
    fake_data: options.FakeData = False,
    opaque: options.Opaque = None,
    as_json: options.AsJson = False,
    html: options.Html = None,
    loader: options.Loader = None,
    jitter: options.Jitter = None,
    expert_skew: options.ExpertSkew = None,
    trainer: options.Trainer = None,
    host: options.Host = None,
    software: options.Software = None,
    model: options.Model = None,
    profile: options.Profile = None,
    no_cache: options.NoCache = False,
) -> None:
    """Forecast a step on 1, 2, 4, … devices: throughput, efficiency, where the time goes."""
    import foretell
    from foretell.report.scale import scaling_table, write_scaling

    source, script = options.source_or_launch(source, launch, arguments, fake_data, opaque)
    conditions = options.conditions_of(loader, jitter, expert_skew, trainer, host, software)
    terms = options.terms([on], plan=plan, model=model, profile=profile, conditions=conditions)
    with progress() as report:
        points = foretell.scale(
            options.on_any_number(script) or source,
            on,
            up_to=up_to,
            settings=options.read_settings(settings),
            cache=not no_cache,
            progress=report,
            **terms,
        )
    answer(as_json, lambda: [point.to_dict() for point in points], lambda width: scaling_table(points))
    if html is not None:
        write_scaling(points, html)
        note(f"Report written to {html}")
