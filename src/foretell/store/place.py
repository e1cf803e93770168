"""Where records are kept: in a store, or in a record file where there can be none."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store

RecordPlace: TypeAlias = Union["Store", "RecordFile"]
DEFAULT_STORE: Final = Path("measurements")
DEFAULT_FILE: Final = Path("measurements.jsonl")  # where no store can be written


def opened(store: Path | None, out: Path | None, warn: Callable[[str], None]) -> RecordPlace:
    """A place to write to; one that cannot be is an error at once."""
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store
    from foretell.store.tables import need

    if store is not None and out is not None:
        raise InputError("--store and --out are two places for the same records. Give one.")
    if out is not None and out.suffix != ".jsonl":
        raise InputError(f"--out {out} must end in .jsonl: a record file has one line of JSON per measurement.")
    named = store or (Path(text) if (text := os.environ.get("FORETELL_STORE")) else None)
    if out is None and (named is not None or not missing()):
        need("pyarrow")
        kept = Store(named or DEFAULT_STORE, warn=warn)
        with kept.writing():
            return kept
    file = RecordFile(out or DEFAULT_FILE)
    with file.claim("is it writable?"):
        return file


def found(path: Path, warn: Callable[[str], None] = lambda text: None) -> RecordPlace:
    """A place to read: a store, or a record file that ends in .jsonl."""
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store

    if path.suffix == ".jsonl":
        if not path.exists():
            raise InputError(f"there is no record file {path}. Check the path.")
        return RecordFile(path)
    if not (store := Store(path, warn=warn)).exists():
        store.snapshot()  # says so if it is there and too new
        raise InputError(
            f"there is no store at {path}. Name one with --store or $FORETELL_STORE, "
            f"or make one with: foretell store import FILE --store {path}"
        )
    return store


def missing() -> list[str]:
    """What a store needs and is not installed."""
    return [name for name in ("pyarrow", "duckdb") if importlib.util.find_spec(name) is None]
