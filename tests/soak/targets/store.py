"""Writers of one store, some of which merge, take in another store and append to a record file."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow.compute
import pyarrow.parquet  # noqa: F401

from foretell.errors import StoreError
from foretell.store.lines import RecordFile
from foretell.store.store import Store
from tests.measure.examples import record

SIDE_BY_SIDE = 3
SECONDS = 0.25


def work(folder: Path, number: int, say: Callable[[str], None]) -> None:
    rng = random.Random(number)
    store, file = Store(folder / "store"), RecordFile(folder / "records.jsonl")
    for batch in _batches(number, rng):
        match rng.randrange(8):
            case 0:
                with contextlib.suppress(StoreError):  # another is merging
                    store.merge()
            case 1:
                other = Store(folder / f"other-{number}")
                other.append(map(record, batch))
                with contextlib.suppress(StoreError):
                    store.merge(other)
                    say(f"store {json.dumps(batch)}")
            case 2:
                file.append(map(record, batch))
                say(f"file {json.dumps(batch)}")
            case _:
                store.append(map(record, batch))
                say(f"store {json.dumps(batch)}")


def _batches(number: int, rng: random.Random) -> Iterator[list[int]]:
    """Numbers of records; some that others append too."""
    for start in range(number * 10_000, (number + 1) * 10_000, 5):
        yield [rng.randrange(200) if rng.random() < 0.1 else start + i for i in range(rng.choice((1, 1, 5)))]


def verify(folder: Path, said: Sequence[str]) -> str:
    promised: dict[str, set[int]] = {"store": set(), "file": set()}
    for line in said:
        where, _, batch = line.partition(" ")
        promised[where] |= set(json.loads(batch))
    store = Store(folder / "store", warn=lambda text: _fail(text))
    for _ in range(2):
        found = Counter(int(json.loads(r.step.settings)["batch"]) for r in store.records() if _is_whole(r))
        assert promised["store"] <= found.keys(), f"lost: {sorted(promised['store'] - found.keys())[:10]}"
        assert set(found.values()) <= {1}, f"doubled: {found.most_common(5)}"
        counts = [
            store.query(f"SELECT count(*) AS n FROM {t}").column("n")[0].as_py() for t in ("steps", "ops", "graphs")
        ]
        assert counts == [len(found), 3 * len(found), 3], counts
        assert store.damaged() == {}
        segments = len(list(store.root.glob("*/*.parquet")))
        store.merge()
    assert not list(store.root.rglob(".writing-*")), "temporary files are left"
    lines = {int(json.loads(r.step.settings)["batch"]) for r in RecordFile(folder / "records.jsonl").records()}
    assert promised["file"] <= lines, f"lost lines: {sorted(promised['file'] - lines)[:10]}"
    kept = sum(map(len, promised.values()))
    return f"{kept} records promised, all there; {len(found)} steps in {segments} segments, {len(lines)} lines"


def _is_whole(found: object) -> bool:
    assert len(found.ops) == 3  # type: ignore[attr-defined]
    assert found.graph is not None  # type: ignore[attr-defined]
    return True


def _fail(text: str) -> None:
    raise AssertionError(text)
