"""`foretell bench power` on steps made up here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.tables import power

from foretell.cost.folder import seal
from foretell.cost.power import Power, Use
from foretell.errors import InputError
from foretell.learn.power import IDLE
from foretell.precision import Unit

BOARD = Power(idle=IDLE, busy=0.5, units={"fp32": 0.4, "tf32": 0.8, "bf16": 0.6}, memory=0.7, most=0.985)


def step(number: int, unit: Unit) -> power.Sustained:
    units = dict.fromkeys(BOARD.units, 0.0) | {unit: 0.1 * number}
    use = Use(busy=0.8 + 0.02 * number, units=units, memory=0.05 * (number % 4))
    return power.Sustained(
        source=f"{unit}/{number}", family=f"family {number % 3}", use=use, measured=BOARD.share(use), predicted=0.5
    )


STEPS = [step(number, unit) for number in range(1, 7) for unit in BOARD.units]


def test_what_parts_draw_is_found_again_with_families_left_out(tmp_path: Path) -> None:
    power.save(STEPS, tmp_path / "power.json")
    assert power.read(tmp_path / "power.json")[3].source == STEPS[3].source
    found = {(f.source, f.measure): f.value for f in power.figures(STEPS)}
    assert found["power, the family left out", "mean error"] == pytest.approx(0.0, abs=1e-6)
    assert found["power, forecasts as shipped", "mean error"] != pytest.approx(0.0, abs=1e-3)
    seal(tmp_path)
    fitted = Power.load(power.write(STEPS, tmp_path))
    assert fitted.memory == pytest.approx(BOARD.memory, rel=1e-3)
    assert fitted.units == pytest.approx(BOARD.units, rel=1e-3)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "power.json").write_text("[{}]")
    with pytest.raises(InputError, match="holds no measured power"):
        power.read(tmp_path / "power.json")


FOLLOWS = 0.5


def limited(path: Path) -> Path:
    """As a board would run steps that ask for more than its limit."""
    known = replace(BOARD, follows=FOLLOWS)
    rows = []
    for what, bf16, memory in (("product 4096", 0.9, 0.1), ("product 8192", 0.95, 0.05), ("decoder", 0.7, 0.3)):
        use = Use(busy=1.0, units={"fp32": 0.0, "tf32": 0.0, "bf16": bf16}, memory=memory)
        seconds = known.times_longer(use)
        shown = {"busy": 1.0, "units": dict(use.units), "memory": memory}
        rows.append({"what": what, "use": shown, "full_clock_seconds": 1.0, "seconds": seconds, "limit": 700.0})
        rows.append({"what": what, "seconds": seconds * (700 / 500) ** FOLLOWS, "limit": 500.0})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_a_limit_costs_is_found_again(tmp_path: Path) -> None:
    found = power.read_limited(limited(tmp_path / "limit.jsonl"))
    assert found.follows == pytest.approx(FOLLOWS)
    fitted = Power.load(power.write(STEPS, tmp_path, found))
    assert fitted.follows == pytest.approx(FOLLOWS, rel=1e-3)
    assert fitted.units["bf16"] == pytest.approx(BOARD.units["bf16"], rel=1e-2)
    off = {f.source: f.value for f in power.limited_figures(STEPS, found)}
    assert off["steps at the limit, their kind left out"] == pytest.approx(0.0, abs=1e-3)


def test_a_file_without_steps_at_their_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "limit.jsonl").write_text('{"what": "product"}\n')
    with pytest.raises(InputError, match="no steps at their limit"):
        power.read_limited(tmp_path / "limit.jsonl")
