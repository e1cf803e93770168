"""`foretell store`: what was measured, and the files it comes from and goes to."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import answer, guarded, note, print_json, progress, say
from foretell.errors import InputError
from foretell.store import place

if TYPE_CHECKING:
    from foretell.store.store import Store

StorePath = Annotated[
    Path, typer.Option("--store", metavar="FOLDER", envvar="FORETELL_STORE", help="The store ($FORETELL_STORE).")
]
_NAMED = 20  # lines of a file that are left out, one by one
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only steps this holds for, like \"device = 'h200'\".")
]

app = typer.Typer(name="store", help="What was measured: list, show, merge, export, import.", no_args_is_help=True)


def ls(store: StorePath = place.DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List what a store holds: devices, architectures, outcomes, size."""
    from foretell.report.stored import summary, summary_table

    facts = summary(_opened(store))
    answer(as_json, lambda: facts, lambda width: summary_table(facts))
    for path, reason in {} if as_json else facts["damaged"].items():
        note(f"{path} is damaged and left out: {reason}. `foretell store merge` sets it aside.")


def show(
    step: Annotated[str | None, typer.Argument(metavar="[ID]", help="A step, by the beginning of its id.")] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql", metavar="SQL", help="Any question over steps, ops, graphs, series, allocations, public_…"
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="How many ops to show.")] = 12,
    store: StorePath = place.DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show one step in full, or the answer to an SQL question."""
    from foretell.report import stored

    if (step is None) == (sql is None):
        raise InputError(
            "show takes the ID of a step, or --sql and a question. Find IDs with: --sql 'SELECT id, source FROM steps'"
        )
    opened = _opened(store)
    if sql is not None:
        found = opened.query(sql)
        rows = stored.plain_rows(found)
        answer(as_json, lambda: rows, lambda width: stored.answer_table(rows, found.column_names))
        return
    record = _record(opened, step or "")
    answer(as_json, lambda: stored.step_dict(record, top), lambda width: stored.step_table(record, top))


def merge(
    others: Annotated[list[Path] | None, typer.Argument(metavar="[OTHER]…", help="Stores to take in.")] = None,
    store: StorePath = place.DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Take in other stores, and make few files of many. Safe while others append."""
    from foretell.units import show_bytes

    opened = _opened(store) if not others else _store(store)
    with progress() as report:
        report(f"merging {store}")
        done = opened.merge(*(others or []))
    if as_json:
        import dataclasses

        print_json(
            dataclasses.asdict(done) | {key: [str(p) for p in getattr(done, key)] for key in ("mended", "set_aside")}
        )
        return
    taken = f"{done.taken:,} step{'' if done.taken == 1 else 's'} taken in. " if others else ""
    say(
        f"{taken}{done.segments_before:,} segments, {show_bytes(done.bytes_before)} → "
        f"{done.segments_after:,} segments, {show_bytes(done.bytes_after)}."
    )
    for path in done.mended:
        note(f"{path} was damaged and is whole again.")
    for path in done.set_aside:
        note(f"A damaged segment was set aside: {path}")


def export(
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="FILE.jsonl[.gz]: records. FILE.csv, FILE.parquet: a table. A folder: every table."
        ),
    ],
    where: Where = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="SQL", help="The table to write to FILE.csv or FILE.parquet; else the steps."),
    ] = None,
    for_adapt: Annotated[
        bool, typer.Option("--for-adapt", help="Write step times to FILE.csv, as `foretell adapt --from` reads them.")
    ] = False,
    store: StorePath = place.DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Write records or tables to files that other tools read."""
    opened = _opened(store)
    kind = out.name.removesuffix(".gz").rpartition(".")[2] if "." in out.name else "folder"
    if kind not in ("jsonl", "csv", "parquet", "folder") or (out.suffix == ".gz" and kind != "jsonl"):
        raise InputError(f"{out} has an ending we do not write. Use .jsonl, .jsonl.gz, .csv, .parquet, or a folder.")
    if sql is not None and (kind not in ("csv", "parquet") or where is not None):
        raise InputError(
            "--sql writes one table, to .csv or .parquet, and holds its own WHERE. Leave out --where, or --sql."
        )
    if for_adapt:
        if kind != "csv" or where is not None or sql is not None:
            raise InputError(
                "--for-adapt writes all step times to a file that ends in .csv. Leave out --where and --sql."
            )
        written = _export_step_times(opened, out)
    elif kind == "jsonl":
        written = _export_records(opened, out, where)
    else:
        condition = f"WHERE {where}" if where is not None else ""
        chosen = f"SELECT id FROM steps {condition}"
        tables = {
            "steps": f"SELECT * FROM steps {condition}",
            **{part: f"SELECT * FROM {part} WHERE step IN ({chosen})" for part in ("ops", "series", "allocations")},
            "graphs": f"SELECT * FROM graphs WHERE hash IN (SELECT graph FROM steps {condition})",
        }
        if kind == "folder":
            if where is None:
                tables |= {name: f"SELECT * FROM {name}" for name in opened.tables() if name not in tables}
            written = {name: _export_table(opened, table, out / f"{name}.parquet") for name, table in tables.items()}
        else:
            written = {"rows": _export_table(opened, sql or tables["steps"], out)}
    if as_json:
        print_json({"file": str(out)} | written)
    else:
        note(f"{out}: {', '.join(f'{count:,} {name}' for name, count in written.items())}")


def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…", help="Record files (.jsonl[.gz]), public measurements (.csv[.gz]), other stores."
        ),
    ],
    store: StorePath = place.DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Take in record files, public measurements and other stores."""
    opened = _store(store)
    done: list[dict[str, Any]] = []
    failed: list[InputError] = []
    for path in paths:
        try:
            taken = _import(opened, path)
        except InputError as error:
            if len(paths) == 1:
                raise
            failed.append(error)  # the rest continues
            note(f"error: {error}")
            continue
        done.append({"file": str(path)} | taken)
        if not as_json:
            say(f"{path}: {taken['rows']:,} {taken['what']}{'' if taken['new'] else ', there already'}")
    if as_json:
        print_json(done)
    if failed:
        raise InputError(
            f"{len(failed)} of {len(paths)} files could not be imported, as listed above; the others are stored."
        )


for name, verb in (("ls", ls), ("show", show), ("merge", merge), ("export", export), ("import", import_)):
    app.command(name)(guarded(verb))


def _store(path: Path) -> Store:
    from foretell.store.store import Store

    return Store(path, warn=note)


def _opened(path: Path) -> Store:
    from foretell.store.store import Store

    store = place.found(path, note)
    if not isinstance(store, Store):
        raise InputError(f"{path} is a record file. Take it into a store with: foretell store import {path}")
    return store


def _record(store: Store, start: str) -> Any:
    advice = "Find IDs with: foretell store show --sql 'SELECT id, source FROM steps'"
    if not start.isalnum():
        raise InputError(f"{start!r} is not the id of a step. {advice}")
    ids = store.query(f"SELECT id FROM steps WHERE starts_with(id, '{start}') ORDER BY id").column("id").to_pylist()
    if len(ids) != 1:
        several = f"{len(ids):,} steps: {', '.join(ids[:4])}{', …' if len(ids) > 4 else ''}. Give more of it"
        raise InputError(f"{start!r} begins the id of {several if ids else 'no step'}. {advice}")
    return next(store.records(f"id = '{ids[0]}'"))


def _export_records(store: Store, out: Path, where: str | None) -> dict[str, int]:
    count = 0
    with _whole_file(out) as temporary:
        opener: Callable[..., IO[str]] = gzip.open if out.suffix == ".gz" else open
        with opener(temporary, "wt", encoding="utf-8") as file:
            for record in store.records(where):
                file.write(record.to_line() + "\n")
                count += 1
    return {"records": count}


def _export_step_times(store: Store, out: Path) -> dict[str, int]:
    from foretell.watching.steps_csv import write_steps_csv

    with _whole_file(out) as temporary:
        return {"step times": write_steps_csv(store, temporary, out.parent)}


def _export_table(store: Store, sql: str, out: Path) -> int:
    with _whole_file(out) as temporary:
        return store.write_query(sql, temporary, "csv" if out.suffix == ".csv" else "parquet")


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """A file beside it to write, which takes its place when it is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}. Choose another file, or make room.") from error


def _import(store: Store, path: Path) -> dict[str, Any]:
    name = path.name.removesuffix(".gz")
    if path.is_dir():
        done = store.merge(path)
        return {"what": "steps of another store", "rows": done.taken, "new": done.taken}
    if name.endswith(".jsonl"):
        return _import_records(store, path)
    if name.endswith(".csv"):
        from foretell.store.importers import read_public

        read = read_public(path)
        if read.ignored:
            note(f"{path}: columns that {read.format.name} does not have are left out: {', '.join(read.ignored)}")
        new = store.add_table(read.format.name, read.table)
        only = " (evaluation only)" if read.format.evaluation_only else ""
        rows = read.table.num_rows
        return {"what": f"rows of public_{read.format.name}{only}", "rows": rows, "new": rows if new else 0}
    raise InputError(
        f"{path} is nothing we import. Give a record file (.jsonl, .jsonl.gz), a public measurement (.csv, .csv.gz), or a store."
    )


def _import_records(store: Store, path: Path) -> dict[str, Any]:
    from foretell.store.lines import RecordFile

    broken: list[tuple[int, str]] = []
    read = 0

    def records() -> Iterator[Any]:
        nonlocal read
        file = RecordFile(path)
        for record in file.records(lambda number, reason: broken.append((number, reason)), graphs=True):
            read += 1
            yield record

    new = store.append(records())
    for number, reason in broken[:_NAMED]:
        note(f"{path}, line {number} is left out: {reason}")
    if len(broken) > _NAMED:
        note(f"{path}: {len(broken) - _NAMED:,} more lines are left out")
    if broken and not read:
        raise InputError(f"{path} has no record: line {broken[0][0]} is left out: {broken[0][1]}")
    out = f", {len(broken):,} line{'s' if len(broken) > 1 else ''} left out" if broken else ""
    return {"what": f"records{out}", "rows": read, "new": new, "broken_lines": [number for number, _ in broken]}
