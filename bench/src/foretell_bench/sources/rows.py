"""Rows of the public files: CSV, read without a data-frame library; a missing column is an error, not zero."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from foretell.errors import InputError

Row = dict[str, str]
Say = Callable[[str], None]  # progress, for a person


def is_there(folder: Path, name: str) -> bool:
    return any(path.is_file() for path in _places(folder, name))


def _places(folder: Path, name: str) -> tuple[Path, ...]:
    return folder / f"{name}.csv.gz", folder / f"{name}.csv"


def read_rows(folder: Path, name: str, columns: Sequence[str]) -> list[Row]:
    """All rows of `name.csv` or `name.csv.gz`."""
    path = next((path for path in _places(folder, name) if path.is_file()), None)
    if path is None:
        raise InputError(f"no {name}.csv or {name}.csv.gz in {folder}. Give --data the folder of public measurements.")
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    with io.StringIO(text, newline="") as file:
        reader = csv.DictReader(file)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise InputError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(reader.fieldnames or ())}. "
                "Give --data the folder of public measurements."
            )
        return list(reader)


def number(row: Row, column: str) -> float | None:
    """A value that may be missing."""
    text = row[column].strip()
    return float(text) if text and text.lower() != "nan" else None


def share(key: str) -> float:
    """A number from 0 to 1 for a split that does not hang on the order or number of rows."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32


def is_in_half(key: str) -> bool:
    return share(key) < 0.5
