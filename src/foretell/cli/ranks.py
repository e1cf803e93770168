"""`foretell measure` under torchrun: a step of several ranks, which rank 0 keeps and shows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foretell.cli.records import end, note_where
from foretell.cli.terminal import note, print_drawn, print_json
from foretell.errors import RequirementNotMet

if TYPE_CHECKING:
    from foretell.measure.record import Point, Record
    from foretell.store.place import RecordPlace
    from foretell.units import Seconds


def measure_among_ranks(
    points: Sequence[Point],
    kept: RecordPlace,
    *,
    backend: str | None,
    seconds: Seconds | None,
    limit: Seconds,
    as_json: bool,
) -> None:
    from foretell.measure.ranks.measure import SECONDS, join, measure_ranks
    from foretell.report.measured import measured_dict, measured_ranks
    from foretell.store.lines import RecordFile

    file = kept.path if isinstance(kept, RecordFile) else None
    every: list[Record] = []
    answers = []
    with join(backend=backend) as world:
        for point in points:
            with _ended_after(limit, point):
                records = measure_ranks(point, world, seconds=seconds or SECONDS, out=file)
            every += records
            if world.place.rank:
                continue
            if file is None:
                kept.append(records)
            answers.append([measured_dict(record) for record in records])
            if not as_json:
                print_drawn(measured_ranks(records))
    if answers:
        if as_json:
            print_json(answers if len(points) > 1 else answers[0])
        note_where(every, kept, fell_back=True)
        end(every)


def measure_collectives_among_ranks(
    kept: RecordPlace, *, backend: str | None, seconds: Seconds | None, limit: Seconds, as_json: bool
) -> None:
    from foretell.measure.ranks.collectives import SECONDS, measure_collectives
    from foretell.measure.ranks.measure import join
    from foretell.report.measured import collectives_table, measured_dict

    with join(backend=backend) as world, _ended_after(limit, "collectives"):
        records = measure_collectives(world, seconds=seconds or SECONDS)
    if records:  # of rank 0
        kept.append(records)
        if as_json:
            print_json([measured_dict(record) for record in records])
        else:
            print_drawn(collectives_table(records))
        note_where(records, kept, fell_back=True)


@contextmanager
def _ended_after(limit: Seconds, point: Point | str) -> Iterator[None]:
    """torchrun ends the other ranks when one has ended; a step that hangs is ended no other way."""
    from foretell.units import show_seconds

    def stop() -> None:
        note(f"error: {point}: it ran longer than {show_seconds(limit)} and was stopped. Raise --limit.")
        os._exit(RequirementNotMet.exit_code)

    timer = threading.Timer(limit, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
