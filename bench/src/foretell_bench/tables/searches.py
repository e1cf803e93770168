"""CherryPick over tables of measured configurations, and running them in the order of Foretell's forecasts.

A table is one workload in many configurations; what is to be small is node-seconds per sample, which is what is rented. A
run costs what the source says it took. Nothing of a table is known to either before a run, and Foretell makes none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Final

from foretell import Forecast, forecast
from foretell.errors import InputError
from foretell.learn.workers import each
from foretell.methods.protocol import STEP_TIME, Example, Query
from foretell.units import Seconds
from foretell_bench.graphs import Say, quiet
from foretell_bench.methods.cherrypick import Candidate, CherryPick
from foretell_bench.sources import examples as sources

NEAR: Final = 1.05  # of the best
SEEDS: Final = 10
_FEWEST: Final = 15  # configurations of a table: six runs of a smaller one are no search
_ROWS: Final = {"llm_h100_sweep": 160, "ddp_step_times": 360, "mlperf_training": 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One way of searching one table; means over the seeds of CherryPick, which has some."""

    source: str
    table: str
    method: str
    configurations: int
    runs: float  # when it stops
    cost: Seconds
    regret: float | None  # of what it stops with: 0.1 is a tenth worse than the best; None: all it ran crashed
    runs_to_near: float | None  # until one run is within 5 % of the best; None: some searches never get there
    cost_to_near: Seconds | None
    reached: float  # share of searches that come within 5 % before they stop
    crashed: float = 0.0  # share of searches that end with nothing that runs
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    source: str
    name: str
    queries: tuple[Query, ...]
    candidates: tuple[Candidate, ...]


SOURCES: Final = {"llm_h100_sweep": sources.llm_h100_sweep, "ddp_step_times": sources.ddp_step_times,
                  "mlperf_training": sources.mlperf_training}  # fmt: skip


def search(source: str, data: Path, say: Say = quiet, workers: int = 1) -> list[SearchResult]:
    made = {table.name: table for table in tables(source, SOURCES[source](data, say, _ROWS[source]).items)}
    found: list[SearchResult] = []
    for name, ways in each(_both, made, made, workers):
        say(f"searched {name}")
        found += ways
    return found


def _both(made: Mapping[str, Table], name: str) -> list[SearchResult]:
    return [cherrypick(made[name]), ranked(made[name])]


def tables(source: str, examples: Sequence[Example]) -> list[Table]:
    """One a workload; for plans on a given number of devices, one for each number."""
    groups: dict[str, dict[Hashable, list[Example]]] = defaultdict(lambda: defaultdict(list))
    for e in examples:
        q = e.query
        size = f" on {q.cluster.devices}" if source == "llm_h100_sweep" else ""
        kind = "" if source == "mlperf_training" else f", {q.cluster.nodes[0].device.name}"
        groups[f"{q.architecture}{kind}{size}"][coordinates(q)].append(e)
    made = []
    for name, configurations in sorted(groups.items()):
        same = list(configurations.values())
        worst = max((e.cost for those in same for e in those), default=0.0)
        candidates = tuple(_candidate(those, worst) for those in same)
        if len(candidates) >= _FEWEST and any(c.objective is not None for c in candidates):
            made.append(Table(source=source, name=name, queries=tuple(t[0].query for t in same), candidates=candidates))
    return made


def _candidate(same: Sequence[Example], worst: Seconds) -> Candidate:
    """A configuration that was measured more than once is its median; a run that crashed costs as the longest."""
    steps = [e.measured[STEP_TIME] for e in same if STEP_TIME in e.measured]
    query = same[0].query
    objective = _objective(query, median(steps)) if steps else None
    cost = median(e.cost for e in same) if steps else worst
    return Candidate(features=coordinates(query), objective=objective, cost=cost)


def _objective(query: Query, step: Seconds) -> float:
    return len(query.cluster.nodes) * step / query.batch


def coordinates(query: Query) -> tuple[float, ...]:
    """What tells configurations apart: how many, of what, and the plan; sizes in logarithms."""
    device, plan = query.cluster.nodes[0].device, query.plan
    sizes = (
        query.cluster.devices,
        len(query.cluster.nodes),
        query.batch / query.cluster.devices,
        device.peak("fp16"),
        device.bandwidth,
        plan.tp,
        plan.pp,
        float(query.settings.get("micro_batch", 1)),
    )
    largest = max(node.count for node in query.cluster.nodes)
    return (*(math.log(size) for size in sizes), math.log(largest), float(plan.zero))


def cherrypick(table: Table, seeds: int = SEEDS) -> SearchResult:
    best = _best(table)
    runs, costs, regrets, near = [], [], [], []
    for seed in range(seeds):
        searched = CherryPick(seed=seed).search(table.candidates)
        value = searched.best(table.candidates)
        runs.append(len(searched.tried))
        costs.append(searched.cost)
        regrets.append(None if value is None else value / best - 1)
        near.append(_to_near(table, searched.tried, best))
    there = [n for n in near if n is not None]
    ended = [r for r in regrets if r is not None]
    return SearchResult(
        source=table.source,
        table=table.name,
        method="CherryPick",
        configurations=len(table.candidates),
        runs=mean(runs),
        cost=mean(costs),
        regret=mean(ended) if ended else None,
        reached=len(there) / seeds,
        crashed=1 - len(ended) / seeds,
        runs_to_near=mean(n for n, _ in there) if len(there) == seeds else None,
        cost_to_near=mean(c for _, c in there) if len(there) == seeds else None,
    )


def ranked(table: Table) -> SearchResult:
    """Run what is forecast to be best, then the next; the first is the answer without any run.

    What is forecast not to fit comes last, unless precision and inputs are assumed: memory is known no better than they.
    """
    forecasts = [_forecast(query) for query in table.queries]

    def place(i: int) -> tuple[bool, float]:
        query, found = table.queries[i], forecasts[i]
        assert isinstance(found, Forecast)
        return not ("assumed" in query.settings or found.memory.fits), _objective(query, found.step_time.seconds)

    order = sorted((i for i, found in enumerate(forecasts) if isinstance(found, Forecast)), key=place)
    found = SearchResult(
        source=table.source,
        table=table.name,
        method="Foretell's ranking",
        configurations=len(table.candidates),
        runs=0,
        cost=0.0,
        regret=None,
        runs_to_near=None,
        cost_to_near=None,
        reached=0.0,
        why=str(forecasts[0]),
    )
    if not order:
        return found
    best = _best(table)
    first = table.candidates[order[0]].objective
    near = _to_near(table, order, best) or (None, None)
    return replace(
        found,
        regret=None if first is None else first / best - 1,
        runs_to_near=near[0],
        cost_to_near=near[1],
        reached=float(first is not None and first <= NEAR * best),
        crashed=float(first is None),
        why="" if first is not None else "its first choice crashes",
    )


def _forecast(query: Query) -> Forecast | str:
    """Or why there is none."""
    if query.graph is None:
        return "a forecast needs the graph of the step, and the source does not say what was run"
    try:
        return forecast(query.graph, query.cluster, query.plan)
    except InputError as error:
        return str(error)


def _best(table: Table) -> float:
    return min(c.objective for c in table.candidates if c.objective is not None)


def _to_near(table: Table, order: Sequence[int], best: float) -> tuple[int, Seconds] | None:
    """Runs and seconds until one is within 5 % of the best."""
    cost = 0.0
    for number, i in enumerate(order, 1):
        cost += table.candidates[i].cost
        objective = table.candidates[i].objective
        if objective is not None and objective <= NEAR * best:
            return number, cost
    return None
