"""`foretell bench plain` on steps made up here."""

from dataclasses import replace
from pathlib import Path

import pytest
from foretell_bench.tables import plain

from foretell.errors import InputError

STEP = plain.PlainStep(
    source="net", training=True, blind=False, busy=0.2, measured=0.01, predicted=0.012, low=0.008, high=0.016
)


def test_figures_tell_steps_that_the_host_bounds_apart(tmp_path: Path) -> None:
    steps = [STEP, replace(STEP, busy=0.99, predicted=0.01), replace(STEP, training=False, predicted=0.005, high=0.009)]
    plain.save(steps, tmp_path / "plain.json")
    assert plain.read(tmp_path / "plain.json") == steps
    found = {(f.source, f.measure): (f.value, f.rows) for f in plain.figures(steps)}
    assert found["all", "step time, mean error"] == (pytest.approx((0.2 + 0 + 0.5) / 3), 3)
    assert found["the host sets the pace", "inside the 90 % interval"] == (0.5, 2)
    assert found["the host sets the pace, inference", "step time, mean error"] == (pytest.approx(0.5), 1)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text('{"steps": 1}')
    with pytest.raises(InputError, match="holds no plain steps"):
        plain.read(tmp_path / "plain.json")
