"""What the catalog's instances cost, taken anew from the tables of SkyPilot's catalog.

Of an instance that a table has, the list price of its home region is replaced, and every offer of a region and a term that
the catalog names already; spot prices of the home region are added. What a table does not have stays as it is.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import foretell
from foretell.hardware import catalog
from foretell.hardware.device import Instance, Offer, Term
from foretell_bench.graphs import Say

_SHARED: Final = "community"  # boards of private owners, which are no offer of the cloud itself
_ABOUT: Final = {"gcp": ": machine and accelerators, local disks apart"}
_MONTHS: Final = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
                  "November", "December")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """An instance whose prices a table has."""

    name: str
    before: float | None
    price: Offer | None
    offers: tuple[Offer, ...]


def refreshed(tables: Path, date: str, commit: str) -> Iterator[Refreshed]:
    """Every instance of the catalog that a cloud's `vms.csv` in a folder knows."""
    for file in sorted(tables.glob("*/vms.csv")):
        cloud, listed = file.parent.name, foretell.read_prices(file)
        year, month = date.split("-")[:2]
        source = f"SkyPilot catalog, {cloud}/vms.csv at commit {commit}, {_MONTHS[int(month) - 1]} {year}{_ABOUT.get(cloud, '')}"
        for known in (i for i in catalog.instances() if i.name.startswith(f"{cloud}:")):
            if found := _same(known, listed):
                yield _prices(known, found, date, source)


def _same(known: Instance, listed: Sequence[Instance]) -> tuple[Offer, ...]:
    """Its offers in a table: by its name, or where the table names it otherwise, by its boards."""
    for each in listed:
        if each.name == known.name:
            return each.offers
    alike = (i for i in listed if (i.device, i.count) == (known.device, known.count) and _SHARED not in i.name)
    return next((i.offers for i in alike), ())


def _prices(known: Instance, found: Sequence[Offer], date: str, source: str) -> Refreshed:
    home = next((o.region for o in known.offers if o.term == "on-demand"), "")
    table: dict[tuple[Term, str], float] = {(o.term, o.region): o.dollars_per_hour for o in found}
    plain = {dollars for (term, _), dollars in table.items() if term == "on-demand"}
    if not home and len(plain) == 1:  # the same everywhere
        table["on-demand", ""] = plain.pop()

    def offer(term: Term, region: str) -> Offer:
        dollars = round(table[term, region], 4)
        about = f"{source}, median over zones" if term == "spot" else source
        return Offer(term=term, region=region, dollars_per_hour=dollars, date=date, source=about)

    price = offer("on-demand", home) if ("on-demand", home) in table else None
    kept = [o for o in known.offers if (o.term, o.region) != ("on-demand", home)]
    offers = [offer(o.term, o.region) if (o.term, o.region) in table else o for o in kept]
    if ("spot", home) in table and not any((o.term, o.region) == ("spot", home) for o in kept):
        offers.append(offer("spot", home))
    return Refreshed(name=known.name, before=known.dollars_per_hour, price=price, offers=tuple(offers))


def report(found: Sequence[Refreshed], say: Say) -> None:
    for each in found:
        dollars = "none" if each.price is None else f"${each.price.dollars_per_hour:g}"
        before = "none" if each.before is None else f"${each.before:g}"
        say(f"{each.name:<32}{before:>12} → {dollars:<12}{len(each.offers)} offers")


def write(found: Sequence[Refreshed], folder: Path = catalog.SHIPPED / "instances") -> None:
    """Replace the prices in the files of instances; the rest of a file stays."""
    for each in found:
        cloud, _, kind = each.name.partition(":")
        path = folder / cloud / f"{kind}.toml"
        text = path.read_text(encoding="utf-8")
        own = tomllib.loads(text).get("price")
        head = text.partition("\n[price]")[0].partition("\n[[offers]]")[0].rstrip("\n")
        price = _table(each.price) if each.price else dict(own or {})
        parts = [head, *([_written("[price]", price)] if price else [])]
        parts += [_written("[[offers]]", {"term": o.term, **_table(o)}) for o in each.offers]
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _table(offer: Offer) -> dict[str, Any]:
    region = {"region": offer.region} if offer.region else {}
    return {**region, "dollars_per_hour": offer.dollars_per_hour, "date": offer.date, "source": offer.source}


def _written(head: str, values: dict[str, Any]) -> str:
    lines = [
        f"{name} = {value if isinstance(value, float | int) else json.dumps(value)}" for name, value in values.items()
    ]
    return "\n".join([head, *lines])
