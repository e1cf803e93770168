"""`foretell fit`: measurements → a model that `predict --model` takes, or a published system for `predict --method`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli.methods import fit_method
from foretell.cli.options import AsJson
from foretell.cli.terminal import note, print_json, progress
from foretell.errors import InputError
from foretell.store.place import DEFAULT_STORE


def fit(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the model is written; its name is the model's.")],
    store: Annotated[
        list[Path] | None,
        typer.Option(
            "--store",
            metavar="FOLDER",
            envvar="FORETELL_STORE",
            help="The store ($FORETELL_STORE); may be given again.",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Learn what was measured on it.")] = "h200",
    products: Annotated[
        Path | None,
        typer.Option("--products", metavar="FILE", help="Public measurements of matrix products to learn from too."),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option("--public", metavar="FOLDER", help="Public measurements of other devices, to learn them too."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is random in the fit.")] = 0,
    intervals: Annotated[
        bool,
        typer.Option("--intervals/--no-intervals", help="Find how large errors are on unseen families; takes longer."),
    ] = True,
    unseen: Annotated[
        Path | None,
        typer.Option(
            "--unseen", metavar="FILE", help="What `bench accuracy --save` wrote of this store: spares the time."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="Fit a published system instead: scaledl, predictddl, driple, …"),
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE", help="With --method: a table (.csv) or record file; may be given again."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the models of operators, the network over them, the host and their errors on a store of measurements."""
    if method is not None:
        alone = {"--products": products, "--public": public, "--unseen": unseen}
        if given := [name for name, value in alone.items() if value is not None]:
            raise InputError(f"{', '.join(given)} cannot go with --method, which learns from records and tables alone.")
        places = [*(store or []), *(table or [])]
        fit_method(method, out, places or [DEFAULT_STORE], as_json)
        return
    if table:
        raise InputError("--from is a table for a published system. Give --method NAME too, or use --store.")
    from foretell.learn.fit import fit as fit_model
    from foretell.learn.interaction import INSTALL, is_installed
    from foretell.learn.uncertainty.left_out import read_unseen
    from foretell.store.store import Store

    if out.exists() and not (out / "operators.json").exists() and any(out.iterdir()):
        raise InputError(f"{out} holds something else than a model. Choose a new folder.")
    opened = [Store(path) for path in store or [DEFAULT_STORE]]
    for one in opened:
        if not one.exists():
            raise InputError(
                f"there is no store in {one.path}. Measure first: foretell measure SOURCE --store {one.path}"
            )
    predicted = read_unseen(unseen) if unseen is not None else None
    with progress() as say:
        card = fit_model(
            opened,
            out,
            device=device,
            public=products,
            others=public,
            seed=seed,
            intervals=intervals,
            unseen=predicted,
            progress=say,
        )
    if not is_installed():
        note(INSTALL)
    if as_json:
        print_json(asdict(card))
    else:
        note(
            f"Fitted on {card.ops} ops of {card.steps} steps of {card.architectures} architectures on {card.device}; "
            f"use it with: foretell predict SOURCE --on {card.device} --model {out}"
        )
