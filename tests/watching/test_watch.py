"""`foretell.watch` around a real loop: what it keeps, and that the loop never suffers from it."""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from pathlib import Path

import pytest

import foretell
from foretell.errors import InputError, StoreError
from foretell.measure.record import StepRow
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from foretell.watching.stopwatch import WARM_UP
from tests.measure.small import perceptron
from tests.watching.jobs import STEPS, forecast, loader, train


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_steps_are_kept_beside_their_forecast(at: Path) -> None:
    with foretell.watch(forecast(), every=0, store="kept.jsonl") as watch:
        assert train(watch.over(loader())) == STEPS
    rows = list(RecordFile("kept.jsonl").steps())
    assert rows
    assert {row.kind for row in rows} == {"watched"}
    assert rows[0].steps_before == WARM_UP
    assert sum(row.repetitions for row in rows) + sum(map(_pauses, rows)) > STEPS - WARM_UP - 5
    for row in rows:
        assert row.step_seconds is not None
        assert row.step_seconds > 0
        assert row.process_peak is not None
        assert row.process_peak > 2**20
        assert (row.cluster, row.plan, row.workload) == ("cpu", forecast().plan, "perceptron")
        assert row.predicted_seconds == forecast().step_time.seconds
        assert row.predicted_allocated == forecast().memory.allocated
    assert [row.date for row in rows] == sorted(row.date for row in rows)


def _pauses(row: StepRow) -> int:
    return sum(int(mark.split()[0]) for mark in row.marks if mark.endswith("pauses left out"))


def test_the_store_has_the_graph_once(at: Path) -> None:
    with foretell.watch(forecast(), every=0) as watch:
        train(watch.over(loader()))
    store = Store("measurements")
    hashes = {step.graph for step in store.steps()}
    assert hashes == {forecast().graph.content_hash}
    assert store.graph(hashes.pop() or "").name == "perceptron"


def test_a_workload_is_forecast_on_the_machine_at_hand(at: Path) -> None:
    with foretell.watch(perceptron(grad_accumulation=2), every=0, store="kept.jsonl") as watch:
        train(watch.over(loader()))
    row = next(iter(RecordFile("kept.jsonl").steps()))
    assert (row.cluster, row.grad_accumulation) == ("cpu", 2)
    assert row.source.startswith("perceptron-")
    assert row.source.endswith(".graph")
    assert (row.steps_before or 0) + row.repetitions <= STEPS / 2  # a step is two batches


def test_steps_said_one_by_one(at: Path) -> None:
    watch = foretell.watch(forecast(), every=0, store="kept.jsonl")
    for _ in loader():
        watch.step()
    watch.close()
    watch.step()  # after the end nothing happens
    watch.close()
    assert list(RecordFile("kept.jsonl").steps())


def test_batches_have_the_length_of_what_they_are_over(at: Path) -> None:
    watch = foretell.watch(forecast(), store="kept.jsonl")
    assert len(watch.over([1, 2, 3])) == 3
    with pytest.raises(TypeError):
        len(watch.over(iter([1])))


def test_a_job_that_fails_keeps_what_it_ran(at: Path) -> None:
    def job() -> None:
        for number, _ in enumerate(foretell.watch(forecast(), every=3600, store="kept.jsonl").over(loader())):
            if number == 30:
                raise RuntimeError("the loss is a pity")

    with pytest.raises(RuntimeError, match="pity"):
        job()
    gc.collect()  # as at the end of the process: nobody holds the watch any more
    [row] = RecordFile("kept.jsonl").steps()
    assert row.repetitions >= 20


def test_a_fork_of_the_job_keeps_nothing(at: Path) -> None:
    watch = foretell.watch(forecast(), every=3600, store="kept.jsonl")
    train(watch.over(loader()))
    fork = multiprocessing.get_context("fork").Process(target=watch.close)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0
    assert list(RecordFile("kept.jsonl").steps()) == []
    watch.close()
    assert len(list(RecordFile("kept.jsonl").steps())) == 1


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_that_cannot_be_written_is_said_once(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RecordFile, records: object) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(RecordFile, "append", full)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with foretell.watch(forecast(), every=0, store="kept.jsonl") as watch:
            assert train(watch.over(loader())) == STEPS
    assert [str(each.message) for each in told if "foretell" in str(each.message)] == [
        "foretell.watch keeps no record of this job from here on: the disk is full"
    ]


def test_no_place_for_a_store_is_said_at_the_start(at: Path) -> None:
    Path("taken").write_text("a file")
    with pytest.warns(RuntimeWarning, match="keeps no record"):
        watch = foretell.watch(forecast(), every=0, store="taken")
    assert train(watch.over(loader())) == STEPS


def test_other_ranks_do_nothing(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with foretell.watch("nosuch.py:nosuch", every=0) as watch:
        assert train(watch.over(loader())) == STEPS
    assert list(at.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"on": "h200"}, "a Forecast has its cluster"),
        ({"every": -1}, "every must be"),
        ({"batches_per_step": 0}, "batches_per_step must be"),
    ],
)
def test_slips_are_errors_at_once(at: Path, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        foretell.watch(forecast(), **wrong)  # type: ignore[arg-type]
