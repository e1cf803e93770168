"""What a user is told when a script ends without a step: what happened, where, and what to do about it."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.capture.script.readings import decisions
from foretell.sources.scripts import Script

_READ_ARGUMENTS: Final = (
    "argparse.py",
    "optparse.py",
    "absl/app.py",
    "click/core.py",
    "fire/core.py",
    "hf_argparser.py",
)
_TRAINS: Final = re.compile(
    r"\b(torchrun|deepspeed|accelerate launch|python[\d.]* +(-\S+ +)*\S+\.py|python[\d.]* -m +\S+)"
)


def on_exit(script: Script, wish: SystemExit) -> str:
    """A script that ended itself before its step, by `sys.exit`, or in the reader of its arguments."""
    frames = [f for f in traceback.extract_tb(wish.__traceback__) if not is_library(f.filename)]
    where = f" in line {frames[-1].lineno} of {frames[-1].filename} ({frames[-1].line})" if frames else ""
    if isinstance(wish.code, str):
        return f"{script.path} ended itself{where}, saying: {wish.code.strip()} Give it what it wants as arguments, after --."
    if any(f.filename.endswith(_READ_ARGUMENTS) for f in traceback.extract_tb(wish.__traceback__)):
        given = " ".join(script.arguments) or "none"
        return (
            f"{script.path} does not take the arguments that it was given ({given}){where}. Arguments of the script come after "
            f"--, as in: foretell predict {script.path} --on h100-sxm -- --name value. What it printed says which it wants."
        )
    return (
        f"{script.path} ended itself with exit code {wish.code!r}{where}, before its third update. What it printed says why; give "
        "it what it wants as arguments, after --."
    )


def on_no_step(script: Script, updates: int, *, optimizers: int = 0, started: Sequence[str] = ()) -> str:
    if not updates and started:
        return (
            f"{script.path} makes no update itself: it starts other processes, the last of them: {started[-1]}. Forecast that "
            f"instead: foretell predict --launch '{started[-1]}' --on …"
        )
    if not updates and optimizers:
        return (
            f"{script.path} makes an optimizer and ran to its end without an update{_last_of(script)}: there is no step to "
            "forecast. Does it find any data, and train for at least one epoch? Give it arguments, after --, or data, with --fake-data."
        )
    if not updates:
        return (
            f"{script.path} ran to its end without an update of a torch optimizer{_last_of(script)}: there is no step to forecast. "
            + _functions(Path(script.path))
        )
    if updates > 2:
        return (
            f"{script.path} made {updates} updates, but no step of it ran on the accelerator: its model stays on the "
            "host. Move it there, for example with model.to('cuda'), or give it the argument for that, after --."
        )
    ended = f"{script.path} ran to its end after {updates} update{'s' * (updates > 1)}."
    if why := decisions():
        return f"{ended} It may have decided to stop: {why}. Let it train for at least three steps whatever they are."
    return f"{ended} Give it data for at least three steps: more epochs, or a smaller batch, as arguments after --."


class Started:
    """Hears of processes that a script starts to train in."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("subprocess.Popen", "os.system"):
            return
        command = arguments[0] if event == "os.system" else arguments[1]
        with contextlib.suppress(Exception):  # whatever was started, it is not ours to fail
            words = command if isinstance(command, str) else " ".join(map(os.fsdecode, command))
            words = words.decode() if isinstance(words, bytes) else words
            if _TRAINS.search(words):
                self.commands.append(words)


def _last_of(script: Script) -> str:
    """The statement that a script ends with, which says what it is for."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        text = Path(script.path).read_text(encoding="utf-8")
        body = ast.parse(text).body
        while body and isinstance(body[-1], ast.If):
            body = body[-1].body
        if body and not isinstance(body[-1], ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            words = " ".join(ast.unparse(body[-1]).split())
            return f", with line {body[-1].lineno} of {script.path} ({words[:80]}) as its last"
    return ""


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
