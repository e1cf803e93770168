"""Stores and record files: damaged, lying, of strangers. Nothing outside the folder is touched, nothing of ours is lost."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from foretell.store.lines import RecordFile
from foretell.store.store import Store
from tests.fuzz.harness import Nonsense
from tests.fuzz.mutate import VALUES, change, damaged
from tests.measure.examples import record

QUICK_WEIGHT = 0.25  # a case takes a while
OURS = (10, 11)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # waiting for disks is not what is tested
TABLES = ("steps", "ops", "graphs", "series", "allocations", "public_x")


@cache
def base() -> dict[str, bytes]:
    """The files of two small stores: a stranger's with two commits and a public table, and ours."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as name:
        stranger = Store(Path(name) / "stranger")
        stranger.append(map(record, range(2)))
        stranger.append(map(record, range(2, 4)))
        stranger.add_table("x", pa.table({"m": [1, 2]}))
        Store(Path(name) / "ours").append(map(record, OURS))
        return {str(p.relative_to(name)): p.read_bytes() for p in sorted(Path(name).rglob("*")) if p.is_file()}


def prepare() -> None:
    base()


def case(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as name:
        folder = Path(name)
        for file, data in base().items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(data)
        (folder / "precious.parquet").write_text("precious")
        ours = Store(folder / "ours", warn=lambda text: None)
        kept = {r.step.id: r for r in map(record, OURS)}
        try:
            _attack(rng, folder, ours)
        finally:
            if (folder / "precious.parquet").read_text() != "precious":
                raise Nonsense("a file outside the store was touched")
            again = Store(folder / "ours", warn=lambda text: None)
            if not kept.items() <= {r.step.id: r for r in again.records()}.items():
                raise Nonsense("a record of ours was lost or changed")


def _attack(rng: random.Random, folder: Path, ours: Store) -> None:
    if rng.random() < 0.3:
        path = folder / "records.jsonl"
        path.write_bytes(b"\n".join(_line(rng, n) for n in range(3)))
        ours.append(RecordFile(path).records(graphs=True))
        RecordFile(path).done()
        return
    stranger = folder / "stranger"
    for _ in range(rng.choice((1, 1, 2))):
        _spoil(rng, stranger)
    for use in rng.sample(_USES, k=3):
        use(Store(stranger, warn=lambda text: None), ours)


_USES = (
    lambda theirs, ours: list(theirs.records()),
    lambda theirs, ours: theirs.query("SELECT step, sum(device_seconds) FROM ops GROUP BY step").to_pylist(),
    lambda theirs, ours: theirs.query("SELECT * FROM steps").to_pylist(),
    lambda theirs, ours: theirs.query("SELECT hash FROM graphs").to_pylist(),
    lambda theirs, ours: theirs.done(),
    lambda theirs, ours: theirs.damaged(),
    lambda theirs, ours: theirs.merge(),
    lambda theirs, ours: theirs.append([record(20)]),
    lambda theirs, ours: ours.merge(theirs),
    lambda theirs, ours: ours.merge(theirs),
)


def _line(rng: random.Random, number: int) -> bytes:
    data = json.loads(record(number).to_line())
    if rng.random() < 0.2:
        return damaged(rng, json.dumps(data).encode())
    for _ in range(rng.choice((0, 1, 1, 3))):
        change(rng, data)
    return json.dumps(data).encode("utf-8", "surrogatepass")


def _spoil(rng: random.Random, store: Path) -> None:
    root = store / "v1"
    found = sorted(root.glob(f"{rng.choice(TABLES)}/*.parquet"))
    if not found or not all(path.is_file() for path in found):
        return  # spoiled before
    path = rng.choice(found)
    how = rng.randrange(8)
    if how > 2 and not _is_readable(path):
        return  # spoiled before
    match how:
        case 0:
            path.write_bytes(damaged(rng, path.read_bytes()))
        case 1:
            _put(path, damaged(rng, path.read_bytes()))
        case 2:
            _odd_file(rng, root, path)
        case 3 | 4:
            table, note = _read(path)
            change(rng, note)
            if rng.random() < 0.5:
                note["replaces"] = ["../../../precious", str(store.parent / "precious"), path.stem]
            _write(path, table, note)
        case _:
            table, note = _read(path)
            _write(path, _changed(rng, table), note)


def _odd_file(rng: random.Random, root: Path, path: Path) -> None:
    target = rng.choice((path, path.parent, root / "lock", root / "claims", root / "damaged", root / ".writing-x"))
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    match rng.randrange(3):
        case 0:
            target.symlink_to(
                rng.choice((root.parent.parent, root.parent.parent / "precious.parquet", Path("/dev/zero")))
            )
        case 1:
            os.mkfifo(target)
        case _:
            target.mkdir()


def _changed(rng: random.Random, table: Any) -> Any:
    """Rows twice or none, a column of other values, of another kind, twice, or gone."""
    at = rng.randrange(table.num_columns)
    name, cells = table.column_names[at], table.column(at).to_pylist()
    match rng.randrange(7):
        case 0:
            return table.drop_columns([name])
        case 1:
            return table.append_column(name, table.column(at))
        case 2:
            return table.slice(rng.randrange(2)) if rng.random() < 0.5 else pa.concat_tables([table, table])
        case 3:
            return table.append_column("novel", pa.array(range(table.num_rows)))
        case _:
            for _ in range(rng.choice((1, 1, 5))):
                if cells:
                    cells[rng.randrange(len(cells))] = deepcopy(rng.choice((*VALUES, *cells)))
            try:
                made = pa.array(cells, table.schema.field(at).type if rng.random() < 0.8 else None)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                made = pa.nulls(len(cells), table.schema.field(at).type)
            return table.set_column(at, name, made)


def _is_readable(path: Path) -> bool:
    try:
        return path.is_file() and isinstance(_read(path)[1]["parts"], dict)
    except Exception:
        return False


def _read(path: Path) -> tuple[Any, Any]:
    with pq.ParquetFile(path) as file:
        return file.read(), json.loads(file.metadata.metadata[b"foretell"])


def _write(path: Path, table: Any, note: Any) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({b"foretell": json.dumps(note).encode("utf-8", "replace")}), sink)
    _put(path, sink.getvalue().to_pybytes())


def _put(path: Path, data: bytes) -> None:
    """Under the name that its bytes should have, and named by the commits that named the segment before."""
    path.unlink()
    new = path.with_name(hashlib.sha256(data).hexdigest() + ".parquet")
    new.write_bytes(data)
    for commit in sorted((path.parents[1] / "steps").glob("*.parquet")) if path.parent.name != "steps" else ():
        if not _is_readable(commit):
            continue
        table, note = _read(commit)
        if note["parts"].get(path.parent.name) == path.stem:
            note["parts"][path.parent.name] = new.stem
            _write(commit, table, note)
