"""Whose fault it is that a script ends in an error: its own, its surroundings', or Foretell's. Each has a way out."""

from __future__ import annotations

import os
import re
from typing import Final

import torch
from torch._subclasses import fake_tensor

from foretell.capture.explain import words_of
from foretell.capture.reads import OWN, is_library
from foretell.capture.script.causes import known_cause
from foretell.capture.script.ended import Ended, Fault, shown, workload_of

_PASSED_ON: Final = re.compile(r"\*\w+, \*\*\w+\)")  # a call of the script's that a function of ours hands on
_NAMED: Final = 3  # stand-ins that a message names
# What only tensors without contents raise, and what kernels that this machine does not have do.
_WITHOUT_CONTENTS: Final = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
)
_OF_FAKES: Final = (
    "FakeTensor",
    "fake tensor",
    "data is not allocated yet",
    "without storage",
    "Could not run 'aten::",
)


def fault_of(ended: Ended) -> Fault:
    """Decide by where it was raised, and by what."""
    if (known := known_cause(ended)) is not None:
        return known
    if _lacks_contents(ended):
        return _without_contents(ended)
    frames = ended.frames
    last = (frames[-1].line or "") if frames else ""
    ours = not last.startswith("raise") and not _PASSED_ON.search(last)
    if frames and frames[-1].filename.startswith(OWN) and ours:
        return Fault(
            whose="foretell",
            cause="Its own code failed: please report it, with the traceback.",
            way_out=workload_of(ended.script),
        )
    return _unknown(ended)


def _lacks_contents(ended: Ended) -> bool:
    return any(
        isinstance(e, _WITHOUT_CONTENTS)
        or (isinstance(e, RuntimeError | NotImplementedError | TypeError) and any(w in words_of(e) for w in _OF_FAKES))
        for e in ended.chain()
    )


def _without_contents(ended: Ended) -> Fault:
    return Fault(
        whose="foretell",
        cause="Tensors of the accelerator that is not there have shapes and no contents, and an operation asks for contents, or "
        "for a kernel that this machine does not have.",
        way_out="Declare the function that does it in a file, and give it with --opaque FILE: "
        "foretell.opaque('package.function', outputs=lambda x: x.new_empty(x.shape)). " + workload_of(ended.script),
    )


def _unknown(ended: Ended) -> Fault:
    """An error of Python's or a library's, in the script's own frames."""
    happened = f"{shown(ended.script.path)} failed{ended.line} with {ended.named}."
    if ended.missing:
        missing, _, way_out = ended.missing[-1].partition(". ")
        return Fault(
            whose="surroundings", cause=f"{happened} That may come of what is missing: {missing}.", way_out=way_out
        )
    if ended.stand_ins:
        names = ", ".join(map(str, ended.stand_ins[:_NAMED])) + (", …" if len(ended.stand_ins) > _NAMED else "")
        return Fault(
            whose="unclear",
            cause=f"{happened} That may come from what Foretell stood in for ({names}), not from the script.",
            way_out="Put small real ones of a few samples in their place: what is here is read as it is. Or choose other data "
            "with the script's own arguments, after --.",
        )
    at, last = ended.place, ended.frames[-1] if ended.frames else None
    if at is not None and last is not None and last.filename != at.filename and not is_library(at.filename):
        library = _library(last.filename)
        if library:
            return Fault(
                whose="unclear",
                cause=f"{happened} The error comes from {library}, which the script calls there.",
                way_out="Run it as it is with python: if it fails in the same way, it is written for another version of "
                f"{library}, or wants other arguments (after --); if not, Foretell is at fault, and wants a report.",
            )
    return Fault(
        whose="script",
        cause=f"{happened} That line is the script's own: it fails so on any machine with torch {torch.__version__.split('+')[0]}.",
        way_out="Mend it, or give the script other arguments, after --.",
    )


def _library(filename: str) -> str:
    """The package in which a file lies."""
    _, found, rest = filename.partition(f"site-packages{os.sep}")
    return rest.partition(os.sep)[0] if found else ""
