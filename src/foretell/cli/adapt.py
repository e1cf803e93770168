"""`foretell adapt`: step times, given or measured here → a profile that makes forecasts fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.options import AsJson, Model, combinations, option
from foretell.cli.terminal import answer, note, progress
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell import Profile
    from foretell.learn.adapt.steps import Step

_MEASURED = "Measured here"


def adapt(
    save: Annotated[str, typer.Option("--save", metavar="PROFILE", help="Its name, or the .toml file to write.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE]…", help="Steps to choose from, yours for example; usual ones without."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="The device, by its name in the catalog.")
    ] = "",
    given: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="STEPS.csv",
            help="Step times that are there: source,settings,cluster,plan,seconds; or a store, or a .jsonl of records.",
        ),
    ] = None,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="Fit communication alone, on the measured collectives in --from.")
    ] = False,
    runs: Annotated[
        int | None, option(_MEASURED, "--runs", "How many steps to measure, 20 by default.", "N", min=3)
    ] = None,
    budget: Annotated[str | None, option(_MEASURED, "--budget", "How long it may take: 10min.", "TIME")] = None,
    describe: Annotated[
        bool, option(_MEASURED, "--describe", "First add this machine's CPU to your catalog, as --device.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        option(_MEASURED, "--set", "Set a parameter of the SOURCEs; several values multiply out.", "NAME=VALUE,…"),
    ] = None,
    store: Annotated[
        Path | None,
        option(_MEASURED, "--store", "Where measurements are kept, to go on later ($FORETELL_STORE).", "FOLDER"),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="PROFILE",
            help="A profile of another device or cluster to start from, as far as it helps.",
        ),
    ] = None,
    trainer: Annotated[
        str, typer.Option("--trainer", metavar="TEXT", help="What trains, for the profile's card.")
    ] = "",
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Make a profile of step times: choose what to measure, measure it or read it, fit as far as it helps."""
    from foretell.forecasting.forecast import DEFAULT_MODEL, load_model
    from foretell.learn.adapt.fit import fit_profile
    from foretell.profile import SUFFIX, Profile, Purpose
    from foretell.report.profiles import profile_dict, profile_table

    if given is not None and (sources or runs is not None or budget is not None or settings or describe):
        raise InputError(
            "--from reads step times, and SOURCE, --set, --runs, --budget and --describe are for measuring. Give one or the other."
        )
    if collectives:
        _adapt_links(given, device, save, as_json)
        return
    if given is None and not device:
        raise InputError(
            "what shall forecasts fit? Give --from STEPS.csv, or --device NAME to measure here, such as --device cpu."
        )
    priced_by = load_model(model or DEFAULT_MODEL)
    before = None if start is None else Profile.load(start)
    path = _place_of(save)
    if describe:
        _describe(device)
    if given is not None:
        steps, versions = _read(given, device), ""
    else:
        steps, versions = _measured(sources or [], settings, device, runs, budget, store, model)
    with progress() as say:
        say(f"fitting {len(steps)} steps")
        name = path.name.removesuffix(SUFFIX)
        clusters = {str(step.on) for step in steps} - {device}
        purpose = Purpose(
            device=device, cluster=clusters.pop() if len(clusters) == 1 else "", trainer=trainer, versions=versions
        )
        found = fit_profile(
            steps,
            name=name,
            purpose=purpose,
            sources=[given.name] if given else ["measured here"],
            model=priced_by,
            start=before,
            say=say,
        )
    found.save(path)
    answer(as_json, lambda: profile_dict(found) | {"file": str(path)}, lambda width: profile_table([found]))
    _tell(found, path, save)


def _tell(found: Profile, path: Path, save: str) -> None:
    if found.card.form == "nothing":
        note("No fit was better than none on steps left out, so the profile changes no time; it has an interval.")
    note(f"Written to {path}. Use it with: foretell predict SOURCE --on CLUSTER --profile {save}")


def _describe(device: str) -> None:
    from foretell.measure.this_cpu import describe_this_cpu

    with progress() as say:
        say("measuring this CPU")
        files = describe_this_cpu(device)
    note(f"This CPU is in your catalog now: {files[0]}")


def _read(path: Path, device: str) -> list[Step]:
    from foretell.learn.adapt.kept import kept_steps
    from foretell.learn.adapt.table import read_steps

    return kept_steps(path) if path.suffix == ".jsonl" or path.is_dir() else read_steps(path, device)


def _adapt_links(given: Path | None, cluster: str, save: str, as_json: bool) -> None:
    from foretell.learn.adapt.collectives import fit_collectives
    from foretell.learn.adapt.kept import kept_collectives
    from foretell.report.profiles import profile_dict, profile_table

    if given is None:
        raise InputError(
            "--collectives fits what was measured: give --from FILE.jsonl, as foretell measure --collectives writes it."
        )
    times, on = kept_collectives(given, cluster)
    path = _place_of(save)
    found = fit_collectives(times, name=path.stem, cluster=str(on), sources=[given.name])
    found.save(path)
    answer(as_json, lambda: profile_dict(found) | {"file": str(path)}, lambda width: profile_table([found]))
    _tell(found, path, save)


def _place_of(save: str) -> Path:
    from foretell.profile import SUFFIX, folders

    return Path(save) if save.endswith(SUFFIX) else folders()[0] / f"{save}{SUFFIX}"


def _measured(
    sources: list[str], settings: list[str] | None, device: str, runs: int | None, budget: str | None,
    store: Path | None, model: str | None,
) -> tuple[list[Step], str]:  # fmt: skip
    from importlib.metadata import version

    from foretell import hardware
    from foretell.forecasting.forecast import DEFAULT_MODEL
    from foretell.learn.adapt.local import RUNS, measure_here
    from foretell.learn.adapt.pool import usual_points
    from foretell.measure.record import Point
    from foretell.store import place
    from foretell.units import parse_seconds

    seconds = None if budget is None else parse_seconds(budget)
    if seconds is not None and seconds <= 0:
        raise InputError(f"--budget {budget} leaves no time. Give more than nothing, like 10min.")
    known = hardware.device(device)
    points = [Point(source=source, settings=s) for source in sources for s in combinations(settings)] or usual_points(
        known
    )
    kept = place.opened(store, None, note)
    with progress() as say:
        steps = measure_here(
            points, device, kept, place="cpu" if known.kind == "cpu" else "auto", runs=RUNS if runs is None else runs,
            budget=seconds, model=model or DEFAULT_MODEL, say=say,
        )  # fmt: skip
    return steps, f"torch {version('torch')}"
