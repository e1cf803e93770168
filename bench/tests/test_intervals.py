"""One table of what intervals contain, of every class of steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.tables import devices
from foretell_bench.tables.intervals import classes_of_intervals
from foretell_bench.tables.published_rows import Compared
from typer.testing import CliRunner

from foretell.cli import app
from foretell.learn.uncertainty.other_device_steps import LEARNED, OtherDeviceStep
from foretell.learn.uncertainty.other_devices import OneDeviceJob

RESULTS = Path(__file__).parents[1] / "results"
STEP = OtherDeviceStep(
    origin="one", device="rtx-3090", source="net", trains=False, half=False, seconds=1.0, predicted={LEARNED: 1.0},
    unknown=0.0, torch="2.4",
)  # fmt: skip


def steps() -> list[OtherDeviceStep]:
    cards = ("rtx-3090", "rtx-4090", "a10", "t4", "p100-pcie", "mi100")
    made = [replace(STEP, device=card, source=f"{n}", seconds=1 + 0.02 * n) for card in cards for n in range(10)]
    made = [replace(step, origin=f"{number % 2}") for number, step in enumerate(made)]
    return [*made, replace(STEP, device="a10", origin="two"), replace(STEP, device="t4", torch="1.4", seconds=9.0)]


def test_each_class_is_judged_by_what_was_left_out() -> None:
    jobs = [
        Compared(
            source=source, network="", regime="", device="a100-80g-sxm", architecture="Ampere", devices=8, error=error,
            left_out_inside=error < 0.2, left_out_width=1.5,
        )
        for source, error in (("one", 0.1), ("two", 0.1), ("three", 0.4))
    ]  # fmt: skip
    b200 = OneDeviceJob(origin="three", device="b200", convolves=False, error=2.0)
    found = {(each.steps, each.left_out): each for each in classes_of_intervals([], steps(), [b200], jobs)}
    recent = found["NVIDIA from Turing to Hopper", "chip and source"]
    assert recent.rows == 41
    assert recent.inside > 0.9
    assert recent.ratio == pytest.approx(1 / 1.08, rel=0.02)
    assert found["newer NVIDIA", "chip and source"].inside == 0.0
    [former] = [each for (name, _), each in found.items() if "before 2" in name]
    assert (former.rows, former.inside) == (1, 0.0)
    several = found["several devices", "source"]
    assert several.inside == pytest.approx(2 / 3)
    assert several.ratio == pytest.approx(1.1)
    assert several.is_off


def test_the_verb_prints_every_class(tmp_path: Path) -> None:
    for name in ("accuracy", "published"):
        (tmp_path / f"{name}.json").write_bytes((RESULTS / f"{name}.json").read_bytes())
    devices.save(devices.DeviceErrors(ops=[], steps=steps()), tmp_path / "devices.json")
    page = tmp_path / "page.md"
    page.write_text("<!-- table: intervals -->\n<!-- end -->\n")
    asked = ["bench", "intervals", "--results", str(tmp_path), "--page", str(page), "--json"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert {"the model's own device", "other makers", "several devices"} < {each["steps"] for each in found}
    assert all(each["rows"] and 0 <= each["inside"] <= 1 <= each["width"] for each in found)
    assert page.read_text().count("\n| ") == len(found) + 2
