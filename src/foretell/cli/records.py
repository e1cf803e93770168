"""What `foretell measure` says of the records it kept, and how a failed measurement ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from foretell.cli.terminal import note
from foretell.errors import ForetellError, InputError, RequirementNotMet, StoreError
from foretell.store import place

if TYPE_CHECKING:
    from foretell.measure.record import Record, StepRow

_ADVICE: Final = {
    "out-of-memory": " Ask for a smaller batch or a lower precision.",
    "nan-loss": " Check the loss at the first step, or the precision.",
}


def is_kept(record: Record) -> bool:
    """An error is of the question, not of the device."""
    return record.step.outcome != "error"


def note_where(records: Sequence[Record], kept: place.RecordPlace, *, fell_back: bool) -> None:
    from foretell.store.store import Store

    if not records:
        return
    if isinstance(kept, Store):
        where = "" if kept.path == place.DEFAULT_STORE else f" --store {kept.path}"
        ids = ", ".join(record.step.id[:8] for record in records[:3]) + (", …" if len(records) > 3 else "")
        note(f"Stored in {kept.path} as {ids}. Look again with: foretell store show {records[0].step.id[:8]}{where}")
        return
    missing = place.missing() if fell_back else []
    why = f"Without {' and '.join(missing)} there is no store. " if missing else ""
    note(f"{why}Written to {kept.path}. Take it into a store with: foretell store import {kept.path}")


class _NotMeasured(ForetellError):
    def __init__(self, text: str, outcomes: Iterable[str]) -> None:
        super().__init__(text)
        slip = "error" in outcomes  # the other outcomes are what the device could not do
        self.exit_code = InputError.exit_code if slip else RequirementNotMet.exit_code


def end(records: Sequence[Record], not_stored: str = "") -> None:
    """Say what failed, and by the exit code how; `lost` is why something could not be stored."""
    failed = [record.step for record in records if record.step.outcome != "ok"]
    if not_stored:
        raise StoreError(not_stored)
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
