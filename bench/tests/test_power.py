"""`foretell bench power` on steps made up here."""

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
