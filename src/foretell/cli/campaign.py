"""`foretell measure --campaign`: the points of a file, with a bar for a person and lines for a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.cli.terminal import console_of, note, print_json, say
from foretell.errors import RequirementNotMet

if TYPE_CHECKING:
    from foretell.campaign.driver import Progress, Summary
    from foretell.campaign.executor import Executor
    from foretell.campaign.jobs import Campaign
    from foretell.store.place import RecordPlace
    from foretell.units import Seconds


def run_campaign(
    campaign: Campaign, kept: RecordPlace, executor: Executor, *, limit: Seconds, retries: int, as_json: bool
) -> None:
    from foretell.campaign.driver import run

    try:
        with progress_bar() as show:
            summary = run(campaign, kept, executor, limit=limit, retries=retries, progress=show)
    except KeyboardInterrupt as interrupt:
        note(str(interrupt))
        raise
    if as_json:
        print_json(_summary_dict(campaign.name, summary, kept.path))
    else:
        say(f"{campaign.name}: {summary}. Kept in {kept.path}.")
    if summary.left:
        reasons = dict.fromkeys(why for _, why in summary.left)
        raise RequirementNotMet(f"{len(summary.left)} points were not measured: {' '.join(reasons)}")


def _summary_dict(name: str, summary: Summary, path: Path) -> Mapping[str, object]:
    return {
        "schema_version": 1,
        "campaign": name,
        "store": str(path),
        "outcomes": dict(summary.outcomes),
        "skipped": summary.skipped,
        "retried": summary.retried,
        "left": [{"point": str(job.point), "device": job.device, "why": why} for job, why in summary.left],
        "seconds": summary.seconds,
    }


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """A bar for a person; for a file, a line for everything that happens."""
    if not sys.stderr.isatty():
        yield lambda now: note(f"[{now.done}/{now.total}] {now.event}")
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    from foretell.units import show_seconds

    console = console_of(stderr=True)
    last = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = BarColumn(bar_width=16), TextColumn("{task.description}", markup=False, table_column=last)
    failed = 0
    with Bar(*columns, console=console, expand=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(now: Progress) -> None:
            nonlocal failed
            if now.failed > failed:  # stays on the screen above the bar
                console.print(Text(now.event, style="yellow"))
                failed = now.failed
            left = f"{show_seconds(now.seconds_left)} left · " if now.seconds_left else ""
            failures = f"{now.failed} failed · " if now.failed else ""
            words = f"{now.done}/{now.total} · {failures}{left}{now.event.partition(chr(10))[0]}"
            bar.update(task, completed=now.done, total=now.total, description=words)

        yield show
