"""Runs of a plan by a command of the user's: it is told the plan, and its last line is the seconds of a step."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import fields
from typing import Final

from foretell.errors import InputError, did_you_mean
from foretell.plans import Plan
from foretell.units import Seconds

_NAME: Final = re.compile(r"\{(\w*)\}")


class Command:
    """`torchrun … train.py --tp {tp} --batch {batch}`: names in braces are settings of the plan, `batch` or `plan`.

    The same are in the environment, as FORETELL_TP and so on. A command that fails is a plan that does not run.
    """

    def __init__(self, text: str, limit: Seconds = 3600.0) -> None:
        self.text, self.limit = text, limit
        self._filled(Plan(), 1)  # a slip in a name is an error before the first run

    def __call__(self, plan: Plan, batch: int) -> Seconds | None:
        words = shlex.split(self._filled(plan, batch))
        settings = {variable(name): f"{value}" for name, value in _names(plan, batch).items()}
        try:
            ran = subprocess.run(
                words, capture_output=True, text=True, timeout=self.limit, check=False, env={**os.environ, **settings}
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
        return filled(self.text, plan, batch, None, "--measure")


def filled(text: str, plan: Plan, batch: int, precision: str | None, option: str) -> str:
    """A command with the plan's settings for their names in braces. Other braces, like those of JSON, stay."""
    names = _names(plan, batch) | ({} if precision is None else {"precision": precision})

    def value(found: re.Match[str]) -> str:
        if found[1] not in names:
            raise InputError(
                f"{option} {text!r}: {found[1]!r} is not known. {did_you_mean(found[1], names)}Names in braces: {', '.join(names)}."
            )
        return f"{names[found[1]]}"

    return _NAME.sub(value, text)


def variables(plan: Plan, batch: int, precision: str) -> dict[str, str]:
    """Of the environment: the plan whole, and every setting that is not as usual."""
    usual = Plan()
    settings = {f.name: getattr(plan, f.name) for f in fields(Plan) if getattr(plan, f.name) != getattr(usual, f.name)}
    named = {"plan": plan, "batch": batch, "precision": precision, "grad_accumulation": 1} | settings
    return {variable(name): f"{value}" for name, value in named.items()}


def variable(name: str) -> str:
    return f"FORETELL_{name.upper()}"


def _names(plan: Plan, batch: int) -> dict[str, object]:
    return {"plan": str(plan), "batch": batch} | {f.name: getattr(plan, f.name) for f in fields(Plan)}
