"""Of which time the software is that runs a step: a version of PyTorch, or a date."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Final

from foretell.errors import InputError

Version = tuple[int, int]

# When each version of PyTorch was released (github.com/pytorch/pytorch/releases).
RELEASES: Final[dict[Version, date]] = {
    (1, 0): date(2018, 12, 7), (1, 1): date(2019, 5, 1), (1, 2): date(2019, 8, 8), (1, 3): date(2019, 10, 10),
    (1, 4): date(2020, 1, 15), (1, 5): date(2020, 4, 21), (1, 6): date(2020, 7, 28), (1, 7): date(2020, 10, 27),
    (1, 8): date(2021, 3, 4), (1, 9): date(2021, 6, 15), (1, 10): date(2021, 10, 21), (1, 11): date(2022, 3, 10),
    (1, 12): date(2022, 6, 28), (1, 13): date(2022, 10, 28), (2, 0): date(2023, 3, 15), (2, 1): date(2023, 10, 4),
    (2, 2): date(2024, 1, 30), (2, 3): date(2024, 4, 24), (2, 4): date(2024, 7, 24), (2, 5): date(2024, 10, 17),
    (2, 6): date(2025, 1, 29), (2, 7): date(2025, 4, 23), (2, 8): date(2025, 8, 6), (2, 9): date(2025, 10, 15),
}  # fmt: skip
_ALLOWED: Final = "a version of PyTorch from 1.0 on, like torch-1.12, or a date from 2018-12-07 on, like 2022-07"
_VERSION: Final = re.compile(r"(?:py)?(?:torch)?[- =]*v?(\d{1,2})\.(\d{1,3})(?:\.\d+)?(?:\+\w+)?")
_DATE: Final = re.compile(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?")
FIRST_FUSED_ATTENTION: Final[Version] = (2, 0)  # scaled_dot_product_attention
FIRST_LISTED_UPDATES: Final[Version] = (2, 0)  # optimizers take lists of tensors by default
FIRST_ROOTS_IN_PLACE: Final[Version] = (
    2,
    1,
)  # Adam over lists adds to its roots in place (pytorch/pytorch#104780, #104898)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Software:
    """A version of PyTorch, with the libraries of its time."""

    torch: Version

    @classmethod
    def parse(cls, text: str) -> Software:
        """From a version, or from the day on which the newest was current.

        Examples:
            >>> str(Software.parse("2022-07")), str(Software.parse("torch-2.4.1"))
            ('torch-1.12', 'torch-2.4')
        """
        if found := _DATE.fullmatch(text.strip()):
            year, month, day = found.groups()
            return cls(torch=_current(text, int(year), int(month or 12), int(day or 31)))
        found = _VERSION.fullmatch(text.strip().lower())
        if found is None or (version := (int(found[1]), int(found[2]))) < min(RELEASES):
            raise InputError(f"software {text!r} is not known. Allowed: {_ALLOWED}.")
        return cls(torch=version)

    def __str__(self) -> str:
        return "torch-{}.{}".format(*self.torch)


def _current(text: str, year: int, month: int, day: int) -> Version:
    """The newest version of a day; a month or a year counts to its end."""
    released = [version for version, at in RELEASES.items() if (at.year, at.month, at.day) <= (year, month, day)]
    if not released or not (1 <= month <= 12 and 1 <= day <= 31):
        raise InputError(f"software {text!r} is not known. Allowed: {_ALLOWED}.")
    return max(released)
