"""`foretell devices`: the hardware catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, note
from foretell.errors import InputError, check_choice

if TYPE_CHECKING:
    from rich.console import RenderableType


def devices(
    text: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only those whose name or title contains this text.")
    ] = "",
    vendor: Annotated[str | None, typer.Option("--vendor", help="Only devices of this vendor.")] = None,
    links: Annotated[bool, typer.Option("--links", help="List links instead.")] = False,
    instances: Annotated[bool, typer.Option("--instances", help="List instances that clouds rent instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the hardware catalog: devices, links, rented instances."""
    from foretell import hardware
    from foretell.report import catalog

    if links and instances:
        raise InputError("--links and --instances list different things. Give one of them.")
    if vendor is not None and (links or instances):
        raise InputError("--vendor filters devices. Leave it out with --links and --instances.")
    things: Sequence[Any] = hardware.devices()
    table: Callable[..., RenderableType] = catalog.device_table
    if links:
        things, table = hardware.links(), catalog.link_table
    elif instances:
        things, table = hardware.instances(), catalog.instance_table
    elif vendor is not None:
        vendors = sorted({device.vendor for device in things}, key=str.lower)
        check_choice("vendor", vendor.lower(), [known.lower() for known in vendors], InputError)
        things = [device for device in things if device.vendor.lower() == vendor.lower()]
    wanted = text.lower()
    found = [thing for thing in things if wanted in thing.name.lower() or wanted in thing.title.lower()]
    if found or as_json:
        answer(as_json, lambda: list(map(asdict, found)), lambda width: table(found, width=width))
    else:
        note(f"Nothing in the catalog has {text!r} in its name or title.")
