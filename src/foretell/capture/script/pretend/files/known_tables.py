"""Tables and lists that many scripts read, as they are published: how many rows and columns each has."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_ETT: Final = ("date", "HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
# Name of the file → columns, or how many numbers come between the date and the target; and rows.
_SERIES: Final[dict[str, tuple[tuple[str, ...] | int, int]]] = {
    "etth1.csv": (_ETT, 17_420), "etth2.csv": (_ETT, 17_420), "ettm1.csv": (_ETT, 69_680), "ettm2.csv": (_ETT, 69_680),
    "electricity.csv": (320, 26_304), "traffic.csv": (861, 17_544), "weather.csv": (20, 52_696),
    "exchange_rate.csv": (7, 7_588), "national_illness.csv": (6, 966), "solar_al.csv": (136, 52_560),
}  # fmt: skip
_NUMBERS: Final = {
    "cora.content": (2708, 1435), "cora.cites": (5429, 2), "citeseer.content": (3312, 3705), "solar_al.txt": (52_560, 137),
    "electricity.txt": (26_304, 321), "traffic.txt": (17_544, 862), "exchange_rate.txt": (7_588, 8),
}  # fmt: skip
# Ratings: rows, and the largest number of a user and of what was rated.
_RATINGS: Final = {
    "u.data": (100_000, 943, 1682), "ratings.dat": (1_000_209, 6040, 3952), "ratings.csv": (2_000_000, 138_493, 131_262),
    "ml-1m.txt": (999_611, 6040, 3416),
}  # fmt: skip


def ratings_in(name: str) -> dict[str, Any] | None:
    """Columns of a well-known table of ratings, each number as often as others."""
    known = _RATINGS.get(name.lower())
    if known is None:
        return None
    rows, users, items = known
    each = np.arange(rows)
    return {"userId": each % users + 1, "movieId": each % items + 1, "rating": each % 5 + 1, "timestamp": each}


def columns_of(name: str) -> tuple[tuple[str, ...], int] | None:
    """Names of the columns and the number of rows of a well-known table."""
    known = _SERIES.get(name.lower())
    if known is None:
        return None
    columns, rows = known
    if isinstance(columns, int):
        columns = ("date", *map(str, range(columns)), "OT")
    return columns, rows


def rows_and_columns(name: str) -> tuple[int, int] | None:
    """Of a table of numbers."""
    return _NUMBERS.get(name.lower())
