"""Whether forecasts hold: by courses that are made up, and by the command on a store."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from foretell.measure.record import Point, Record, StepRow
from foretell.store.store import Store
from foretell.watching.drift import Course, courses
from foretell.watching.steps_csv import steps_csv
from tests.watching.jobs import forecast

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def window(number: int, ratio: float, **columns: Any) -> StepRow:
    """A window that took `ratio` times what was predicted: 100 ms, or 90 to 120."""
    point = Point(source="train.py:net", settings={"batch": "8"}, kind="watched", plan="dp=1")
    usual = {
        "workload": "net", "cluster": "cpu", "predicted_seconds": 0.1, "predicted_low": 0.09, "predicted_high": 0.12,
        "steps_before": 100 * number, "date": f"2026-01-01T{number // 60:02}:{number % 60:02}:00.000+00:00",
    }  # fmt: skip
    return StepRow(**{**point.columns, **usual, "step_seconds": 0.1 * ratio, **columns})  # type: ignore[arg-type]


def course(ratios: Sequence[float], **columns: Any) -> Course:
    [found] = courses(window(number, ratio, **columns) for number, ratio in enumerate(ratios))
    return found


def noise(seed: int, spread: float, count: int, level: float = 1.0) -> list[float]:
    drawn = random.Random(seed)
    return [level * math.exp(drawn.gauss(0, spread)) for _ in range(count)]


def test_inside_its_interval_a_forecast_holds() -> None:
    drift = course([1.1] * 20).drift
    assert (drift.verdict, drift.since) == ("holds", None)
    assert drift.ratio == pytest.approx(1.1)


def test_one_bad_minute_is_no_drift() -> None:
    assert course([1.0] * 10 + [30.0] + [1.0] * 3).drift.verdict == "holds"
    assert course([1.0] * 10 + [30.0]).drift.verdict == "holds"


def test_a_forecast_that_no_longer_holds() -> None:
    drift = course([1.0] * 12 + [1.4] * 6).drift
    assert (drift.verdict, drift.since) == ("off", 12)
    assert drift.ratio == pytest.approx(1.4)
    assert drift.before == pytest.approx(1.0)


def test_a_forecast_that_never_held() -> None:
    drift = course([0.5] * 5).drift
    assert (drift.verdict, drift.since, drift.before) == ("off", 0, None)


def test_a_change_inside_a_wide_interval() -> None:
    drift = course([1.0] * 12 + [1.3] * 6, predicted_low=0.02, predicted_high=0.5).drift
    assert (drift.verdict, drift.since) == ("changed", 12)


def test_without_an_interval_ten_per_cent_are_allowed() -> None:
    bounds: dict[str, Any] = {"predicted_low": None, "predicted_high": None}
    assert course([1.08] * 9, **bounds).drift.verdict == "holds"
    assert course([1.2] * 9, **bounds).drift.verdict == "off"


def test_what_was_mended_holds_again() -> None:
    assert course([1.0] * 12 + [1.4] * 50 + [1.0] * 12).drift.verdict == "holds"


def test_two_windows_are_too_few() -> None:
    assert course([9.0, 9.0]).drift.verdict == "too few"


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2])
def test_noise_is_no_drift(spread: float) -> None:
    verdicts = [course(noise(seed, spread, 150), predicted_low=0.05, predicted_high=0.2) for seed in range(100)]
    assert sum(each.is_drift for each in verdicts) <= 2


@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_a_fifth_more_is_found_within_fifteen_windows(spread: float) -> None:
    wide = {"predicted_low": 0.05, "predicted_high": 0.2}
    for seed in range(50):
        found = course([*noise(seed, spread, 60), *noise(seed + 999, spread, 15, 1.2)], **wide)
        assert found.drift.verdict == "changed"
        assert abs((found.drift.since or 0) - 60) <= 6


def test_jobs_of_other_questions_are_courses_of_their_own() -> None:
    rows = [window(0, 1.0), window(1, 1.0, profile="lab"), window(2, 1.0, cluster="2xcpu")]
    assert len(courses(rows)) == 3
    assert [each.latest.profile for each in courses(rows, "lab")] == ["lab"]
    assert len(courses(rows, "")) == 2


def test_step_times_for_adapt_are_those_since_the_drift() -> None:
    rows = [window(number, ratio) for number, ratio in enumerate([1.0] * 12 + [1.4] * 6)]
    measured = window(99, 2.0, kind="step", device="h200", peak_allocated=7, cluster="")
    [slow, alone] = steps_csv([*rows, measured, window(99, 2.0, kind="step", cluster="")])
    assert (slow.source, slow.settings, slow.cluster, slow.plan) == ("train.py:net", {"batch": "8"}, "cpu", "dp=1")
    assert slow.seconds == pytest.approx(0.14)
    assert (alone.cluster, alone.seconds, alone.allocated) == ("h200", 0.2, 7)


class TestCommand:
    @pytest.fixture
    def at(self, tmp_path: Path) -> Path:
        rows = [window(number, ratio) for number, ratio in enumerate([1.0] * 12 + [1.4] * 6)]
        Store(tmp_path / "measurements").append(Record(step=row) for row in rows)
        return tmp_path

    def test_it_says_since_when_and_what_to_do(self, at: Path, run_foretell: Run) -> None:
        ended = run_foretell("drift", "--html", "drift.html", cwd=at)
        assert ended.returncode == 0
        assert "40 % slower than predicted" in ended.stdout
        assert "since 2026-01-01T00:12, step 1,200" in " ".join(ended.stdout.split())
        assert "●" in ended.stdout
        assert "foretell adapt --from measurements --save" in " ".join(ended.stderr.split())
        assert "since here" in (at / "drift.html").read_text(encoding="utf-8")

    def test_for_programs(self, at: Path, run_foretell: Run) -> None:
        [found] = json.loads(run_foretell("drift", "--json", cwd=at).stdout)
        assert (found["verdict"], found["windows"], found["since"]["step"]) == ("off", 18, 1200)
        assert found["ratio"] == pytest.approx(1.4)

    def test_required_it_is_an_exit_code(self, at: Path, run_foretell: Run) -> None:
        assert run_foretell("drift", "--require", cwd=at).returncode == 3
        assert run_foretell("drift", "--profile", "lab", cwd=at).returncode == 2

    def test_without_a_store(self, tmp_path: Path, run_foretell: Run) -> None:
        ended = run_foretell("drift", cwd=tmp_path)
        assert ended.returncode == 2
        assert "there is no store" in ended.stderr

    def test_a_graph_that_is_a_rows_only_source_is_written_beside_it(self, at: Path, run_foretell: Run) -> None:
        from foretell.watching.expected import expect_forecast

        expected = expect_forecast(forecast())
        row = StepRow(**expected.columns, step_seconds=0.1)
        Store(at / "measurements").append([Record(step=row, graph=expected.graph)])
        assert run_foretell("store", "export", "steps.csv", "--for-adapt", cwd=at).returncode == 0
        lines = (at / "steps.csv").read_text(encoding="utf-8").splitlines()
        assert lines[0] == "source,settings,cluster,plan,seconds,allocated,reserved"
        assert len(lines) == 3
        [named] = [line.partition(",")[0] for line in lines if line.startswith("perceptron")]
        assert (at / named).is_file()
