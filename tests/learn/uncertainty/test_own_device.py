"""Intervals: calibrated on steps that were predicted unseen, and validated against others."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from foretell_bench.errors import Errors
from foretell_bench.pages.accuracy import write_page
from foretell_bench.research.coverage import coverage
from foretell_bench.tables import accuracy

from foretell.distribution import interval
from foretell.forecasting.step import SLOWER
from foretell.forecasting.uncertainty.own_device import Calibration, draw_steps
from foretell.learn.uncertainty.left_out import LeftOutStep, Unseen, read_steps
from foretell.learn.uncertainty.own_device import calibrate


def steps(count: int = 400, groups: int = 8, *, seed: int = 0, error: float = 0.1) -> list[LeftOutStep]:
    """Steps whose device has errors of `error` in one family of ops and by a tenth of that in the other."""
    draw = np.random.default_rng(seed)
    made = []
    for i in range(count):
        share = draw.uniform()
        predicted = float(draw.lognormal(-4, 1))
        families_predicted = {"matmul": predicted * share, "convolution": predicted * (1 - share)}
        errors = {"matmul": math.exp(draw.normal(0, error / 10)), "convolution": math.exp(draw.normal(0, error))}
        families = {f: (s, s * errors[f]) for f, s in families_predicted.items()}
        device = sum(true for _, true in families.values())
        host_predicted = float(predicted * draw.lognormal(0, 1))
        host = host_predicted * math.exp(draw.normal(0, 0.2))
        made.append(
            LeftOutStep(
                record=str(i),
                source=f"net{i // 2}",
                settings='{"batch":"8"}',
                group=f"group{i % groups}",
                bound="device",
                device=device,
                step=max(device, host),
                host=host,
                device_predicted=predicted,
                step_predicted=max(predicted, host_predicted),
                host_predicted=host_predicted,
                roofline=predicted / 2,
                families=families,
                unknown=0.0,
                expected_error=error * (share / 10 + 1 - share),
                curve=[(f, max(predicted * f, host_predicted)) for f in SLOWER],
                rivals={"formula": predicted / 2, "linear": predicted, "trees": predicted},
            )
        )
    return made


def test_nine_of_ten_unseen_steps_fall_inside() -> None:
    for c in coverage(steps()):
        if not c.group:
            assert 0.86 <= c.inside <= 0.94, c


def test_ops_with_larger_errors_make_intervals_wider() -> None:
    found = calibrate(steps())
    known, strange = found.sigma(0.01, 0.0), found.sigma(0.1, 0.0)
    assert strange > 3 * known
    assert found.sigma(0.01, 0.5) > known + 0.2, "what no model knows is uncertain"
    low, high = interval(found.device_time(1.0, strange))
    assert low < 1 < high
    assert low * high == pytest.approx(1)


def test_a_host_bound_step_is_as_uncertain_as_its_host() -> None:
    found = calibrate(steps())
    host_bound = [(f, 1.0) for f in SLOWER]
    wide = interval(found.step_time(host_bound, 0.01))
    device_bound = [(f, f) for f in SLOWER]
    drawn = draw_steps(device_bound, np.array([(1.0, 0.5)]), 0.1)
    assert drawn[0] == pytest.approx(math.exp(0.1), rel=1e-6), "a slow host costs a busy device nothing"
    assert wide[1] / wide[0] > 1.3


def test_steps_without_gradients_have_errors_of_their_own(tmp_path: Path) -> None:
    training = steps(100)
    wild = [replace(s, trains=False, host=s.host * 3) for s in steps(100, seed=1)]
    assert calibrate([*training, *wild[:20]]).inference is None, "too few to say"
    found = calibrate([*training, *wild])
    assert found.host == calibrate(training).host
    assert found.of_kind(trains=False).host > 2 * found.of_kind(trains=True).host
    (tmp_path / "calibration.json").write_text(json.dumps(asdict(found)))
    read = Calibration.load(tmp_path / "calibration.json")
    assert read.of_kind(trains=False).margin == found.of_kind(trains=False).margin


def test_intervals_that_contain_too_little_are_rejected() -> None:
    bad = [s for s in steps() if s.group != "group0"]
    worse = [replace(s, expected_error=0.05) for s in steps(seed=1, error=2.0) if s.group == "group0"]
    found = {(c.what, c.group): c for c in coverage([*bad, *worse])}
    assert found["device", "group0"].p_value < 0.05


def test_results_come_back_and_make_a_page(tmp_path) -> None:  # type: ignore[no-untyped-def]
    some = steps(60, 3)
    accuracy.save(Unseen(steps=some), {"step": 0.1, "device": 0.01}, tmp_path / "saved.json")
    unseen, moves = accuracy.read(tmp_path / "saved.json")
    read = unseen.steps
    assert [s.source for s in read] == [s.source for s in some]
    assert accuracy.figures(read, moves)[0].value == pytest.approx(
        accuracy.figures(some, moves)[0].value or 0, rel=1e-2
    )
    write_page(tmp_path / "page.md", accuracy.tables(read, moves))
    text = (tmp_path / "page.md").read_text()
    assert "group1" in text
    assert "<svg" in (tmp_path / "page-step.svg").read_text()


def test_errors_are_fractions_of_what_was_measured() -> None:
    found = Errors.of([1.1, 0.8, 2.0], [1.0, 1.0, 2.0])
    assert found.mean == pytest.approx(0.1)
    assert found.median == pytest.approx(0.1)
    assert found.rmse == pytest.approx(math.sqrt(0.05 / 3))
    assert found.bias == pytest.approx(-0.1 / 3)


def test_results_of_earlier_versions_still_load() -> None:
    found = read_steps(Path(__file__).parents[3] / "bench" / "results" / "accuracy.json")
    assert len(found) > 700
    assert abs(math.log(found[0].device_predicted / found[0].device)) < 1
    assert {"sum", "linear"} <= set(found[0].rivals)
    assert dict(found[0].curve)[1.0] == found[0].step_predicted
