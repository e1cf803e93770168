"""Published systems from the command line: fitted on one's own records, and asked beside a forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.cli.terminal import note, print_json, progress
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell import Forecast
    from foretell.methods import Prediction

Named = tuple[str, "Prediction"]  # with the method's name


def fit_method(name: str, out: Path, places: Sequence[Path], as_json: bool) -> None:
    """`foretell fit FOLDER --method NAME`."""
    from foretell.methods import examples_of, method, save

    made = method(name)()
    with progress() as say:
        examples = [example for place in places for example in examples_of(place, say)]
        say(f"fitting {made.name} on {len(examples)} steps")
        fitted = made.fit(examples)
        save(fitted, out)
    architectures = len({e.query.architecture for e in examples})
    targets = sorted({target for e in examples for target in e.measured})
    if as_json:
        print_json({"method": name, "steps": len(examples), "architectures": architectures, "targets": targets})
        return
    note(
        f"Fitted {made.name} on {len(examples)} steps of {architectures} architectures ({', '.join(targets)}); use it with: "
        f"foretell predict SOURCE --on CLUSTER --method {out}"
    )


def ask(
    folder: Path, source: str, settings: Mapping[str, str], forecasts: Sequence[Forecast], cache: bool
) -> list[Named]:
    """What a fitted method says of the steps that were forecast."""
    import foretell
    from foretell.methods import load, query_of

    fitted = load(folder)
    graph = foretell.capture_graph(source, settings, cache=cache)
    queries = [query_of(graph, f.cluster, f.plan, architecture=source, settings=settings) for f in forecasts]
    return [(fitted.name, answer) for answer in fitted.predict(queries)]


def refuse(method: Path | None, resources: bool, others: Mapping[str, Any]) -> None:
    """What --method and --resources do not go with."""
    given = [name for name, value in (("--method", method), ("--resources", resources)) if value]
    if given and (found := [name for name, value in others.items() if value]):
        raise InputError(f"{' and '.join(given)} cannot go with {', '.join(found)}. Leave one of them out.")
