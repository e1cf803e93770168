"""Runs of a plan by a command of the user's: it is told the plan, and its last line is the seconds of a step."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import fields

from foretell.errors import InputError
from foretell.plans import Plan
from foretell.units import Seconds


class Command:
    """`torchrun … train.py --tp {tp} --batch {batch}`: names in braces are settings of the plan, `batch` or `plan`.

    The same are in the environment, as FORETELL_TP and so on. A command that fails is a plan that does not run.
    """

    def __init__(self, text: str, limit: Seconds = 3600.0) -> None:
        self.text, self.limit = text, limit
        self._filled(Plan(), 1)  # a slip in a name is an error before the first run

    def __call__(self, plan: Plan, batch: int) -> Seconds | None:
        words = shlex.split(self._filled(plan, batch))
        variables = {f"FORETELL_{name.upper()}": f"{value}" for name, value in _names(plan, batch).items()}
        try:
            ran = subprocess.run(
                words, capture_output=True, text=True, timeout=self.limit, check=False, env={**os.environ, **variables}
            )
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            raise InputError(f"{words[0]} cannot be run: {error.strerror}. Correct the command of --measure.") from None
        if ran.returncode:
            return None
        last = (ran.stdout.strip().splitlines() or [""])[-1]
        try:
            seconds = float(last)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e9:
            raise InputError(
                f"the last line of {words[0]} must be the seconds of a step, like 0.231, got {last[:80]!r}."
            )
        return seconds

    def _filled(self, plan: Plan, batch: int) -> str:
        try:
            return self.text.format(**_names(plan, batch))
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"--measure {self.text!r}: {error} is not known. Names in braces: {', '.join(_names(Plan(), 1))}."
            ) from None


def _names(plan: Plan, batch: int) -> dict[str, object]:
    return {"plan": str(plan), "batch": batch} | {f.name: getattr(plan, f.name) for f in fields(Plan)}
