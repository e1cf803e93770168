"""What instances cost, in the terminal: one row per offer, the cheapest per device first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType

from foretell.report.catalog import listed
from foretell.units import or_dash, show_bandwidth, show_dollars

if TYPE_CHECKING:
    from foretell.hardware import Instance, Offer, Term

_WIDE: Final = 110  # columns from which a table shows more


def price_rows(
    instances: Iterable[Instance], text: str, term: Term | None, region: str | None
) -> list[tuple[Instance, Offer]]:
    """Offers of instances that a text, a term and a region leave, by device and price."""
    found = [
        (instance, offer)
        for instance in instances
        for offer in instance.offers
        if (text in instance.name or text in instance.device)
        and term in (None, offer.term)
        and region in (None, offer.region)
    ]
    return sorted(found, key=lambda row: (row[0].device, row[1].dollars_per_hour / row[0].count))


def offer_dict(row: tuple[Instance, Offer]) -> dict[str, Any]:
    instance, offer = row
    return {
        "instance": instance.name,
        "device": instance.device,
        "count": instance.count,
        "network": instance.between or None,
        "bytes_per_second_and_device": instance.bandwidth,
        "term": offer.term,
        "region": offer.region or None,
        "dollars_per_hour": offer.dollars_per_hour,
        "date": offer.date,
        "months_old": months_old(offer.date, date.today()),
        "source": offer.source,
    }


def price_table(rows: Sequence[tuple[Instance, Offer]], *, width: int) -> RenderableType:
    """Regions in which an instance costs the same share a row."""
    today, wide = date.today(), width >= _WIDE
    alike: dict[tuple[object, ...], list[tuple[Instance, Offer]]] = {}
    for instance, offer in rows:
        key = instance.name, offer.term, offer.dollars_per_hour, offer.date
        alike.setdefault(key, []).append((instance, offer))
    shown = (
        {
            "name": instance.name,
            "devices": f"{instance.count}× {instance.device}" if wide else None,
            "network": or_dash(instance.bandwidth, show_bandwidth) if wide else None,
            "term": offer.term,
            "region": offer.region or "–" if len(same) == 1 else f"{len(same)} regions",
            "per device, h": show_dollars(offer.dollars_per_hour / instance.count),
            "per hour": show_dollars(offer.dollars_per_hour) if wide else None,
            "price of": offer.date if wide else None,
            "age": age(offer.date, today),
        }
        for same in alike.values()
        for instance, offer in same[:1]
    )
    return listed(shown, "price", " Network is per device and direction; --json has sources.")


def months_old(written: str, today: date) -> int:
    """Months since a date like 2025-07 or 2025-07-14."""
    year, month = (int(part) for part in written.split("-")[:2])
    return max(0, (today.year - year) * 12 + today.month - month)


def age(written: str, today: date) -> str:
    months = months_old(written, today)
    return "this month" if not months else f"{months} month{'s' * (months > 1)}"
