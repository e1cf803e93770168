"""`foretell design`: what to measure next, under a budget of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli.options import AsJson, combinations
from foretell.cli.store import StorePath
from foretell.cli.terminal import answer, note, progress
from foretell.errors import InputError
from foretell.store.place import DEFAULT_STORE

if TYPE_CHECKING:
    from foretell.measure.record import Point

_OPERATORS = "operators"


def design(
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="What will measure: h200, …")],
    budget: Annotated[str, typer.Option("--budget", metavar="TIME", help="Seconds to spend: 10min, 2h, 90.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE]…", help="Workloads to choose from, as `foretell predict` takes them."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE,…", help="Set a parameter of the SOURCEs; several values multiply out."
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="operators|FILE", help="Choose from the operator pool, or a campaign file."),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="d-optimal, a-optimal or random.")] = "d-optimal",
    store: StorePath = DEFAULT_STORE,
    seed: Annotated[int, typer.Option("--seed", help="Of random choice, and of the operator pool.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.jsonl", help="Write it for `foretell measure --campaign`.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Draw what is covered, as one HTML file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose what to measure under a budget of seconds, given what the store has already."""
    from foretell import hardware
    from foretell.campaign.jobs import Campaign
    from foretell.design.cache import op_sets, stored_op_sets
    from foretell.design.design import design as choose
    from foretell.design.design import method_named
    from foretell.design.information import candidate
    from foretell.report import design as designed
    from foretell.store.store import Store
    from foretell.units import parse_seconds

    device, seconds, way = hardware.device(on), parse_seconds(budget), method_named(method)
    opened = Store(store, warn=note)
    with progress() as say:
        say("listing candidates")
        done = opened.done(device.name) if opened.exists() else frozenset()
        points = [p for p in _points(sources or [], settings or [], pool, seed) if p.key not in done]
        known = [ops for _, ops in stored_op_sets(opened, progress=say, device=device.name)]
        found, failed = op_sets(points, opened, progress=say)
        say("choosing")
        candidates = [candidate(p, found[p.key], device) for p in points if p.key in found]
        made = choose(candidates, device, seconds, method=way, known=known, seed=seed)
    answer(as_json, lambda: designed.design_dict(made), lambda width: designed.design_table(made))
    if failed:
        [(key, reason), *_] = failed.items()
        name = next(str(p) for p in points if p.key == key)
        note(f"{len(failed):,} candidates cannot be captured and are left out, such as {name}: {reason}")
    if not made.choices:
        note("Nothing is worth a measurement: give a larger --budget, or other candidates.")
    if out is not None:
        Campaign.of([c.candidate.point for c in made.choices], name=out.stem, device=device.name).save(out)
        note(f"Campaign written to {out}; measure it with: foretell measure --campaign {out}")
    if html is not None:
        designed.write_coverage(made, html)
        note(f"Coverage drawn in {html}")


def _points(sources: Sequence[str], settings: Sequence[str], pool: str | None, seed: int) -> list[Point]:
    from foretell.campaign.jobs import Campaign
    from foretell.measure.record import Point

    if bool(sources) == (pool is not None):
        raise InputError(
            "design chooses from SOURCEs, or from a --pool: `--pool operators`, or a campaign file. Give one of the two."
        )
    if settings and pool is not None:
        raise InputError("--set sets a parameter of SOURCEs, and a --pool has its settings. Leave it out.")
    if pool == _OPERATORS:
        from foretell.design.pool.shapes import candidates

        return candidates(seed)
    if pool is not None:
        return list({point.key: point for point in Campaign.load(pool).points}.values())
    return [Point(source=source, settings=chosen) for source in sources for chosen in combinations(settings)]
