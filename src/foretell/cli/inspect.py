"""`foretell inspect`: what a step is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from foretell.cli import options
from foretell.cli.options import OUTPUT, PRICES, option
from foretell.cli.terminal import answer, note, progress
from foretell.errors import InputError


def inspect(
    source: options.SourceOrLaunch = None,
    arguments: options.Arguments = None,
    settings: options.Settings = None,
    launch: options.Launch = None,
    fake_data: options.FakeData = False,
    opaque: options.Opaque = None,
    top: Annotated[int, option(OUTPUT, "--top", "How many operators to show.", "N", min=1)] = 12,
    depth: Annotated[int | None, option(OUTPUT, "--depth", "How deep to show the module tree.", "N", min=0)] = None,
    as_json: options.AsJson = False,
    save: Annotated[
        Path | None, option(OUTPUT, "--save", "Save the captured step, to use as a SOURCE.", "FILE.graph")
    ] = None,
    on: Annotated[str, option(PRICES, "--on", "The device that prices the ops.", "DEVICE")] = "h100-sxm",
    model: options.Model = None,
    no_cache: options.NoCache = False,
) -> None:
    """Show what a step is made of: ops, modules, memory."""
    import foretell
    from foretell.report.inspection import inspection, inspection_dict

    source, script = options.source_or_launch(source, launch, arguments, fake_data, opaque)
    terms = options.terms([on], model=model)
    if save is not None and save.suffix != ".graph":
        raise InputError(f"--save {save} must end in .graph, so that it can be used as a SOURCE again.")
    with progress() as report:
        graph = foretell.capture_graph(
            script or source, options.read_settings(settings), progress=report, cache=not no_cache
        )
        report(f"forecasting {graph.name} on {on}")
        forecast = foretell.forecast(
            graph, on, **(terms | {"plan": foretell.Plan(dp=foretell.Cluster.parse(on).devices)})
        )
    if save is not None:
        try:
            graph.save(save)
        except OSError as error:
            raise InputError(f"the graph cannot be saved to {save}: {error.strerror}. Choose another file.") from None
    answer(
        as_json,
        lambda: inspection_dict(forecast, top=top, depth=depth),
        lambda width: inspection(forecast, top=top, depth=depth, width=width),
    )
    if save is not None:
        note(f"Graph saved to {save}")
