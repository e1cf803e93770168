"""What was watched or measured, as the rows that `foretell adapt --from` reads: a step each, with its time."""

from __future__ import annotations

import csv
import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretell.measure.record import StepRow
from foretell.store.store import Store
from foretell.units import Bytes, Seconds
from foretell.watching.drift import courses


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRow:
    """One kind of step on one cluster; its fields are the columns."""

    source: str
    settings: Mapping[str, str]
    cluster: str
    plan: str
    seconds: Seconds
    allocated: Bytes | None
    reserved: Bytes | None
    graph: str | None = field(metadata={"column": False})  # content hash
    step: str = field(default="", metadata={"column": False})  # the last that was measured; "" of a watched job

    @property
    def is_graph(self) -> bool:
        """Whether its graph is all there is of it: a workload that was no SOURCE."""
        return self.source.endswith(".graph")


def write_steps_csv(store: Store, out: Path, graphs: Path) -> int:
    """Write the rows, and into the folder `graphs` those that are a row's only source; how many rows there are."""
    rows = [row for row in steps_csv(store.steps()) if row.graph or not row.is_graph]
    columns = [f.name for f in dataclasses.fields(CsvRow) if f.metadata.get("column", True)]
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            cells = {name: getattr(row, name) for name in columns}
            cells["settings"] = " ".join(f"{name}={value}" for name, value in row.settings.items())
            if row.is_graph and row.graph:
                place = graphs / Path(row.source).name
                store.graph(row.graph).save(place)
                cells["source"] = str(place)
            writer.writerow("" if value is None else value for value in cells.values())
    return len(rows)


def steps_csv(steps: Iterable[StepRow]) -> list[CsvRow]:
    """A row for each kind of job that was watched, as it has been since its last drift, and for each measured step."""
    every = [step for step in steps if step.outcome == "ok" and step.step_seconds]
    groups: dict[tuple[str, str], list[StepRow]] = {}
    for step in every:
        if step.kind == "step" and (on := _measured_on(step)):
            groups.setdefault((step.point, on), []).append(step)
    rows = [_row(course.windows[course.drift.since or 0 :], course.latest.cluster) for course in courses(every)]
    return [*rows, *(dataclasses.replace(_row(group, on), step=group[-1].id) for (_, on), group in groups.items())]


def _measured_on(step: StepRow) -> str:
    """The cluster of a step measured on one device; of several ranks it is not known how they lie."""
    if step.world_size > 1:
        return ""
    return step.device or ("cpu" if step.device_name and step.device_name == step.host_cpu else "")


def _row(windows: Sequence[StepRow], cluster: str) -> CsvRow:
    latest = windows[-1]
    return CsvRow(
        source=latest.source,
        settings={name: str(value) for name, value in json.loads(latest.settings or "{}").items()},
        cluster=cluster,
        plan=latest.plan,
        seconds=statistics.median(window.step_seconds or 0.0 for window in windows),
        allocated=latest.peak_allocated,
        reserved=latest.peak_reserved,
        graph=latest.graph,
    )
