"""`foretell prices`: what instances cost, on which terms, and how old that is."""

from __future__ import annotations

from typing import Annotated

import typer

from foretell.cli import options
from foretell.cli.terminal import answer, note
from foretell.errors import InputError


def prices(
    text: Annotated[str, typer.Argument(metavar="[FILTER]", help="Only instances or devices with this text.")] = "",
    term: Annotated[str | None, typer.Option("--term", help="Only on-demand, reserved or spot.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Only in this region, like us-east-1.")] = None,
    files: options.Prices = None,
    as_json: options.AsJson = False,
) -> None:
    """List what instances cost: term, region, source, and how old the price is."""
    from foretell.hardware import offered, read_prices, term_named
    from foretell.report.prices import offer_dict, price_rows, price_table

    wanted = None if term is None else term_named(term)
    found = price_rows(read_prices(*files) if files else offered(), text.lower(), wanted, region)
    if not found and (wanted is not None or region is not None or files):
        raise InputError("no price is known for that. Leave out a filter, or give a table with --prices FILE.")
    if found or as_json:
        answer(as_json, lambda: list(map(offer_dict, found)), lambda width: price_table(found, width=width))
    else:
        note(f"Nothing that is rented has {text!r} in its name or its device's.")
