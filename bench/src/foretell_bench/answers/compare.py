"""Two files of answers side by side: how many are the same digit for digit, and which mended defect explains the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foretell_bench.answers.reasons import REASONS, Difference

UNEXPLAINED: Final = "not explained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two versions answer: questions in both files, those that are equal, and differences by their reason."""

    questions: int
    same: int
    same_medians: int  # only intervals, probabilities or energy differ
    missing: int  # questions that only one file has
    by_reason: Mapping[str, Sequence[Difference]] = field(default_factory=dict)

    @property
    def unexplained(self) -> Sequence[Difference]:
        return self.by_reason.get(UNEXPLAINED, ())


def compare(before: Mapping[str, dict[str, Any]], after: Mapping[str, dict[str, Any]]) -> Comparison:
    both = [key for key in before if key in after]
    found = {key: _differences(before[key], after[key]) for key in both}
    grouped: dict[str, list[Difference]] = defaultdict(list)
    for difference in (each for differences in found.values() for each in differences):
        grouped[_reason(difference)].append(difference)
    return Comparison(
        questions=len(both),
        same=sum(not differences for differences in found.values()),
        same_medians=sum(bool(those) and all(d.is_of_an_interval for d in those) for those in found.values()),
        missing=len(before.keys() ^ after.keys()),
        by_reason=dict(grouped),
    )


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if "error" in names:  # one refuses where the other answers: no number can be compared
        names = ["error"]
    return [
        Difference(question=before["question"], field=name, before=before.get(name), after=after.get(name))
        for name in names
    ]


def _reason(difference: Difference) -> str:
    return next((reason.text for reason in REASONS if reason.explains(difference)), UNEXPLAINED)


def markdown(found: Comparison) -> str:
    """A row for each reason, in the order of the table of reasons."""
    rows = ["| what differs | questions | fields | largest change |", "|---|---|---|---|"]
    rows.append(f"| nothing: the same digit for digit | {found.same:,} | | |")
    rows.append(f"| only intervals, the probability to fit, or energy | {found.same_medians:,} | | |")
    for reason in (*(reason.text for reason in REASONS), UNEXPLAINED):
        if differences := found.by_reason.get(reason):
            questions = len({difference.text for difference in differences})
            fields = sorted({difference.field.partition(".")[0] for difference in differences})
            change = max((each.change for each in differences if each.change is not None), default=None)
            largest = "" if change is None else f"{change:.2%}"
            rows.append(f"| {reason} | {questions:,} | {', '.join(fields)} | {largest} |")
    return "\n".join(rows) + "\n"


def summary(found: Comparison, shown: int = 40) -> str:
    lines = [
        f"{found.questions:,} questions in both files, {found.same:,} answered the same digit for digit"
        + (f"; {found.missing:,} in one file alone" if found.missing else "")
        + ".",
        "",
        markdown(found),
    ]
    for each in found.unexplained[:shown]:
        lines.append(f"{each.text}: {each.field} {each.before} → {each.after}")
    if len(found.unexplained) > shown:
        lines.append(f"… and {len(found.unexplained) - shown:,} more")
    return "\n".join(lines)
