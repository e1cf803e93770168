"""`foretell models`: names of architectures that a SOURCE may be."""

from __future__ import annotations

from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import note, print_json, progress, say
from foretell.errors import InputError, check_choice


def models(
    library: Annotated[
        str, typer.Argument(metavar="[LIBRARY]", help="timm, torchvision or hf; all of them without.")
    ] = "",
    text: Annotated[str, typer.Argument(metavar="[FILTER]", help="Only names that contain this text.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the names that predict takes: timm/NAME, torchvision/NAME, hf/NAME."""
    from foretell.errors import SourceError
    from foretell.sources import named

    known = [name for name, (_, extra) in named.LIBRARIES.items() if extra]
    if library and library not in known and not text:
        library, text = "", library  # a filter alone
    if library:
        check_choice("library", library, known, InputError)
    found = []
    with progress() as report:
        for prefix in [library] if library else known:
            report(f"loading {prefix}")
            try:
                names = named.library(prefix).names()
            except SourceError as missing:
                if library:
                    raise
                note(str(missing))
                continue
            found += [f"{prefix}/{name}" for name in names if text.lower() in name.lower()]
    if as_json:
        print_json(found)
    elif found:
        say("\n".join(found))
    else:
        note(f"No name contains {text!r}.")
