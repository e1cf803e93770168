"""A script that ended in an error, and how a user reads why."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from foretell.capture.explain import traceback_of, words_of
from foretell.capture.reads import is_library
from foretell.capture.script.findings import StandIn
from foretell.errors import CaptureError, ForetellError, WorkloadError
from foretell.sources.scripts import Script

Whose = Literal["script", "surroundings", "foretell", "unclear"]
_WRAPPERS: Final = ("InstantiationException", "ConfigCompositionException")
_WORKLOAD: Final = """A step can always be written down by itself, and forecast as step.py:step:
    import foretell, torch, {name}
    def step(batch: int = 64) -> foretell.Workload:
        return foretell.Workload(name="step", model=lambda: {name}.Model(), batch=lambda: torch.randn(batch, 3, 224, 224),
                                 loss=lambda model, x: model(x).mean(), optimizer=lambda p: torch.optim.AdamW(p))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A script that ended in an error."""

    script: Script
    error: BaseException
    stand_ins: Sequence[StandIn] = ()
    missing: Sequence[str] = ()  # what is said of packages that it called and that are not installed

    @property
    def frames(self) -> list[traceback.FrameSummary]:
        return list(traceback.extract_tb(self.error.__traceback__))

    @property
    def place(self) -> traceback.FrameSummary | None:
        """The innermost line of the script, or of what it imports from its folder."""
        return next((f for f in reversed(self.frames) if not is_library(f.filename)), None)

    @property
    def line(self) -> str:
        """` in line 3 of train.py (x = 1 / 0)`, or nothing."""
        at = self.place
        return f" in line {at.lineno} of {shown(at.filename)} ({at.line})" if at else ""

    @property
    def named(self) -> str:
        """Its kind and the first lines of its message."""
        first = words_of(self.error).split("\n\n")[0][:600]
        words = re.sub(r"\s*\n\s*", " ", first) or "(it has no message)"  # one line, before the way out
        notes = "".join(f" {note}" for note in getattr(self.error, "__notes__", ()) if isinstance(note, str))
        return f"{type(self.error).__name__}: {words}{notes}"

    def chain(self) -> Iterator[BaseException]:
        """The error and what it came from."""
        error: BaseException | None = self.error
        while error is not None:
            yield error
            error = error.__cause__ or error.__context__


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a script ended: `cause` is a sentence, and so is `way_out`."""

    whose: Whose
    cause: str
    way_out: str

    def error(self, ended: Ended) -> ForetellError:
        """As the user reads it, with the traceback when debugging."""
        path, trace = shown(ended.script.path), traceback_of(ended.error)
        seen = "" if trace else " foretell --debug shows the whole traceback."
        if self.whose == "foretell":
            text = (
                f"Foretell could not follow {path}, and the script is not to blame. {self.cause} {self.way_out}\n"
                f"It happened{ended.line}: {ended.named}.{seen}"
            )
            return CaptureError(f"{text}{trace}")
        return WorkloadError(f"{self.cause} {self.way_out}{seen if self.whose != 'surroundings' else ''}{trace}")


def first_of(error: BaseException) -> BaseException:
    """Where an error is from: what a maker of things by name (Hydra) has wrapped, or what tidying up has met with."""
    while type(error).__name__ in _WRAPPERS and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, NameError) and isinstance(error.__context__, Exception):
        return first_of(error.__context__)  # a name that would have been given had the first error not come
    return error


def workload_of(script: Script) -> str:
    """The way out that always works."""
    return _WORKLOAD.format(name=script.name)


def shown(path: str) -> str:
    """Relative to the current folder, where it lies in it."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
