"""Where `foretell measure` keeps its records, what it says of them, and how a failed measurement ends."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from foretell.cli.store import DEFAULT_STORE
from foretell.cli.terminal import note
from foretell.errors import ForetellError, InputError, RequirementNotMet, StoreError

if TYPE_CHECKING:
    from foretell.measure.record import Record, StepRow
    from foretell.store.lines import RecordFile
    from foretell.store.store import Store

Kept: TypeAlias = Union["Store", "RecordFile"]
DEFAULT_FILE: Final = Path("measurements.jsonl")  # where no store can be written
_ADVICE: Final = {
    "out-of-memory": " Ask for a smaller batch or a lower precision.",
    "nan-loss": " Check the loss at the first step, or the precision.",
}


def opened(store: Path | None, out: Path | None) -> Kept:
    """A place that cannot be written to is an error before anything is measured."""
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
        kept = Store(named or DEFAULT_STORE, warn=note)
        with kept.writing():
            return kept
    file = RecordFile(out or DEFAULT_FILE)
    with file.claim("is it writable?"):
        return file


def missing() -> list[str]:
    return [name for name in ("pyarrow", "duckdb") if importlib.util.find_spec(name) is None]


def is_kept(record: Record) -> bool:
    """An error is of the question, not of the device."""
    return record.step.outcome != "error"


def note_where(records: Sequence[Record], kept: Kept, *, fell_back: bool) -> None:
    from foretell.store.store import Store

    if not records:
        return
    if isinstance(kept, Store):
        place = "" if kept.path == DEFAULT_STORE else f" --store {kept.path}"
        ids = ", ".join(record.step.id[:8] for record in records[:3]) + (", …" if len(records) > 3 else "")
        note(f"Stored in {kept.path} as {ids}. Look again with: foretell store show {records[0].step.id[:8]}{place}")
        return
    why = f"Without {' and '.join(missing())} there is no store. " if fell_back and missing() else ""
    note(f"{why}Written to {kept.path}. Take it into a store with: foretell store import {kept.path}")


class _NotMeasured(ForetellError):
    def __init__(self, text: str, outcomes: Iterable[str]) -> None:
        super().__init__(text)
        slip = "error" in outcomes  # the other outcomes are what the device could not do
        self.exit_code = InputError.exit_code if slip else RequirementNotMet.exit_code


def end(records: Sequence[Record], lost: str = "") -> None:
    """Say what failed, and by the exit code how; `lost` is why something could not be stored."""
    failed = [record.step for record in records if record.step.outcome != "ok"]
    if lost:
        raise StoreError(lost)
    if not failed:
        return
    outcomes, texts = [step.outcome for step in failed], [_failure(step) for step in failed]
    if len(records) == 1:
        raise _NotMeasured(texts[0], outcomes)
    for text in texts:
        note(f"error: {text}")
    raise _NotMeasured(
        f"{len(failed)} of {len(records)} measurements failed, as listed above; the others are kept.", outcomes
    )


def _failure(step: StepRow) -> str:
    words = "" if step.outcome == "error" else f"{step.outcome.replace('-', ' ')}: "
    stop = "" if step.error.endswith((".", "…")) else "."
    return f"{step.source}: {words}{step.error}{stop}{_ADVICE.get(step.outcome, '')}"
