"""The planner's choices on tables of measured configurations: regret without any run and with a few, beside CherryPick.

A table is one model on one number of nodes, with every configuration that was tried there. `foretell.plan` chooses among
them with no run; with `measure` it runs some, whose times are the table's. CherryPick searches the same tables.
Choices of form were made on tables whose name's SHA-256 begins with an even digit; the others were looked at when done.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from foretell import Cluster, JobLength, Plan, PlanResult, Search, Space, plan
from foretell.planner.steps import steps_of
from foretell.store.importers import Row, public_rows
from foretell.units import Seconds
from foretell_bench.graphs import Say, quiet
from foretell_bench.methods.cherrypick import Candidate, CherryPick
from foretell_bench.sources.llm_h100_sweep import LLAMAS, SETTINGS, SOURCE, plan_of

SEEDS: Final = 10
RUNS: Final = 12
FEW: Final = 3  # runs, after which little should be lost
_SAME: Final = 1.0001


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A configuration of a table and its step's seconds; None where it crashed."""

    plan: Plan
    batch: int
    seconds: Seconds | None

    @property
    def rate(self) -> float | None:
        """Seconds per sample: steps of a table differ in what they process."""
        return None if self.seconds is None else self.seconds / work(self.plan, self.batch)


def work(plan: Plan, batch: int) -> int:
    return plan.dp * batch * (plan.grad_accumulation or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    name: str
    model: str
    cluster: str
    rows: tuple[Measured, ...]

    @property
    def best(self) -> float:
        return min(row.rate for row in self.rows if row.rate is not None)

    @property
    def seen(self) -> bool:
        """Whether choices of form were made with this table in view."""
        return int(hashlib.sha256(self.name.encode()).hexdigest()[0], 16) % 2 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One table: regret is how much longer a sample takes than with the best measured; None where the choice crashes."""

    table: str
    seen: bool
    configurations: int
    crashing: int
    chosen: str
    regret: float | None
    ranked_regret: float | None  # of the fastest forecast that fits, with no thought of risk
    measured_runs: int
    measured_crashes: int  # of these runs
    measured_regret: float | None
    cherrypick_runs: float
    cherrypick_crashes: float
    cherrypick_loss: float  # of throughput, mean of its seeds
    cherrypick_runs_to_best: float  # until it has found what it ends with
    runs_to_cherrypicks_loss: int | None  # None: not after as many runs as it makes
    three_runs_loss: float | None = None  # of throughput, after the first three; None in files that are older


def tables(data: Path) -> list[Table]:
    groups: dict[tuple[str, int], dict[tuple[Plan, int], list[Row]]] = {}
    for row in public_rows(data, SOURCE):
        if row["model"] in LLAMAS and (row["status"] == "crashed" or row["tokens_per_second"]):
            same = groups.setdefault((row["model"], row["nodes"]), {})
            same.setdefault((plan_of(row), row["micro_batch"]), []).append(row)
    made = []
    for (model, nodes), configurations in sorted(groups.items()):
        rows = tuple(
            Measured(plan=p, batch=batch, seconds=_seconds(p, batch, rows))
            for (p, batch), rows in configurations.items()
        )
        name = f"llama-{model.lower()}, h100-sxm on {8 * nodes}"
        made.append(Table(name=name, model=model, cluster=f"{nodes}x8xh100-sxm@efa-400g", rows=rows))
    return made


def _seconds(plan: Plan, batch: int, rows: Sequence[Row]) -> Seconds | None:
    """The mean of a configuration's runs; one that crashed at any time is no choice."""
    if any(row["status"] == "crashed" for row in rows):
        return None
    tokens = work(plan, batch) * rows[0]["sequence"]
    return float(mean(tokens / row["tokens_per_second"] for row in rows))


def run(data: Path, say: Say = quiet, workers: int = 1, keep: Path | None = None) -> list[Figures]:
    """Every table, `workers` of them side by side; what was found so far is kept."""
    wanted = tables(data)
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        sources = {model: f"{folder}/{model}.json" for model in LLAMAS}
        for model, config in LLAMAS.items():
            Path(sources[model]).write_text(json.dumps(config))
        for each in _answered(wanted, sources, say, workers):
            found[each.table] = each
            if keep is not None:
                save([found[table.name] for table in wanted if table.name in found], keep)
    return [found[table.name] for table in wanted]


def _answered(wanted: Sequence[Table], sources: Mapping[str, str], say: Say, workers: int) -> Iterator[Figures]:
    if workers == 1:
        for table in wanted:
            say(f"choosing from {table.name}")
            yield figures(table, sources[table.model])
        return
    for model in {table.model for table in wanted}:  # once, rather than in every process
        say(f"capturing llama-{model.lower()}")
        steps_of(sources[model], SETTINGS, {})
    spawning = multiprocessing.get_context("spawn")  # this process may hold threads of other libraries
    with ProcessPoolExecutor(workers, spawning) as pool:
        waiting = [pool.submit(figures, table, sources[table.model]) for table in reversed(wanted)]  # the longest first
        for number, each in enumerate(as_completed(waiting), 1):
            yield each.result()
            say(f"{number} of {len(wanted)} tables")


def figures(table: Table, source: str) -> Figures:
    rates = {(row.plan, row.batch): row.rate for row in table.rows}
    question: dict[str, Any] = {
        "on": Cluster.parse(table.cluster), "job": JobLength.usual(tokens=1e10), "settings": SETTINGS,
        "space": Space(among=[(row.plan, row.batch) for row in table.rows]),
    }  # fmt: skip
    choice = plan(source, **question)
    made = _Runs(table)
    plan(source, **question, search=Search(measure=made, runs=RUNS))
    picks = [[table.rows[i].rate for i in CherryPick(seed=s).search(_candidates(table)).tried] for s in range(SEEDS)]
    loses = mean(loss_of(_regret(table, pick)) for pick in picks)
    reached = loses / (1 - loses) if loses < 1 else math.inf  # the same, as regret
    patient = _Runs(table, until=reached)
    with suppress(_Reached):
        plan(source, **question, search=Search(measure=patient, runs=math.ceil(mean(map(len, picks))), gain=0.0))
    return Figures(
        table=table.name,
        seen=table.seen,
        configurations=len(table.rows),
        crashing=sum(row.seconds is None for row in table.rows),
        chosen=_spelt(choice),
        regret=_of_choice(table, choice, rates),
        ranked_regret=_ranked(table, choice, rates),
        measured_runs=len(made.rates),
        measured_crashes=made.rates.count(None),
        measured_regret=_regret(table, made.rates),
        cherrypick_runs=mean(map(len, picks)),
        cherrypick_crashes=mean(pick.count(None) for pick in picks),
        cherrypick_loss=loses,
        cherrypick_runs_to_best=mean(_runs_to(pick, _least(pick)) or len(pick) for pick in picks),
        runs_to_cherrypicks_loss=_runs_to(patient.rates, (1 + reached) * table.best),
        three_runs_loss=loss_of(_regret(table, made.rates[:FEW])),
    )


class _Reached(Exception):
    """A search has found what was looked for."""


class _Runs:
    """Runs that look up what was measured, and what they found so far."""

    def __init__(self, table: Table, until: float | None = None) -> None:
        self.rows = {(row.plan, row.batch): row for row in table.rows}
        self.enough = None if until is None else (1 + until) * table.best
        self.rates: list[float | None] = []

    def __call__(self, chosen: Plan, batch: int) -> Seconds | None:
        row = self.rows[chosen, batch]
        self.rates.append(row.rate)
        if self.enough is not None and row.rate is not None and row.rate <= self.enough * _SAME:
            raise _Reached
        return row.seconds


def _spelt(choice: PlanResult) -> str:
    best = choice.recommended
    return "nothing" if best is None else f"{best.plan}, micro-batch {best.batch}"


def _of_choice(table: Table, choice: PlanResult, rates: Mapping[tuple[Plan, int], float | None]) -> float | None:
    if choice.recommended is None:
        return None
    return _regret(table, [rates[Plan.parse(choice.recommended.plan), choice.recommended.batch]])


def _ranked(table: Table, choice: PlanResult, rates: Mapping[tuple[Plan, int], float | None]) -> float | None:
    fastest = min(choice.choices, key=lambda c: c.time.median, default=None)
    return None if fastest is None else _regret(table, [rates[Plan.parse(fastest.plan), fastest.batch]])


def _regret(table: Table, found: Sequence[float | None]) -> float | None:
    ran = [s for s in found if s is not None]
    return min(ran) / table.best - 1 if ran else None


def _runs_to(found: Sequence[float | None], rate: float) -> int | None:
    for number, each in enumerate(found, 1):
        if each is not None and each <= rate * _SAME:
            return number
    return None


def _least(found: Sequence[float | None]) -> float:
    return min((rate for rate in found if rate is not None), default=math.inf)


def _candidates(table: Table) -> list[Candidate]:
    """As CherryPick sees them: a run that crashes costs as the longest."""
    worst = max(row.rate for row in table.rows if row.rate is not None)
    return [
        Candidate(
            features=(*(math.log(n) for n in (r.plan.dp, r.plan.tp, r.plan.pp, r.batch)), float(r.plan.zero)),
            objective=r.rate,
            cost=worst if r.rate is None else r.rate,
        )
        for r in table.rows
    ]


def save(found: Sequence[Figures], path: Path) -> None:
    path.write_text(json.dumps([asdict(f) for f in found], indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Figures]:
    return [Figures(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Means over tables; the loss of throughput is 1 − best step / step, and all of it for a choice that crashes."""

    of: str
    tables: int
    loss: float
    ranked_loss: float
    crashes: int
    measured_runs: float
    measured_crashes: float
    measured_loss: float
    three_runs_loss: float | None  # None in files that are older
    cherrypick_runs: float
    cherrypick_crashes: float
    cherrypick_loss: float
    more_runs: int  # tables on which a search seeded by forecasts takes more runs to lose as little as CherryPick


def summaries(found: Sequence[Figures]) -> list[Summary]:
    parts = {
        "1 B": [f for f in found if "-1b" in f.table],
        "8 B": [f for f in found if "-8b" in f.table],
        "in view when choosing the form": [f for f in found if f.seen],
        "not in view": [f for f in found if not f.seen],
        "all": list(found),
    }
    return [_summary(name, part) for name, part in parts.items() if part]


def _summary(name: str, part: Sequence[Figures]) -> Summary:
    return Summary(
        of=name,
        tables=len(part),
        loss=mean(loss_of(f.regret) for f in part),
        ranked_loss=mean(loss_of(f.ranked_regret) for f in part),
        crashes=sum(f.regret is None for f in part),
        measured_runs=mean(f.measured_runs for f in part),
        measured_crashes=mean(f.measured_crashes for f in part),
        measured_loss=mean(loss_of(f.measured_regret) for f in part),
        three_runs_loss=_mean_of([f.three_runs_loss for f in part]),
        cherrypick_runs=mean(f.cherrypick_runs for f in part),
        cherrypick_crashes=mean(f.cherrypick_crashes for f in part),
        cherrypick_loss=mean(f.cherrypick_loss for f in part),
        more_runs=sum((f.runs_to_cherrypicks_loss or math.inf) > f.cherrypick_runs for f in part),
    )


def _mean_of(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return mean(known) if len(known) == len(losses) else None


def loss_of(regret: float | None) -> float:
    return 1.0 if regret is None else regret / (1 + regret)
