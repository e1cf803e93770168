"""Prices as files: tables of one's own, and the tables of virtual machines that SkyPilot's catalog publishes per cloud."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from foretell.errors import CatalogError, ForetellError, InputError, check_count, did_you_mean
from foretell.hardware import catalog, skypilot_prices
from foretell.hardware.device import Instance, Offer, term_named
from foretell.hardware.instance_prices import instance_like, instance_of, merged
from foretell.limits import read_bytes

OWN_COLUMNS: Final = (
    "instance", "device", "count", "link", "bandwidth", "term", "region", "dollars_per_hour", "date", "source",
)  # fmt: skip
_Key = tuple[Path, int, int]  # path, time and size
_read: dict[_Key, tuple[Instance, ...]] = {}


def read_prices(*paths: str | Path) -> tuple[Instance, ...]:
    """Read what instances cost from tables: your own, or a cloud's `vms.csv` of SkyPilot's catalog.

    Args:
        paths: Files. SkyPilot's lie in a folder that is called as the cloud, `aws/vms.csv`.

    Returns:
        Instances with their offers. Networks are those of the catalog's instances of the same name.

    Raises:
        InputError: A file cannot be read, or has a column or a value that is not known.

    Examples:
        >>> foretell.Cluster.parse("h200").priced(foretell.Market(offers=foretell.read_prices())).dollars_per_hour
    """
    return merged(instance for path in paths for instance in _of_file(Path(path)))


def offered() -> tuple[Instance, ...]:
    """All of the catalog; what files in `prices/` of the user's folders say of an instance replaces what it says."""
    found = [path for folder in catalog.folders() for path in sorted((folder / "prices").rglob("*.csv"))]
    if not found:
        return catalog.instances()
    own = {instance.name: instance for instance in read_prices(*found)}
    return (*(instance for instance in catalog.instances() if instance.name not in own), *own.values())


def _of_file(path: Path) -> tuple[Instance, ...]:
    try:
        about = path.stat()
        key = path, about.st_mtime_ns, about.st_size
        if (found := _read.get(key)) is None:
            text = read_bytes(path, "bytes of a table of prices").decode("utf-8-sig")
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
            if number := next((n for n, row in enumerate(rows, start=2) if None in row), None):
                raise ValueError(f"line {number} has more cells than the first names columns")
            found = _of_rows(path, rows, f"{datetime.fromtimestamp(about.st_mtime, UTC):%Y-%m-%d}")
            _keep(key, found)
        return found
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table of prices: {error}.") from None


def _keep(key: _Key, found: tuple[Instance, ...]) -> None:
    """Without tables that are gone or were written anew: a service reads one of every search, each in a file of its own."""
    for known in list(_read):
        if known[0] == key[0] or not known[0].exists():
            _read.pop(known, None)
    _read[key] = found


def _of_rows(path: Path, rows: Sequence[Mapping[str, str]], date: str) -> tuple[Instance, ...]:
    columns = [name or "" for name in rows[0]] if rows else []
    if skypilot_prices.is_such(columns):
        return merged(skypilot_prices.instances(rows, cloud=path.parent.name.lower(), date=date, source=str(path)))
    for name in columns:
        if name not in OWN_COLUMNS:
            raise InputError(
                f"{path}: unknown column {name!r}. {did_you_mean(name, OWN_COLUMNS)}Allowed: {', '.join(OWN_COLUMNS)}; or "
                f"those of SkyPilot's vms.csv: {', '.join(skypilot_prices.COLUMNS)}."
            )
    return merged(_own(path, number, row, date) for number, row in enumerate(rows, start=2))


def _own(path: Path, number: int, row: Mapping[str, str], date: str) -> Instance:
    """A row of one's own table: an instance of the catalog, or a device in some number."""
    given = {name: text.strip() for name, text in row.items() if text and text.strip()}
    try:
        offer = Offer(
            term=term_named(given.get("term", "on-demand")),
            region=given.get("region", ""),
            dollars_per_hour=_number(given.get("dollars_per_hour", "")),
            date=given.get("date", date),
            source=given.get("source", str(path)),
        )
        if "device" not in given:
            return instance_like(catalog.instance(given.get("instance", "")), offer)
        device, count = catalog.device(given["device"]), int(given.get("count", "1"))
        check_count("count", count, CatalogError)
        return instance_of(given.get("instance", f"{path.stem}:{count}x{device.name}"), device, count, offer, given)
    except (ForetellError, ValueError) as error:
        raise InputError(f"{path}, line {number}: {error}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CatalogError(f"dollars_per_hour must be a number, got {text!r}.") from None
