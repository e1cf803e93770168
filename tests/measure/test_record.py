"""Records: lines that come back as they went, ids that hold, and files of them as a store."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings

from foretell.errors import InputError, StoreError
from foretell.measure.record import VERSION, Point, Record, StepRow
from foretell.store.lines import RecordFile
from tests.measure.examples import record, records, step


class TestLines:
    @settings(max_examples=40, deadline=None)
    @given(records())
    def test_they_come_back_as_they_went(self, given: Record) -> None:
        line = given.to_line()
        assert "\n" not in line
        assert Record.from_line(line) == given

    def test_a_column_that_was_not_there_yet_holds_its_default(self) -> None:
        data = json.loads(record(1).to_line())
        del data["step"]["communication_seconds"], data["step"]["marks"]
        read = Record.from_line(json.dumps(data)).step
        assert (read.communication_seconds, read.marks) == (None, ())

    @pytest.mark.parametrize("line", ["", "{}", "[]", "null", "nonsense", '{"version": 1}', '{"version": "one"}'])
    def test_what_is_no_record(self, line: str) -> None:
        with pytest.raises(InputError, match="not a measurement record"):
            Record.from_line(line)

    def test_a_newer_format(self) -> None:
        line = json.dumps(json.loads(record(1).to_line()) | {"version": VERSION + 1})
        with pytest.raises(InputError, match="Upgrade"):
            Record.from_line(line)

    def test_a_long_name_of_a_kernel_is_written_once(self) -> None:
        assert record(1, ops=50).to_line().count("sgemm") == 1


class TestIds:
    def test_the_same_row_the_same_id(self) -> None:
        assert step(1).id == step(1).id != step(2).id

    def test_any_column_makes_another(self) -> None:
        plain = step(1)
        for field in dataclasses.fields(StepRow):
            value = getattr(plain, field.name)
            if isinstance(value, str):
                assert dataclasses.replace(plain, **{field.name: value + "x"}).id != plain.id, field.name

    def test_a_point_is_the_same_question_whoever_asks(self) -> None:
        a = Point(source="s", settings={"a": "1", "b": "2"})
        assert a.key == Point(source="s", settings={"b": "2", "a": "1"}).key
        others = [Point(source="t"), Point(source="s", kind="operators"), Point(source="s", plan="dp=2")]
        assert len({a.key, *(p.key for p in others)}) == 4


def _held(path: Path, name: str, answer: multiprocessing.connection.Connection) -> None:
    with RecordFile(path).claim(name) as ours:
        answer.send(ours)
        answer.recv()


class TestFileAsStore:
    def test_what_is_done(self, tmp_path: Path) -> None:
        store = RecordFile(tmp_path / "deep" / "r.jsonl")
        assert store.done() == frozenset()
        failed = Record(step=step(3, outcome="error"))
        full = Record(step=step(4, outcome="out-of-memory"))
        assert store.append([record(1), record(2, device="", device_name="Odd GPU"), failed, full]) == 4
        keys = {n: step(n).point for n in range(5)}
        assert store.done() == {keys[1], keys[2], keys[4]}
        assert store.done("h200") == {keys[1], keys[4]}
        assert store.done("Odd GPU") == {keys[2]}
        assert [row.id for row in store.steps(f"point = '{keys[1]}'")] == [record(1).step.id]

    def test_it_sees_what_others_append_meanwhile(self, tmp_path: Path) -> None:
        ours, theirs = RecordFile(tmp_path / "r.jsonl"), RecordFile(tmp_path / "r.jsonl")
        ours.append([record(1)])
        assert len(theirs.done()) == 1
        ours.append([record(2)])
        assert len(theirs.done()) == 2

    def test_half_a_line_is_left_out_until_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        line = record(1).to_line()
        path.write_text(line[:100])
        store = RecordFile(path)
        assert store.done() == frozenset()
        store.append([record(2)])
        assert store.done() == {step(2).point}

    def test_a_file_answers_one_question(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"only point = 'KEY'.*store import"):
            RecordFile(tmp_path / "r.jsonl").steps("step_seconds > 1")

    def test_a_place_that_cannot_be_written(self) -> None:
        store = RecordFile("/dev/null/r.jsonl")
        with pytest.raises(StoreError, match="Choose another file"), store.claim("x"):
            pass
        with pytest.raises(StoreError, match="choose another file"):
            store.append([record(1)])

    def test_claims_hold_between_processes_and_leave_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        near, far = multiprocessing.Pipe()
        other = multiprocessing.get_context("fork").Process(target=_held, args=(path, "a", far))
        other.start()
        assert near.recv() is True
        with RecordFile(path).claim("a") as ours, RecordFile(path).claim("b") as free:
            assert (ours, free) == (False, True)
        near.send("end")
        other.join()
        with RecordFile(path).claim("a") as ours:
            assert ours
        assert list(tmp_path.iterdir()) == []

    def test_a_claim_dies_with_its_process(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        near, far = multiprocessing.Pipe()
        other = multiprocessing.get_context("fork").Process(target=_held, args=(path, "a", far))
        other.start()
        assert near.recv() is True
        other.kill()
        other.join()
        with RecordFile(path).claim("a") as ours:
            assert ours
