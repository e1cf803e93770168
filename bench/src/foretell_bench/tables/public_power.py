"""Average power of public training runs, forecast by boards that were never measured for it.

A row is a network at one batch and one power limit. Those at a board's full limit are taken, of networks whose inputs are
known: what a data set's images and texts are cut to. Nothing of them is in the model: parts of a board's limit were fitted on
an H200, and are carried to other boards by their limits, rates and bandwidths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

import foretell
from foretell.planner.steps import Steps, steps_of
from foretell.store.importers import Row, public_rows
from foretell_bench.graphs import Say, quiet
from foretell_bench.tables.figures import Figure

SOURCE: Final = "power_limit_sweeps"
BAR: Final = 0.15
_BOARDS: Final = {"v100": "v100-32g-pcie", "a40": "a40"}  # full limits of 250 and 300 W are of these
# What trains on a data set, as its authors' script cuts it: SQuAD's texts to 384 tokens, ImageNet's images to 224 × 224.
_STEPS: Final[dict[tuple[str, str], tuple[str, dict[str, str]]]] = {
    ("imagenet", "resnet50"): ("torchvision/resnet50", {"precision": "torch-fp32"}),
    ("squad", "bert_base_uncased"): ("hf/bert-base", {"precision": "torch-fp32", "seq": "384"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPower:
    """A run and what its board drew."""

    device: str
    network: str
    batch: int
    measured: float  # watts
    forecast: float

    @property
    def error(self) -> float:
        return self.forecast / self.measured - 1


def at_full_limit(data: Path) -> list[Row]:
    rows = [r for r in public_rows(data, SOURCE) if r["device"] in _BOARDS and (r["dataset"], r["model"]) in _STEPS]
    full = {device: max(r["power_limit"] for r in rows if r["device"] == device) for device in _BOARDS}
    return [r for r in rows if r["power_limit"] == full[r["device"]]]


def run(data: Path, say: Say = quiet) -> Iterator[BoardPower]:
    known: dict[tuple[str, str], Steps] = {}
    for row in at_full_limit(data):
        name = row["dataset"], row["model"]
        if name not in known:
            source, settings = _STEPS[name]
            say(f"capturing {source}")
            known[name] = steps_of(source, settings, {})
        say(f"power of {row['model']} on {row['device']}, batch {row['batch']}")
        answer = foretell.forecast(known[name].graph(0, row["batch"]), on=_BOARDS[row["device"]])
        if answer.energy is not None:
            yield BoardPower(
                device=_BOARDS[row["device"]],
                network=row["model"],
                batch=row["batch"],
                measured=row["power_watts"],
                forecast=answer.energy.watts,
            )


def figures(found: Sequence[BoardPower]) -> list[Figure]:
    made = []
    for device in ("", *dict.fromkeys(d.device for d in found)):
        errors = [abs(d.error) for d in found if device in ("", d.device)]
        source = f"public power, {device or 'all boards'}"
        for measure, value in (("mean error", mean(errors)), ("median error", median(errors))):
            bar = BAR if measure == "mean error" else None
            made.append(Figure(source=source, measure=measure, value=value, bar=bar, rows=len(errors)))
    return made
