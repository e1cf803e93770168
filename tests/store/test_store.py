"""The store keeps what it was given: through many writers, kills, full disks, damaged files, merges and versions."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretell.errors import InputError, StoreError
from foretell.graph import Graph
from foretell.measure.record import GraphRow, Record
from foretell.store import merge, segments, tables
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from tests.measure.examples import record, records, step
from tests.report.examples import small_graph

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def listing(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def ids(those: Iterable[Record]) -> Counter[str]:
    return Counter(r.step.id for r in those)


def count(store: Store, table: str) -> int:
    return int(store.query(f"SELECT count(*) AS n FROM {table}").column("n")[0].as_py())


def process(code: str, *arguments: object) -> subprocess.Popen[str]:
    begin = "import os, signal, sys, time\nfrom foretell.store.store import Store\nfrom tests.measure.examples import record\n"
    return subprocess.Popen(
        [sys.executable, "-c", begin + textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def ended(child: subprocess.Popen[str], *, code: int = 0) -> str:
    out, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    return out


class TestAppendAndRead:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.lists(records(), max_size=3), st.data())
    def test_records_come_back_as_they_were(self, given: list[Record], data: st.DataObject) -> None:
        cut = data.draw(st.integers(0, len(given)))
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder)
            store.append(given[:cut])
            store.append(given[cut:])
            once = {r.step.id: r for r in reversed(given)}
            assert {r.step.id: r for r in store.records()} == once
            store.merge()
            back = list(store.records())
            assert {r.step.id: r for r in back} == once
            assert len(back) == len(once)
            assert sorted(s.id for s in store.steps()) == sorted(once)

    def test_making_one_touches_no_disk(self, store: Store) -> None:
        assert not store.exists()
        assert count(store, "steps") == 0
        assert list(store.records()) == []
        assert store.done() == frozenset()
        assert not store.path.exists()

    def test_the_same_record_is_stored_once(self, store: Store) -> None:
        assert store.append([record(1), record(1), record(2)]) == 2
        assert store.append([record(2), record(3)]) == 1
        assert Store(store.path).append([record(1)]) == 0
        assert ids(store.records()) == ids(map(record, (1, 2, 3)))
        assert count(store, "ops") == 9

    def test_a_graph_is_stored_once(self, store: Store) -> None:
        for number in range(6):
            store.append([record(number)])
        assert count(store, "graphs") == 3

    def test_a_graph_can_be_used(self, store: Store) -> None:
        graph = small_graph()[0]
        row = GraphRow(hash=graph.content_hash, name=graph.name, file=graph.to_bytes())
        store.append([Record(step=step(graph=row.hash), graph=row)])
        assert isinstance(store.graph(row.hash), Graph)
        assert store.graph(row.hash).content_hash == graph.content_hash
        with pytest.raises(InputError, match="no graph 'nosuch'"):
            store.graph("nosuch")

    def test_whole_numbers_in_columns_of_fractions_are_one_row(self, store: Store) -> None:
        store.append([Record(step=step(step_seconds=1))])
        assert store.append([Record(step=step(step_seconds=1.0))]) == 0
        assert [r.step.id for r in store.records()] == store.query("SELECT id FROM steps").column("id").to_pylist()

    def test_some_records(self, store: Store) -> None:
        store.append(map(record, range(10)))
        found = list(store.records("step_seconds > 0.0075"))
        assert sorted(r.step.settings for r in found) == ['{"batch":"7"}', '{"batch":"8"}', '{"batch":"9"}']
        assert all(len(r.ops) == 3 and r.graph and r.allocations for r in found)

    def test_steps_without_parts_between_steps_with(self, store: Store) -> None:
        given = [record(n, ops=n % 3) if n % 2 else Record(step=step(n)) for n in range(12)]
        store.append(given[:7])
        store.append(given[7:])
        store.merge()
        assert {r.step.id: r for r in store.records()} == {r.step.id: r for r in given}

    def test_a_slow_source_is_written_as_it_goes(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("foretell.store.store._BATCH_SECONDS", 0.0)

        def measuring() -> Iterator[Record]:
            for number in range(3):
                assert count(Store(store.path), "steps") == number
                yield record(number)

        assert store.append(measuring()) == 3

    def test_what_a_failing_source_gave_is_kept(self, store: Store) -> None:
        def failing() -> Iterator[Record]:
            yield record(1)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.append(failing())
        assert ids(store.records()) == ids([record(1)])

    def test_done_means_final(self, store: Store) -> None:
        outcomes = ("ok", "out-of-memory", "error", "nan-loss", "time-limit")
        store.append(Record(step=step(n, outcome=o, device_name="NVIDIA H200")) for n, o in enumerate(outcomes))
        keys = [step(n).point for n in range(len(outcomes))]
        assert [key in store.done() for key in keys] == [True, True, False, True, True]
        assert keys[0] in store.done("h200")
        assert keys[0] in store.done("NVIDIA H200")
        assert not store.done("a100-80g-sxm")

    def test_a_wrong_question_names_the_tables(self, store: Store) -> None:
        store.append([record()])
        with pytest.raises(InputError, match="Tables: steps, ops, graphs, series, allocations"):
            store.query("SELECT * FROM nosuch")

    @pytest.mark.parametrize("name", ["it's", "a*b", "a[b]c", "a b", "ü?"])
    def test_odd_folders(self, tmp_path: Path, name: str) -> None:
        store = Store(tmp_path / name)
        store.append([record(1)])
        assert count(store, "ops") == 3


class TestSeveralWriters:
    @pytest.mark.nightly
    def test_processes_append_at_once(self, store: Store) -> None:
        code = """
            store = Store(sys.argv[1])
            for number in range(int(sys.argv[2]), int(sys.argv[3])):
                store.append([record(number)])
        """
        ranges = [(0, 15), (10, 25), (20, 35), (0, 10)]
        for child in [process(code, store.path, *r) for r in ranges]:
            ended(child)
        assert ids(store.records()) == ids(map(record, range(35)))
        assert count(store, "steps") == 35
        assert count(store, "ops") == 105
        assert count(store, "graphs") == 3

    @pytest.mark.nightly
    def test_merging_and_reading_while_others_append(self, store: Store) -> None:
        code = """
            store = Store(sys.argv[1])
            for number in range(int(sys.argv[2]), int(sys.argv[3])):
                store.append([record(number)])
        """
        children = [process(code, store.path, 100 * n, 100 * n + 30) for n in range(2)]
        seen, merges = 0, 0
        while any(child.poll() is None for child in children):
            Store(store.path).merge()
            merges += 1
            reader = Store(store.path)
            found = list(reader.records())
            assert len(found) >= seen, "a reader saw less than before"
            seen = len(found)
            assert all(len(r.ops) == 3 and r.graph and r.series and r.allocations for r in found)
            assert count(reader, "ops") >= 3 * seen
        for child in children:
            ended(child)
        assert merges > 2
        assert ids(store.records()) == ids(record(100 * n + i) for n in range(2) for i in range(30))

    def test_readers_survive_a_merge_under_their_feet(self, store: Store) -> None:
        for number in range(12):
            store.append([record(number)])
        reading = Store(store.path).records()
        first = next(reading)
        store.merge()
        assert ids([first, *reading]) == ids(map(record, range(12)))

    def test_a_claim_is_for_one(self, store: Store) -> None:
        with store.claim("point") as ours:
            assert ours
            with Store(store.path).claim("point") as again, store.claim("other") as other:
                assert not again
                assert other
        with store.claim("point") as ours:
            assert ours

    def test_a_claim_dies_with_its_process(self, store: Store) -> None:
        child = process("""
            with Store(sys.argv[1]).claim("point") as ours:
                print(ours, flush=True)
                time.sleep(60)
        """, store.path)  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        with store.claim("point") as ours:
            assert not ours
        child.kill()
        child.wait()
        child.stdout.close()
        assert child.stderr is not None
        child.stderr.close()
        with store.claim("point") as ours:
            assert ours

    def test_a_claim_passes_on_what_fails_inside(self, store: Store) -> None:
        with pytest.raises(OSError, match="device lost"), store.claim("point"):
            raise OSError("device lost")

    def test_one_merge_at_a_time(self, store: Store) -> None:
        store.append([record()])
        with (
            segments.locked(store.root / "merge-lock"),
            pytest.raises(StoreError, match="being merged already"),
        ):
            store.merge()


class TestKilled:
    @pytest.mark.nightly
    @pytest.mark.parametrize("write", range(5))
    def test_in_the_middle_of_an_append(self, store: Store, write: int) -> None:
        """Killed before each of the five files; what was stored is whole, and the next append goes through."""
        store.append([record(0)])
        child = process("""
            from foretell.store import segments
            write, left = segments.write, int(sys.argv[2])
            def dying(folder, data):
                global left
                if left == 0:
                    (folder.parent / ".writing-half").write_bytes(data[:10])
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return write(folder, data)
            segments.write = dying
            Store(sys.argv[1]).append([record(1, ops=5), record(2)])
        """, store.path, write)  # fmt: skip
        ended(child, code=-signal.SIGKILL)
        assert ids(store.records()) == ids([record(0)])
        assert (count(store, "steps"), count(store, "ops")) == (1, 3)
        again = Store(store.path)
        assert again.append([record(1, ops=5), record(2)]) == 2
        store.merge()
        assert count(store, "ops") == 11
        assert not list(store.path.rglob(".writing-*"))
        assert len(list(store.path.rglob("*.parquet"))) == 5

    @pytest.mark.nightly
    def test_at_any_moment(self, store: Store) -> None:
        """All that append returned from is there."""
        acknowledged = set()
        for attempt in range(4):
            child = process("""
                store = Store(sys.argv[1])
                for number in range(int(sys.argv[2]), 10**6):
                    store.append([record(number)])
                    print(number, flush=True)
            """, store.path, attempt * 10_000)  # fmt: skip
            assert child.stdout is not None
            acknowledged.add(int(child.stdout.readline()))
            time.sleep(random.Random(attempt).uniform(0, 0.3))
            child.kill()
            out, _ = child.communicate()
            acknowledged |= {int(line) for line in out.splitlines()}
        there = {int(json.loads(s.settings)["batch"]) for s in store.steps()}
        assert acknowledged <= there
        assert len(there) <= len(acknowledged) + 4  # at most the row in flight, each time
        store.merge()
        assert {int(json.loads(s.settings)["batch"]) for s in store.steps()} == there

    @pytest.mark.nightly
    @pytest.mark.parametrize("moment", range(12))
    def test_in_the_middle_of_a_merge(self, store: Store, moment: int) -> None:
        """Killed before each write and each removal: nothing is lost, nothing is there twice, and merging again works."""
        for number in range(3):
            store.append([record(number)])
        child = process("""
            import pathlib
            from foretell.store import segments
            left = int(sys.argv[2])
            def counted(function):
                def dying(*arguments, **options):
                    global left
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left -= 1
                    return function(*arguments, **options)
                return dying
            segments.write = counted(segments.write)
            pathlib.Path.unlink = counted(pathlib.Path.unlink)
            Store(sys.argv[1]).merge()
        """, store.path, moment)  # fmt: skip
        child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL
        for _ in range(2):
            assert ids(store.records()) == ids(map(record, range(3)))
            assert (count(store, "steps"), count(store, "ops"), count(store, "graphs")) == (3, 9, 3)
            store.append([record(0)])
            store = Store(store.path)
            store.merge()
        assert len(list(store.path.rglob("*.parquet"))) == 5


class TestFullDisk:
    def test_what_was_stored_is_whole(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        store.append([record(1)])

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(
                StoreError, match=r"the disk is full\. Make room and try again; what was stored is whole"
            ):
                store.append([record(2)])
        assert not list(store.path.rglob(".writing-*"))
        assert ids(store.records()) == ids([record(1)])
        assert store.append([record(2)]) == 1

    def test_a_real_one(self, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if not mounted or mounted.returncode:
            pytest.skip("mounting a small disk needs root and the right to mount")
        try:
            store, stored = Store(disk / "store"), []

            def fill() -> None:
                for number in range(1000):
                    store.append([record(number)])
                    stored.append(record(number))

            with pytest.raises(StoreError, match="disk is full"):
                fill()
            assert stored
            assert ids(store.records()) == ids(stored)
            with pytest.raises(StoreError, match="disk is full"):
                store.append(record(number, ops=10_000) for number in range(1000, 1010))
            subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
            assert store.append([record(2000)]) == 1
            store.merge()
            assert ids(store.records()) == ids([*stored, record(2000)])
        finally:
            subprocess.run(["umount", str(disk)], check=True)


class TestDamage:
    @pytest.mark.parametrize("how", ["truncated", "flipped", "emptied", "foreign"])
    @pytest.mark.parametrize("table", ["steps", "ops", "graphs", "series", "allocations"])
    def test_the_rest_is_read(self, store: Store, table: str, how: str) -> None:
        for number in range(3):
            store.append([record(number)])
        [path, *_] = listing(store.root / table)
        good = path.read_bytes()
        path.write_bytes(damaged(good, how))
        message: list[str] = []
        store = Store(store.path, warn=message.append)
        found = list(store.records())
        assert len(found) == (2 if table == "steps" else 3)
        assert count(store, table) == {"steps": 2, "ops": 6}.get(table, 2)
        assert path in store.damaged()
        assert path.exists()
        [warning] = message
        assert str(path) in warning

        done = store.merge()
        aside = store.root / "damaged" / table / path.name
        assert aside in done.set_aside
        assert aside.read_bytes() == damaged(good, how)
        assert Store(store.path).damaged() == {}
        assert ids(Store(store.path).records()) == ids(found)

    def test_a_copy_mends_it(self, store: Store, tmp_path: Path) -> None:
        for number in range(3):
            store.append([record(number)])
        shutil.copytree(store.path, tmp_path / "copy")
        for table in ("steps", "ops"):
            [path, *_] = listing(store.root / table)
            path.write_bytes(b"nothing")
        store = Store(store.path, warn=lambda text: None)
        assert len(store.merge(tmp_path / "copy").mended) == 2
        assert {r.step.id: r for r in store.records()} == {r.step.id: r for r in map(record, range(3))}

    def test_a_merged_copy_mends_it_too(self, store: Store, tmp_path: Path) -> None:
        for number in range(3):
            store.append([record(number)])
        shutil.copytree(store.path, tmp_path / "copy")
        Store(tmp_path / "copy").merge()
        for path in listing(store.root / "ops"):
            path.write_bytes(b"nothing")
        store = Store(store.path, warn=lambda text: None)
        store.merge(tmp_path / "copy")
        assert {r.step.id: r for r in store.records()} == {r.step.id: r for r in map(record, range(3))}

    @pytest.mark.parametrize("table", ["steps", "ops", "graphs"])
    def test_what_cannot_be_read_now_is_left_alone(
        self, store: Store, table: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A passing fault of the disk is no reason to set a good file aside."""
        for number in range(3):
            store.append([record(number)])
        [path, *_] = listing(store.root / table)
        digest = segments.hashlib.file_digest

        def faulty(file: IO[bytes], name: str) -> object:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise OSError(errno.EIO, "Input/output error")
            return digest(file, name)

        with monkeypatch.context() as patch:
            patch.setattr("hashlib.file_digest", faulty)
            message: list[str] = []
            other = Store(store.path, warn=message.append)
            assert count(other, table) == (6 if table == "ops" else 2)
            assert "cannot be read: Input/output error" in message[0]
            assert other.merge().set_aside == ()
        assert count(Store(store.path), "ops") == 9
        store.merge()
        assert {r.step.id: r for r in store.records()} == {r.step.id: r for r in map(record, range(3))}

    def test_a_missing_part_may_yet_turn_up(self, store: Store) -> None:
        for number in range(3):
            store.append([record(number)])
        [path, *_] = listing(store.root / "ops")
        path.rename(store.path / "away")
        message: list[str] = []
        other = Store(store.path, warn=message.append)
        assert count(other, "ops") == 6
        assert "it is missing" in message[0]
        other.merge()
        (store.path / "away").rename(path)
        assert count(Store(store.path), "ops") == 9


def damaged(data: bytes, how: str) -> bytes:
    middle = len(data) // 2
    return {
        "truncated": data[:middle],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "emptied": b"",
        "foreign": b"PAR1 and nothing of ours",
    }[how]


class TestMerge:
    def test_few_segments_of_many(self, store: Store) -> None:
        for number in range(10):
            store.append([record(number)])
        before = {r.step.id: r for r in store.records()}
        done = store.merge()
        assert (done.segments_before, done.segments_after) == (43, 5)
        assert {r.step.id: r for r in store.records()} == before
        assert store.merge().segments_after == 5

    def test_full_segments_stay(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(merge, "_FULL_ROWS", 20)
        for number in range(9):
            store.append([record(number)])
        store.merge()
        assert len(listing(store.root / "steps")) == 3
        assert ids(store.records()) == ids(map(record, range(9)))

    def test_other_stores_come_in(self, store: Store, tmp_path: Path) -> None:
        store.append(map(record, range(4)))
        for name, numbers in (("b", (2, 3, 4, 5)), ("c", (5, 6)), ("d", (0, 1))):
            Store(tmp_path / name).append(map(record, numbers))
        assert store.merge(tmp_path / "b", Store(tmp_path / "c"), tmp_path / "d").taken == 3
        assert {r.step.id: r for r in store.records()} == {r.step.id: r for r in map(record, range(7))}
        assert (count(store, "steps"), count(store, "ops"), count(store, "graphs")) == (7, 21, 3)
        assert len(list(Store(tmp_path / "b").records())) == 4

    def test_two_stores_in_one_folder_are_one_store(self, store: Store, tmp_path: Path) -> None:
        store.append(map(record, range(4)))
        Store(tmp_path / "b").append(map(record, range(2, 6)))
        shutil.copytree(tmp_path / "b", store.path, dirs_exist_ok=True)
        for _ in range(2):
            assert {r.step.id: r for r in store.records()} == {r.step.id: r for r in map(record, range(6))}
            assert (count(store, "steps"), count(store, "ops")) == (6, 18)
            store.merge()

    def test_what_cannot_be_merged(self, store: Store, tmp_path: Path) -> None:
        store.append([record()])
        with pytest.raises(StoreError, match="no store at"):
            store.merge(tmp_path / "nosuch")
        with pytest.raises(StoreError, match="the store itself"):
            store.merge(store.path)


class TestVersions:
    def test_a_store_of_version_1_is_read(self, tmp_path: Path) -> None:
        wanted = {r.step.id: r for r in RecordFile(DATA / "version-1.records.jsonl").records()}
        assert len(wanted) == 4
        assert {r.step.id: r for r in Store(DATA / "version-1.store").records()} == wanted
        shutil.copytree(DATA / "version-1.store", tmp_path / "copy")
        store = Store(tmp_path / "copy")
        assert store.append(wanted.values()) == 0, "ids changed: rows of old stores would be stored twice"
        store.merge()
        assert {r.step.id: r for r in store.records()} == wanted

    def test_a_newer_store_is_refused(self, store: Store) -> None:
        (store.path / "v2").mkdir(parents=True)
        for action in (store.snapshot, lambda: store.append([record()]), lambda: store.query("SELECT 1"), store.merge):
            with pytest.raises(StoreError, match=r"has version 2, this Foretell reads up to 1\. Upgrade with: pip"):
                action()

    def test_a_file_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "records.jsonl").write_text("")
        with pytest.raises(StoreError, match="is a file, and a store is a folder"):
            Store(tmp_path / "records.jsonl").snapshot()

    def test_columns_added_later_hold_their_default(self, store: Store) -> None:
        """Segments as an older Foretell would have written them, beside new ones."""
        old, new = record(1), record(2, marks=("throttled",))
        made = tables.tables_of([old])
        steps = made["steps"].drop_columns(["marks", "world_size", "power_watts", "backend", "training"])
        ops = segments.write(
            store.root / "ops", segments.encode(made["ops"].drop_columns(["kernels", "kernel_seconds"]))
        )
        segments.write(store.root / "steps", segments.encode(steps, parts={"ops": ops}))
        store.append([new])
        question = "SELECT marks, world_size, power_watts, backend, training FROM steps ORDER BY step_seconds"
        for _ in range(2):
            assert [tuple(row.values()) for row in store.query(question).to_pylist()] == [
                ([], 1, None, "", True),
                (["throttled"], 1, None, "", True),
            ]
            assert store.query("SELECT sum(len(kernels)) AS n FROM ops").column("n")[0].as_py() == 6
            found = {r.step.id: r for r in store.records()}
            assert found[old.step.id].step == old.step
            assert found[new.step.id].step == new.step
            store.merge()

    def test_columns_of_a_newer_foretell_survive(self, store: Store) -> None:
        pa = tables.need("pyarrow")
        steps = tables.tables_of([Record(step=step(1))])["steps"].append_column("novel", pa.array([42.5]))
        segments.write(store.root / "steps", segments.encode(steps))
        store.append([record(2)])
        for _ in range(2):
            assert sorted(store.query("SELECT novel FROM steps").column("novel").to_pylist(), key=str) == [42.5, None]
            assert len(list(store.records())) == 2
            store.merge()


class TestWithoutTheExtra:
    def test_missing_packages_are_named(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
        assert store.append([record()]) == 1, "appending needs pyarrow alone"
        assert store.done() == {record().step.point}
        assert ids(store.records()) == ids([record()])
        with pytest.raises(InputError, match=r"needs duckdb, .*pip install 'foretell\[store\]'"):
            store.query("SELECT 1")
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(InputError, match="needs pyarrow, which is not installed"):
            Store(store.path).append([record()])

    def test_importing_the_store_loads_neither(self) -> None:
        check = (
            "import sys, foretell.store.store, foretell.store.lines;"
            "assert not {'pyarrow', 'duckdb', 'torch'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


class TestRecordFile:
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(st.lists(records(), max_size=3))
    def test_records_come_back_as_they_were(self, given: list[Record]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = RecordFile(Path(folder) / "new" / "records.jsonl")
            assert file.append(given) == len(given)
            assert not given or list(file.records()) == given

    def test_half_a_line_is_left_out_and_the_next_is_whole(self, tmp_path: Path) -> None:
        file = RecordFile(tmp_path / "records.jsonl")
        file.append([record(1)])
        with open(file.path, "a") as raw:
            raw.write(record(2).to_line()[:100])
        broken: list[int] = []
        assert list(file.records(lambda number, why: broken.append(number))) == [record(1)]
        file.append([record(3)])
        assert list(file.records(lambda number, why: broken.append(number))) == [record(1), record(3)]
        assert broken == [2, 2]

    @pytest.mark.parametrize(
        "line", ["[]", "{}", "7", '{"version":1}', '{"version":1,"step":{},"ops":[]}', "\x00\xff", '{"version":99}']
    )
    def test_lines_of_strangers(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "r.jsonl").write_bytes(line.encode("latin1") + b"\n" + record(1).to_line().encode() + b"\n")
        broken: list[int] = []
        assert list(RecordFile(tmp_path / "r.jsonl").records(lambda number, why: broken.append(number))) == [record(1)]
        assert broken == [1]

    def test_a_full_disk_leaves_no_half_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = RecordFile(tmp_path / "records.jsonl")
        file.append([record(1)])
        write = os.write
        sizes = iter([50])

        def full(handle: int, data: bytes) -> int:
            if (size := next(sizes, None)) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(handle, data[:size])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(InputError, match="No space left on device"):
                file.append([record(2)])
        assert file.path.read_text() == record(1).to_line() + "\n"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
    def test_a_device_without_room(self) -> None:
        with pytest.raises(InputError, match="cannot be written to /dev/full"):
            RecordFile("/dev/full").append([record(1)])

    def test_a_cut_gzip_gives_what_it_has(self, tmp_path: Path) -> None:
        import gzip

        text = "".join(record(n).to_line() + "\n" for n in range(300))
        path = tmp_path / "records.jsonl.gz"
        data = gzip.compress(text.encode())
        path.write_bytes(data)
        assert len(list(RecordFile(path).records())) == 300
        path.write_bytes(data[: len(data) // 2])
        broken: list[int] = []
        found = list(RecordFile(path).records(lambda number, why: broken.append(number)))
        assert 0 < len(found) < 300
        assert broken

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be read: No such file"):
            list(RecordFile(tmp_path / "nosuch.jsonl").records())
