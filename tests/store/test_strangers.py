"""Files of strangers and damaged ones: nothing outside the folder is touched, good records are kept, no damage lasts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foretell.errors import InputError, StoreError
from foretell.measure.record import GraphRow, Record
from foretell.store import segments, tables
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from tests.measure.examples import graph_row, record, step


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", warn=lambda text: None)


@pytest.fixture
def stranger(tmp_path: Path) -> Store:
    return Store(tmp_path / "stranger", warn=lambda text: None)


def put(store: Store, table: str, rows: Any, **note: Any) -> Path:
    """A segment as a stranger may make it: any rows, any footer, and the name that its bytes should have."""
    said = {"version": 1, "parts": {}, "replaces": []} | note
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"foretell": json.dumps(said)})
    data = sink.getvalue().to_pybytes()
    folder = store.root / table
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (segments.name_of(data) + ".parquet")
    path.write_bytes(data)
    return path


def steps_of(*records: Record) -> Any:
    return tables.tables_of(records)["steps"]


def ids(store: Store) -> list[str]:
    return sorted(r.step.id for r in store.records())


class TestNothingOutside:
    @pytest.mark.parametrize("table", ["steps", "graphs", "public_gemm"])
    @pytest.mark.parametrize("way", ["merged", "copied in", "used"])
    def test_what_a_segment_says_it_replaces(self, store: Store, stranger: Store, table: str, way: str) -> None:
        store.append([record(1)])
        before = ids(store)
        precious = store.path.parent / "precious.parquet"
        precious.write_text("do not lose")
        mine = [path.stem for path in store.root.rglob("*.parquet")]
        names = [str(precious.with_suffix("")), "../../../precious", *mine]
        rows = {"steps": steps_of(Record(step=step(7))), "graphs": tables.tables_of([record(2)])["graphs"]}
        put(stranger, table, rows.get(table, pa.table({"m": [1]})), replaces=names)
        stranger.append([record(8)])
        if way == "merged":
            store.merge(stranger)
        elif way == "copied in":
            shutil.copytree(stranger.path, store.path, dirs_exist_ok=True)
            Store(store.path, warn=lambda text: None).merge()
        else:
            stranger.merge()
        assert precious.read_text() == "do not lose"
        assert set(before) <= set(ids(Store(store.path)))
        assert all(r.graph and len(r.ops) == 3 for r in Store(store.path).records('settings != \'{"batch":"7"}\''))

    @pytest.mark.parametrize("part", ["../../../precious", "/etc/hostname", "A" * 64, "", 7, None])
    def test_what_a_segment_says_its_parts_are(self, store: Store, stranger: Store, part: Any) -> None:
        put(stranger, "steps", steps_of(Record(step=step(7))), parts={"ops": part})
        stranger.append([record(8)])
        assert store.merge(stranger).taken == 1
        assert [r.step.settings for r in stranger.records()] == ['{"batch":"8"}']

    @pytest.mark.parametrize("name", ["v1", "v1/steps", "v1/ops", "v1/damaged", "v1/claims", "v1/lock", "v1/public_x"])
    def test_links(self, store: Store, tmp_path: Path, name: str) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("mine")
        (outside / ".writing-mine").write_text("mine")
        (outside / f"{0:064x}.parquet").write_text("mine")
        for number in range(2):
            store.append([record(number)])
        next((store.root / "ops").iterdir()).write_bytes(b"rotten")
        place = store.path / name
        if place.exists():
            place.rename(tmp_path / "away")
        place.symlink_to(outside / "file" if name == "v1/lock" else outside)
        for action in (lambda: store.append([record(5)]), store.merge, store.damaged, lambda: list(store.records())):
            with contextlib.suppress(StoreError):
                action()
        with pytest.raises(StoreError, match="link"), store.claim("x"):
            Store(store.path).merge()
        assert sorted(path.name for path in outside.iterdir()) == [".writing-mine", f"{0:064x}.parquet", "file"]
        assert {path.read_text() for path in outside.iterdir()} == {"mine"}

    @pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
    @pytest.mark.filterwarnings("ignore:.* is left out")
    def test_segments_that_are_no_files(self, store: Store, stranger: Store, kind: str) -> None:
        stranger.append([record(1)])
        stranger.append([record(2)])
        path = next((stranger.root / "steps").iterdir())
        real = path.rename(path.with_name("real"))
        {"link": lambda: path.symlink_to(real), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
        assert store.merge(stranger).taken == 1
        assert path in Store(stranger.path).damaged()

    def test_a_lock_that_is_a_pipe_does_not_hang(self, stranger: Store, store: Store) -> None:
        stranger.append([record(1)])
        (stranger.root / "lock").unlink()
        os.mkfifo(stranger.root / "lock")
        with pytest.raises(StoreError, match="cannot be locked: it is not a plain file"):
            store.merge(stranger)

    def test_folders_that_are_no_tables(self, store: Store) -> None:
        store.append([record(1)])
        (store.root / "public_x AS y").mkdir()
        assert store.tables() == ["steps", "ops", "graphs", "series", "allocations"]


def column(name: str, values: list[Any], kind: Any = None) -> Callable[[Any], Any]:
    return lambda rows: rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, kind))


class TestSegmentsOfStrangers:
    @pytest.mark.parametrize(
        "spoil",
        [
            column("step_seconds", ["fast"]),
            column("step_seconds", [float("nan")]),
            column("step_seconds", [-1.0]),
            column("source", [None], pa.string()),
            column("source", [7]),
            column("id", [None], pa.string()),
            column("settings", ["[1]"]),
            column("outcome", ["splendid"]),
            column("marks", [[None]], pa.list_(pa.string())),
            lambda rows: rows.drop_columns(["point"]),
            lambda rows: rows.drop_columns(["id"]),
            lambda rows: rows.append_column("source", rows.column("source")),
            lambda rows: pa.concat_tables([rows, rows]),
        ],
    )
    def test_rows_that_cannot_be(self, store: Store, stranger: Store, spoil: Callable[[Any], Any]) -> None:
        stranger.append([record(1)])
        path = put(stranger, "steps", spoil(steps_of(Record(step=step(7)))))
        warned: list[str] = []
        reading = Store(stranger.path, warn=warned.append)
        assert len(list(reading.records())) == 1
        assert any(str(path) in text for text in warned)
        store = Store(store.path, warn=warned.append)
        assert store.merge(stranger.path).taken == 1
        assert len(ids(store)) == 1

    @pytest.mark.parametrize("name", ["source", "marks", "point"])
    def test_a_text_that_is_kept_once_and_repeated(self, store: Store, stranger: Store, name: str) -> None:
        """A small file of which reading would fill the memory."""
        stranger.append([record(1)])
        rows = 2000
        many = pa.concat_tables([steps_of(Record(step=step(7)))] * rows)
        text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 2**20]))
        if name == "marks":
            text = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), text)
        many = column("id", [str(n) for n in range(rows)])(many)
        path = put(stranger, "steps", many.set_column(many.schema.get_field_index(name), name, text))
        assert path.stat().st_size < 2**21
        warned: list[str] = []
        assert Store(store.path, warn=warned.append).merge(stranger.path).taken == 1
        assert "its texts would take 2," in warned[0]

    @pytest.mark.parametrize("note", [{"version": 2}, {"version": 10**30}])
    def test_a_future_version(self, store: Store, stranger: Store, note: dict[str, Any]) -> None:
        stranger.append([record(1)])
        path = put(stranger, "steps", steps_of(Record(step=step(7))), **note)
        for action in (
            stranger.merge,
            stranger.damaged,
            lambda: list(stranger.records()),
            lambda: store.merge(stranger),
        ):
            with pytest.raises(StoreError, match=r"has version .*, this Foretell reads up to 1\. Upgrade"):
                action()
        assert path.exists()

    @pytest.mark.parametrize("version", [0, -1, "1", None, [], 0.5])
    def test_a_version_that_cannot_be(self, stranger: Store, version: Any) -> None:
        stranger.append([record(1)])
        path = put(stranger, "steps", steps_of(Record(step=step(7))), version=version)
        assert path in stranger.damaged()
        assert path.name in {p.name for p in stranger.merge().set_aside}

    def test_ids_are_made_anew(self, store: Store, stranger: Store) -> None:
        """A stranger's row must not pass for a measurement of ours, which would then never be stored."""
        theirs, ours = Record(step=step(7)), Record(step=step(8))
        put(stranger, "steps", column("id", [ours.step.id])(steps_of(theirs)))
        assert store.merge(stranger).taken == 1
        assert store.append([ours]) == 1
        assert ids(store) == sorted([theirs.step.id, ours.step.id])

    def test_ops_of_other_steps_do_not_come_in(self, store: Store, stranger: Store) -> None:
        store.append([record(1)])
        made = tables.tables_of([record(1), record(2)])
        part = put(stranger, "ops", made["ops"])
        put(stranger, "steps", column("graph", [None], pa.string())(steps_of(record(2))), parts={"ops": part.stem})
        store.merge(stranger)
        assert store.query("SELECT count(*) AS n FROM ops").column("n").to_pylist() == [6]

    def test_columns_of_a_newer_foretell_are_not_lost_unseen(self, store: Store, stranger: Store) -> None:
        put(stranger, "steps", steps_of(Record(step=step(7))).append_column("novel", pa.array([42.5])))
        with pytest.raises(StoreError, match=r"columns that this Foretell does not know: novel\. Upgrade"):
            store.merge(stranger)

    @pytest.mark.parametrize("file", [graph_row(2).file, b"garbage", b""])
    def test_a_graph_that_is_another(self, store: Store, stranger: Store, file: bytes) -> None:
        graph = GraphRow(hash=graph_row(1).hash, name="x", file=file)
        false = Record(step=step(1, graph=graph.hash), graph=graph)
        with pytest.raises(InputError):
            store.append([record(0), false, record(2)])
        assert ids(store) == [record(0).step.id], "what came before is kept"
        made = tables.tables_of([false])
        put(stranger, "graphs", made["graphs"])
        put(stranger, "steps", made["steps"])
        assert store.merge(stranger).taken == 0
        assert store.append([record(1)]) == 1
        assert store.graph(graph.hash).content_hash == graph.hash


class TestLinesOfStrangers:
    WRONG: tuple[tuple[str, Any], ...] = (
        ("step_seconds", "fast"), ("step_seconds", [1]), ("step_seconds", True), ("step_seconds", -1),
        ("step_seconds", 10**400), ("step_seconds", 2**63 - 1), ("samples", 1.5), ("samples", 2**63), ("source", 7), ("source", None),
        ("source", "\ud800"), ("marks", "throttled"), ("marks", [1]), ("outcome", "splendid"), ("kind", ""),
        ("settings", "{"), ("settings", "[]"), ("libraries", "[[" * 5000), ("graph", "0" * 64), ("training", 1),
    )  # fmt: skip

    def test_one_wrong_value_costs_one_record(self, store: Store, tmp_path: Path) -> None:
        lines = [record(1).to_line()]
        for name, value in self.WRONG:
            data = json.loads(record(2).to_line())
            data["step"][name] = value
            lines.append(json.dumps(data))
        (tmp_path / "r.jsonl").write_text("\n".join([*lines, record(3).to_line(), ""]))
        broken: dict[int, str] = {}
        file = RecordFile(tmp_path / "r.jsonl")
        assert store.append(file.records(broken.__setitem__)) == 2
        assert list(broken) == list(range(2, 2 + len(self.WRONG)))
        for (name, _), why in zip(self.WRONG, broken.values(), strict=True):
            assert name in why
        assert file.done() == {record(1).step.point, record(3).step.point}

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data: data["ops"]["device_seconds"].__setitem__(0, "x"),
            lambda data: data["ops"]["kernels"].__setitem__(0, [9]),
            lambda data: data["ops"]["kernel_seconds"].__setitem__(0, [1.0]),
            lambda data: data["ops"]["phase"].__setitem__(0, "sideways"),
            lambda data: data["ops"]["op"].pop(),
            lambda data: data["ops"]["op"].__setitem__(0, 64),
            lambda data: data.update(ops=7),
            lambda data: data["series"][0].update(values=[1.0]),
            lambda data: data["series"][0].update(values=[float("inf"), 1.0]),
            lambda data: data["allocations"].update(bytes=[1, None]),
            lambda data: data["allocations"].update(address=[2**63, 1]),
            lambda data: data["graph"].update(file="%%%"),
            lambda data: data["graph"].update(file=""),
            lambda data: data["graph"].update(hash=graph_row(0).hash),
            lambda data: data.update(graph=[]),
            lambda data: data.update(step=None),
        ],
    )
    def test_parts(self, tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
        data = json.loads(record(2).to_line())
        spoil(data)
        (tmp_path / "r.jsonl").write_text(json.dumps(data) + "\n" + record(3).to_line())
        broken: list[int] = []
        found = list(RecordFile(tmp_path / "r.jsonl").records(lambda number, why: broken.append(number), graphs=True))
        assert (found, broken) == ([record(3)], [1])

    def test_a_heap_of_empty_lists(self) -> None:
        with pytest.raises(InputError, match=r"more than [\d,]+ lists"):
            Record.from_line("[" + "[]," * (1 << 22) + "[]]")

    def test_a_line_without_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("foretell.store.lines._LONGEST", 10_000)
        (tmp_path / "r.jsonl").write_text(record(1).to_line() + "\n" + " " * 20_000)
        broken: list[int] = []
        assert len(list(RecordFile(tmp_path / "r.jsonl").records(lambda number, why: broken.append(number)))) == 1
        assert broken == [2]

    def test_a_pipe_does_not_hang(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "r.jsonl")
        with pytest.raises(StoreError, match="not a plain file"):
            list(RecordFile(tmp_path / "r.jsonl").records())


class TestDamageDoesNotLast:
    @pytest.fixture
    def rotten(self, store: Store, tmp_path: Path, table: str) -> Path:
        """A store of which a bit has flipped, and a healthy copy of it."""
        for number in range(3):
            store.append([record(number)])
        shutil.copytree(store.path, tmp_path / "copy")
        [path, *_] = sorted((store.root / table).iterdir())
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return path

    @pytest.mark.parametrize("table", ["steps", "ops", "graphs"])
    @pytest.mark.parametrize("merges", [0, 2])
    def test_it_is_measured_again(self, rotten: Path, store: Store, table: str, merges: int) -> None:
        for _ in range(merges):
            Store(store.path, warn=lambda text: None).merge()
        done = Store(store.path, warn=lambda text: None).done()
        assert len(done) == 2
        Store(store.path, warn=lambda text: None).append([record(9)])
        Store(store.path, warn=lambda text: None).merge()
        assert Store(store.path, warn=lambda text: None).done() == done | {record(9).step.point}

    @pytest.mark.parametrize("table", ["steps", "ops", "graphs"])
    @pytest.mark.parametrize("way", ["merged copy", "import"])
    def test_a_healthy_copy_restores_it(self, rotten: Path, store: Store, tmp_path: Path, table: str, way: str) -> None:
        Store(store.path, warn=lambda text: None).merge()
        again = Store(store.path, warn=lambda text: None)
        wanted = {r.step.id: r for r in map(record, range(3))}
        if way == "merged copy":
            Store(tmp_path / "copy").merge()
        if way == "import":
            RecordFile(tmp_path / "r.jsonl").append(map(record, range(3)))
            assert again.append(RecordFile(tmp_path / "r.jsonl").records()) == 1
        else:
            again.merge(tmp_path / "copy")
        for _ in range(2):
            reading = Store(store.path)
            assert {r.step.id: r for r in reading.records()} == wanted
            assert len(reading.done()) == 3
            assert reading.append(map(record, range(3))) == 0
            reading.merge()
        assert len(list(store.root.glob("*/*.parquet"))) == 5

    @pytest.mark.parametrize("table", ["ops"])
    def test_what_was_lost_elsewhere_is_known_here(self, rotten: Path, store: Store, tmp_path: Path) -> None:
        """A store that takes in a damaged one does not think its records whole."""
        other = Store(tmp_path / "other", warn=lambda text: None)
        assert other.merge(store.path).taken == 3
        assert len(other.done()) == 2
        assert other.merge(tmp_path / "copy").taken == 1
        assert {r.step.id: r for r in other.records()} == {r.step.id: r for r in map(record, range(3))}

    @pytest.mark.parametrize("table", ["ops"])
    def test_damage_that_nobody_has_seen_yet(self, rotten: Path, store: Store) -> None:
        assert Store(store.path, warn=lambda text: None).append(map(record, range(3))) == 1


class TestGraphsOnce:
    def test_two_writers(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another writer stores the same graph between our look and our turn."""
        taken = tables.tables_of

        def slow(records: Any) -> Any:
            monkeypatch.setattr(tables, "tables_of", taken)
            Store(store.path).append([record(3)])
            return taken(records)

        monkeypatch.setattr(tables, "tables_of", slow)
        assert store.append([record(0)]) == 1
        assert store.query("SELECT count(*) AS n FROM graphs").column("n").to_pylist() == [1]

    def test_graphs_that_are_there_twice_are_one_row(self, store: Store, tmp_path: Path) -> None:
        store.append([record(0)])
        Store(tmp_path / "b").append([record(3), record(1)])
        shutil.copytree(tmp_path / "b", store.path, dirs_exist_ok=True)
        for _ in range(2):
            assert sorted(store.query("SELECT hash FROM graphs").column("hash").to_pylist()) == sorted(
                [graph_row(0).hash, graph_row(1).hash]
            )
            store.merge()
        assert len(list((store.root / "graphs").iterdir())) == 1


class TestOddPlaces:
    @pytest.mark.parametrize("place", ["/dev/null", "/dev/null/x", "/dev/full", "/proc/version"])
    def test_a_store_that_cannot_be_there(self, place: str) -> None:
        store = Store(place)
        with pytest.raises(StoreError):
            store.append([record(1)])

    def test_what_killed_writers_left_is_cleared_by_the_next(self, store: Store) -> None:
        store.append([record(0)])
        (store.root / ".writing-abc").write_bytes(b"half")
        store.append([record(1)])
        assert not list(store.root.rglob(".writing-*"))

    def test_a_writer_at_work_keeps_its_file(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others wait for their turn before they clear up."""
        replaced = os.replace

        def looked_at(source: Any, target: Any) -> None:
            with segments.locked(store.root / "lock", wait=False) as ours:
                assert not ours
            replaced(source, target)

        monkeypatch.setattr(os, "replace", looked_at)
        store.append([record(0)])
        assert len(ids(store)) == 1

    def test_a_record_that_cannot_be_is_refused(self, store: Store) -> None:
        for wrong in (dataclasses.replace(record(1), ops=(7,)), Record(step=step(1, samples=-1))):
            with pytest.raises(InputError):
                store.append([wrong])
        assert not store.exists()
