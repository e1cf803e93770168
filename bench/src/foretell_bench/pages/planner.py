"""The planner's regret as tables: for the terminal, and for docs/accuracy/planner.md."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from foretell_bench.tables.planner import Figures, Summary, loss_of

_HEADS = (
    "table", "configurations", "crash", "planner", "fastest forecast", "after 3 runs", "with runs", "runs", "crashed",
    "CherryPick", "its runs", "crashed", "runs to its loss",
)  # fmt: skip
_MEANS = (
    "mean over", "tables", "planner", "crashes", "fastest forecast", "after 3 runs", "with runs", "runs", "crashed",
    "CherryPick", "its runs", "crashed", "more runs than it",
)  # fmt: skip


def rows(found: Sequence[Figures]) -> list[tuple[str, ...]]:
    return [
        (
            f.table + ("" if f.seen else " *"), f"{f.configurations}", f"{f.crashing}", _loss(f.regret),
            _loss(f.ranked_regret), _known(f.three_runs_loss), _loss(f.measured_regret), f"{f.measured_runs}",
            f"{f.measured_crashes}", _share(f.cherrypick_loss), f"{f.cherrypick_runs:.1f}", f"{f.cherrypick_crashes:.1f}",
            "more" if f.runs_to_cherrypicks_loss is None else f"{f.runs_to_cherrypicks_loss}",
        )
        for f in found
    ]  # fmt: skip


def means(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    return [
        (
            s.of, f"{s.tables}", _share(s.loss), f"{s.crashes}", _share(s.ranked_loss), _known(s.three_runs_loss),
            _share(s.measured_loss), f"{s.measured_runs:.1f}", f"{s.measured_crashes:.1f}", _share(s.cherrypick_loss),
            f"{s.cherrypick_runs:.1f}", f"{s.cherrypick_crashes:.1f}", f"{s.more_runs}",
        )
        for s in summaries
    ]  # fmt: skip


def drawn(summaries: Sequence[Summary]) -> RenderableType:
    table = Table(*_MEANS, box=None, pad_edge=False, header_style="dim")
    for row in means(summaries):
        table.add_row(*row)
    return table


def markdown(found: Sequence[Figures], summaries: Sequence[Summary]) -> str:
    return f"{_table(_MEANS, means(summaries))}\n\n{_table(_HEADS, rows(found))}\n"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))


def _loss(regret: float | None) -> str:
    return "crashes" if regret is None else _share(loss_of(regret))


def _known(loss: float | None) -> str:
    return "" if loss is None else _share(loss)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
