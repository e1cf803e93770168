"""Searches of random spaces: whether what is recommended is ever beaten in its own table, or breaks what it must keep to.

Devices, prices, batches, the job and the goal are drawn; the step is one small network, priced by the roofline, so that a
thousand searches take minutes. A recommendation is beaten where another choice that keeps to the goal takes no more time and
no more money, less of one of them, both to three digits, and leaves as much room in memory, up to the margin that the planner
states.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from operator import le
from pathlib import Path
from typing import Final

from foretell import Goal, JobLength, PlanResult, Search, Space, Workload, plan
from foretell.capture import capture
from foretell.engine import engine_digest
from foretell.graph import Graph
from foretell.learn.workers import each
from foretell.planner.result import Choice
from foretell.planner.verdict import ROOM, time_and_cost
from foretell_bench.graphs import Say, quiet
from foretell_bench.tables.figures import Figure

DEVICES: Final = ("a100-80g-sxm", "h100-sxm", "h200", "l4", "l40s", "rtx-4090")
_BATCHES: Final = (2, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomQuestion:
    """A random question."""

    space: Space
    goal: Goal
    job: JobLength
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of it."""

    recommended: bool
    beaten: bool  # by another in its table
    broken: bool  # a limit, or the memory
    missed: bool  # nothing is recommended, though something in its table would do
    simulated: int


def draw(number: int) -> RandomQuestion:
    """The question of this number; a number draws the same wherever it is asked."""
    r = random.Random(number)
    gpus = tuple(r.sample(DEVICES, r.randint(1, 3)))
    batch = r.choice(_BATCHES)
    own = {name: r.lognormvariate(0.7, 0.8) for name in gpus} if r.random() < 0.7 else {}
    samples = 10 ** r.uniform(6, 9)
    hours = samples / 10 ** r.uniform(4.5, 7.5)
    goal = Goal(
        deadline=hours * 3600 if r.random() < 0.5 else None,
        budget=hours * 10 ** r.uniform(0, 1) if r.random() < 0.5 else None,
        confidence=r.choice((0.5, 0.8, 0.9, 0.99)),
    )
    space = Space(
        gpus=gpus,
        max_devices=r.choice((1, 2, 4, 8)),
        global_batch=batch * 8 if r.random() < 0.7 else None,
        prices=own,
        recompute=r.choice((("none",), ("none", "full"))),
    )
    return RandomQuestion(
        space=space, goal=goal, job=JobLength.usual(samples=samples, spot=r.random() < 0.2), batch=batch
    )


def run(count: int, say: Say = quiet, *, workers: int = 1, answers: Path | None = None) -> list[Answered]:
    """Ask the first `count` questions, `workers` of them side by side; a run that was stopped goes on from `answers`."""
    found = _kept(answers) if answers is not None else {}
    left = [number for number in range(count) if number not in found]
    if left:
        graphs = {batch: step(batch) for batch in _BATCHES}
        with _cache_of_its_own():
            for number, answered in each(_answered, graphs, left, workers):
                found[number] = answered
                if answers is not None:
                    with answers.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"engine": engine_digest(), "number": number, **asdict(answered)}) + "\n")
                if len(found) % 50 == 0:
                    say(f"{len(found)} of {count} spaces")
    return [found[number] for number in range(count)]


def _answered(graphs: Mapping[int, Graph], number: int) -> Answered:
    question = draw(number)
    return judge(ask(question, graphs), question.goal)


def _kept(path: Path) -> dict[int, Answered]:
    """What this engine answered before; a line that was cut off when a run was stopped is asked again."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            kept = json.loads(line)
            engine, number = kept.pop("engine"), kept.pop("number")
            if engine == engine_digest():
                found[number] = Answered(**kept)
    return found


@contextmanager
def _cache_of_its_own() -> Iterator[None]:
    """A folder for captures and outcomes while questions are asked: outcomes of one space serve the others."""
    before = os.environ.get("FORETELL_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FORETELL_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("FORETELL_CACHE")
            if before is not None:
                os.environ["FORETELL_CACHE"] = before


def ask(question: RandomQuestion, graphs: Mapping[int, Graph]) -> PlanResult:
    return plan(
        graphs[question.batch],
        job=question.job,
        goal=question.goal,
        space=question.space,
        model="roofline",
        search=Search(),
    )


def judge(result: PlanResult, goal: Goal) -> Answered:
    best = result.recommended
    good = [c for c in result.choices if not goal.missed_by(c)]
    return Answered(
        recommended=best is not None,
        beaten=best is not None and any(beats(other, best) for other in good),
        broken=best is not None and _breaks(best, goal),
        missed=best is None and bool(good),
        simulated=result.simulated,
    )


def beats(one: Choice, other: Choice) -> bool:
    """Whether one is no worse than another in anything, and better in time or cost."""
    if (one.cost is None) != (other.cost is None):
        return False
    mine, its = time_and_cost(one), time_and_cost(other)
    return mine != its and all(map(le, mine, its)) and one.headroom >= min(other.headroom, ROOM)


def _breaks(choice: Choice, goal: Goal) -> bool:
    """By the choice's own intervals, not by the odds that it states."""
    odds = [choice.fit_probability]
    if goal.deadline is not None:
        odds.append(choice.time.distribution.probability_below(goal.deadline))
    if goal.budget is not None:
        odds.append(0.0 if choice.cost is None else choice.cost.distribution.probability_below(goal.budget))
    return min(odds) < goal.confidence - 1e-4 or choice.memory > choice.capacity


def figures(found: Sequence[Answered]) -> list[Figure]:
    counts: dict[str, Callable[[Answered], bool]] = {
        "recommended, but beaten in its own table": lambda a: a.beaten,
        "recommended, but a limit is broken": lambda a: a.broken,
        "nothing recommended, though something would do": lambda a: a.missed,
    }
    source = f"{len(found):,} random spaces"
    return [
        Figure(
            source=source,
            measure=name,
            value=float(sum(map(of, found))),
            bar=0.0,
            rows=sum(a.recommended for a in found),
        )
        for name, of in counts.items()
    ]


def step(batch: int) -> Graph:
    """Four blocks of a transformer: enough to cut, shard, recompute and pipeline."""
    import torch

    def model() -> torch.nn.Module:
        layer = torch.nn.TransformerEncoderLayer(1024, 8, 4096, batch_first=True, dropout=0.0)
        return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    made = Workload(
        name="four blocks",
        model=model,
        batch=lambda: {"x": torch.randn(batch, 256, 1024)},
        loss=lambda m, b: m(b["x"]).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        precision="bf16",
    )
    return capture(made)
