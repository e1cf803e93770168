"""`foretell profiles`: what makes forecasts fit machines, clusters and trainers, as files."""

from __future__ import annotations

from typing import Annotated

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, note


def profiles(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PROFILE]…", help="Names or .toml files; all of yours without.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List profiles: what they are for, what was fitted, errors before and after."""
    from foretell.profile import Profile, folders, profile_files
    from foretell.report.profiles import profile_dict, profile_table

    found = [Profile.load(name) for name in names or [str(path) for path in profile_files().values()]]
    if not found and not as_json:
        note(f"There are no profiles in {', '.join(map(str, folders()))}. Make one: foretell adapt --help")
        return
    answer(as_json, lambda: [profile_dict(each) for each in found], lambda width: profile_table(found))
