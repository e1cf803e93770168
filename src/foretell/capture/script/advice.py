"""What a user is told when a script ends without a step: what happened, where, and what to do about it."""

from __future__ import annotations

import ast
import os
import traceback
from pathlib import Path

from foretell.capture.reads import is_library
from foretell.capture.script.readings import decisions
from foretell.sources.scripts import Script


def on_missing_file(script: Script, error: FileNotFoundError) -> str:
    what = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else str(error)
    happened = f"{script.path} reads {what}{_line_of(error)}, which is not on this machine."
    if not script.fake_data:
        return f"{happened} Give --fake-data to stand in for data sets and checkpoints, or put a small one of its kind there."
    return (
        f"{happened} What is in it cannot be found out from the script: put a small one of its kind there, of a few rows or "
        "samples of the usual shapes, or say with the script's own arguments where one is."
    )


def on_refusal(script: Script, refused: str, error: Exception) -> str:
    stand_in = "" if script.fake_data else " Give --fake-data to stand in for data sets and checkpoints,"
    return (
        f"{script.path} asks for {refused}{_line_of(error)}, and scripts run offline.{stand_in} or let the script read what is "
        "on this machine."
    )


def on_no_step(script: Script, updates: int) -> str:
    if not updates:
        return (
            f"{script.path} ran to its end without an update of a torch optimizer: there is no step to forecast. "
            + _functions(Path(script.path))
        )
    if updates > 2:
        return (
            f"{script.path} made {updates} updates, but no step of it ran on the accelerator: its model stays on the "
            "host. Move it there, for example with model.to('cuda')."
        )
    ended = f"{script.path} ran to its end after {updates} update{'s' * (updates > 1)}."
    if why := decisions():
        return f"{ended} It may have decided to stop: {why}. Let it train for at least three steps whatever they are."
    return f"{ended} Give it data for at least three steps."


def _line_of(error: Exception) -> str:
    """The line of the script, or of what it imports, that an error comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    return f" in line {frames[-1].lineno} of {frames[-1].filename} ({frames[-1].line})" if frames else ""


def _functions(path: Path) -> str:
    """Functions of a file that are annotated to return a Workload: the only ones that are safe to suggest."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns).endswith("Workload")
    ]
    if names:
        return f"Name what makes a Workload: {' or '.join(repr(f'{path}:{name}') for name in names)}."
    return "Does it train when it is run with these arguments? Give them after --."
