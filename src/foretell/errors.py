"""What can go wrong, as one tree. A message says what, got, allowed, and what to do next.

ForetellError                  exit 1: our fault
├── CaptureError               the capturing process crashed or ran out of time
├── InputError                 exit 2: something in the question cannot be answered
│   ├── SourceError            SOURCE does not name a workload
│   ├── WorkloadError          a Workload is wrong, or fails in the user's own code
│   ├── PlanError              a Plan does not divide the devices, or is impossible
│   │   └── NotModelled        a Plan that would run, but that this version does not model yet
│   ├── ProfileError           a profile that is missing, wrong or too new
│   ├── CatalogError           unknown hardware, or a catalogue file that is wrong
│   ├── GraphFileError         a truncated, foreign or too new .graph file
│   ├── StoreError             a store that is too new, busy, or on a full disk
│   └── ModelError             a fitted model that is missing, broken or too new
└── RequirementNotMet          exit 3: the answer is no, and the user asked to be told by exit code
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ForetellError(Exception):
    exit_code = 1


class CaptureError(ForetellError):
    pass


class InputError(ForetellError):
    exit_code = 2


class SourceError(InputError):
    pass


class WorkloadError(InputError):
    pass


class PlanError(InputError):
    pass


class NotModelled(PlanError):
    pass


class ProfileError(InputError):
    pass


class CatalogError(InputError):
    pass


class GraphFileError(InputError):
    pass


class StoreError(InputError):
    pass


class ModelError(InputError):
    pass


class RequirementNotMet(ForetellError):
    exit_code = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'h100-sxm'? ` for a misspelt name, or nothing when no name is near."""
    near = difflib.get_close_matches(name.lower(), list(known), n=2, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""


def check_count(name: str, value: Any, error: type[Exception]) -> None:
    """Refuse what is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise error(f"{name} must be a whole number of at least 1, got {value!r}.")
