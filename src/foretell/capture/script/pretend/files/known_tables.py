"""Tables and lists that many scripts read, as they are published: how many rows and columns each has."""

from __future__ import annotations

from typing import Final

_ETT: Final = ("date", "HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
# Name of the file → columns, or how many numbers come between the date and the target; and rows.
_SERIES: Final[dict[str, tuple[tuple[str, ...] | int, int]]] = {
    "etth1.csv": (_ETT, 17_420), "etth2.csv": (_ETT, 17_420), "ettm1.csv": (_ETT, 69_680), "ettm2.csv": (_ETT, 69_680),
    "electricity.csv": (320, 26_304), "traffic.csv": (861, 17_544), "weather.csv": (20, 52_696),
    "exchange_rate.csv": (7, 7_588), "national_illness.csv": (6, 966), "solar_al.csv": (136, 52_560),
}  # fmt: skip
_NUMBERS: Final = {
    "cora.content": (2708, 1435), "cora.cites": (5429, 2), "citeseer.content": (3312, 3705), "solar_al.txt": (52_560, 137),
}  # fmt: skip


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
