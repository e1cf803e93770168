"""Profiles for people: a table of them, and one as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foretell.profile import FACTORS, Profile

if TYPE_CHECKING:
    from rich.table import Table


def profile_dict(profile: Profile) -> dict[str, Any]:
    """What its file says, tables by their titles there; a residual model by its size."""
    steps = len(profile.residuals.weights) if profile.residuals else 0
    return {
        "schema_version": 1,
        "name": profile.name,
        "for": dataclasses.asdict(profile.purpose),
        "factors": {name: getattr(profile, name) for name in FACTORS},
        "families": dict(profile.families),
        "precisions": dict(profile.precisions),
        "networks": dict(profile.networks),
        "network_seconds": dict(profile.network_seconds),
        "host_of_ranks": dict(profile.host_of_ranks),
        "communication_of_ranks": dict(profile.communication_of_ranks),
        "links": dataclasses.asdict(profile.links),
        "memory": dataclasses.asdict(profile.memory),
        "intervals": dataclasses.asdict(profile.intervals),
        "residuals": {"steps": steps} if steps else None,
        "card": dataclasses.asdict(profile.card),
    }


def profile_table(profiles: Sequence[Profile]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("profile", "for", "fitted", "steps", "error before", "after", "90 % within"):
        table.add_column(name, justify="right" if name in ("steps", "error before", "after", "90 % within") else "left")
    for each in profiles:
        card, width = each.card, each.intervals.width
        purpose = ", ".join(filter(None, dataclasses.astuple(each.purpose)))
        within = "" if width is None else f"× or ÷ {math.exp(width):.2f}"
        table.add_row(
            each.name,
            purpose,
            _last(card.form),
            str(card.rows or ""),
            _percent(card.error_before),
            _percent(card.error_after),
            within,
        )
    return table


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


def _last(form: str) -> str:
    """Levels build on each other, so the last say it all."""
    *before, one, two = ["", "", *form.split(", ")]
    return ("… " if any(before) else "") + ", ".join(filter(None, (one, two)))
