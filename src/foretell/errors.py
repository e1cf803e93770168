"""What can go wrong, as one tree with exit codes. A message says what, got, allowed, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from foretell.text import brief, plain


class ForetellError(Exception):
    """Anything that ends a forecast. By itself it is Foretell's own fault (exit code 1).

    Attributes:
        exit_code: What the command line exits with.

    Examples:
        >>> foretell.ForetellError("a message").exit_code
        1
    """

    exit_code = 1

    def __str__(self) -> str:
        """For people, on a terminal: what was given may be a name from a file, or a whole file."""
        return brief(plain(super().__str__()))


class CaptureError(ForetellError):
    """The capturing process crashed, ran out of time, or failed in our own code."""


class InputError(ForetellError):
    """Something in the question cannot be answered: unknown hardware, an impossible plan, a wrong file.

    Attributes:
        exit_code: 2.

    Examples:
        >>> try:
        ...     foretell.device("h1000")
        ... except foretell.InputError as error:
        ...     print(error.exit_code)
        2
    """

    exit_code = 2


class SourceError(InputError):
    """SOURCE does not name a workload."""


class WorkloadError(InputError):
    """A Workload is wrong, or fails in the user's own code."""


class PlanError(InputError):
    """A Plan does not divide the devices, or is impossible."""


class NotModelled(PlanError):
    """A Plan that would run, but that this version does not model yet."""


class ProfileError(InputError):
    """A profile that is missing, wrong or too new."""


class CatalogError(InputError):
    """Unknown hardware, or a catalog file that is wrong."""


class GraphFileError(InputError):
    """A truncated, foreign or too new .graph file."""


class StoreError(InputError):
    """A store that is too new, busy, or on a full disk."""


class ModelError(InputError):
    """A fitted model that is missing, broken or too new."""


class RequirementNotMet(ForetellError):
    """The answer is no, and the caller asked for an exit code that says so (`--require-fit`, `check`).

    Attributes:
        exit_code: 3.

    Examples:
        >>> foretell.RequirementNotMet("it does not fit").exit_code
        3
    """

    exit_code = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'h100-sxm'? ` for a misspelt name, or nothing when no name is near."""
    near = difflib.get_close_matches(name[:100].lower(), list(known), n=2, cutoff=0.5)
    return f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""


MAX_COUNT: Final = 2**40  # of anything that is counted: far more than there is, and no arithmetic ends at it


def check_count(name: str, value: Any, error: type[Exception], least: int = 1) -> None:
    """Refuse what is not a whole number of at least 1, or that nobody can mean."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
        upper = f" and at most {MAX_COUNT:,}" if isinstance(value, int) and value > MAX_COUNT else ""
        raise error(f"{name} must be a whole number of at least {least}{upper}, got {value!r}.")


def check_number(
    name: str, value: Any, allowed: str, error: type[Exception], *, least: float = 0.0, most: float = 1e18
) -> None:
    """Refuse what is not a finite number between bounds; `allowed` says them in words."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise error(f"{name} must be {allowed}, got {value!r}.")


def check_kind(name: str, value: Any, kinds: type | tuple[type, ...], allowed: str, error: type[Exception]) -> None:
    """Refuse what is of another type."""
    if not isinstance(value, kinds):
        raise error(f"{name} must be {allowed}, got {type(value).__name__} {value!r}.")


def check_choice(name: str, value: Any, allowed: Sequence[Any], error: type[Exception]) -> None:
    """Refuse what is not one of `allowed`."""
    if value not in allowed or isinstance(value, bool) not in {isinstance(known, bool) for known in allowed}:
        hint = did_you_mean(str(value), map(str, allowed))
        raise error(f"{name}={value!r} is not possible. {hint}Allowed: {', '.join(map(str, allowed))}.")
