"""Fits of PredictDDL and its rivals with networks left out, Ernest's on sampled runs, and seconds to an answer."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import foretell
from foretell.errors import ForetellError
from foretell.learn.workers import each
from foretell.methods.ernest import Ernest
from foretell.methods.predictddl.method import PredictDDL
from foretell.methods.predictddl.regressors import FORMS
from foretell.methods.product import Foretell
from foretell.methods.protocol import Example, Method, Query
from foretell_bench.methods.nearest import NearestNetwork
from foretell_bench.methods.predictddl_operators import PredictDDLOperators
from foretell_bench.research.ghn.hypernetwork import PICTURES

FOLDS: Final = 5
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "PredictDDL": {},
    "PredictDDL, hypernetwork untrained": {"trained": False},
    "PredictDDL, hypernetwork of pictures": {"weights": PICTURES},
    "PredictDDL, no embedding": {"reads": "work"},
    "PredictDDL, embedding only": {"reads": "embedding"},
    "PredictDDL, embedding only, hypernetwork untrained": {"reads": "embedding", "trained": False},
    "PredictDDL, embedding only, hypernetwork of pictures": {"reads": "embedding", "weights": PICTURES},
}
METHODS: Final = (*KINDS, "nearest network", "variant", "Foretell")
ADAPTED: Final = "Foretell, taught by the same rows"
MODULES: Final = {"box": "models", "box-cnns": "cnn_models"}  # part → whose networks it runs
Floats = npt.NDArray[np.float64]
Group = Callable[[Query], str]
Predictions = dict[str, Floats]  # by method
Validations = dict[
    str, list[dict[str, float]]
]  # method → for each fold: form → its error on networks left out in training
Say = Callable[[str], None]


def architecture(query: Query) -> str:
    return query.architecture


def folds(examples: Sequence[Example], group: Group, count: int = FOLDS) -> list[list[int]]:
    """Rows by fold; a group is in one fold. Groups are dealt out in the order of their names, so that siblings part."""
    groups = sorted({group(e.query) for e in examples})
    fold = {name: i % min(count, len(groups)) for i, name in enumerate(groups)}
    found = defaultdict(list)
    for row, e in enumerate(examples):
        found[fold[group(e.query)]].append(row)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Task:
    """A method, and the rows of a fold that it shall not see."""

    method: str
    fold: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """What all tasks share; `whole` are the same rows with all that was measured, for Foretell, which makes jobs of steps."""

    examples: Sequence[Example]
    whole: Sequence[Example]
    target: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """Predictions by name; and for each form the error on networks left out in training."""

    predicted: Predictions
    validated: dict[str, float]


def left_out(
    rows: Rows, group: Group, methods: Sequence[str], workers: int, say: Say
) -> tuple[Predictions, Validations]:
    """What methods predict of every row, fitted on the other groups, and each form's error in validation in each fold."""
    predicted: Predictions = defaultdict(lambda: np.full(len(rows.examples), np.nan))
    validations: Validations = defaultdict(list)
    there = [n for n in methods if n not in KINDS or "weights" not in KINDS[n] or KINDS[n]["weights"].exists()]
    tasks = [Task(n, f, tuple(own)) for f, own in enumerate(folds(rows.examples, group)) for n in there]
    for task, fitted in each(fit, rows, tasks, workers):
        for name, answers in fitted.predicted.items():
            predicted[name][list(task.rows)] = answers
        if fitted.validated:
            validations[task.method].append(fitted.validated)
        least = f"; validation: {min(fitted.validated.values()):.1%}" if fitted.validated else ""
        say(f"{task.method}, fold {task.fold + 1}: {len(task.rows)} rows{least}")
    order = ["PredictDDL", *(f"PredictDDL, {form} alone" for form in FORMS), *KINDS, *predicted]
    return {name: predicted[name] for name in dict.fromkeys(order) if name in predicted}, dict(validations)


def fit(rows: Rows, task: Task) -> Fitted:
    test, target = set(task.rows), rows.target
    train = [e for i, e in enumerate(rows.examples) if i not in test]
    queries = [rows.examples[i].query for i in task.rows]

    def predict(method: Method) -> Floats:
        return np.array([p.values.get(target, np.nan) for p in method.predict(queries)])

    if task.method == "nearest network":
        return Fitted({task.method: predict(NearestNetwork().fit(train))}, {})
    if task.method == "variant":
        variant = PredictDDLOperators().fit(train)
        return Fitted({variant.name: predict(variant)}, {})
    if task.method == "Foretell":
        ours = Foretell().fit([e for i, e in enumerate(rows.whole) if i not in test])
        return Fitted({ADAPTED: predict(ours)}, {})
    answers, validated = {}, {}
    for form in FORMS:
        method = PredictDDL(forms=(form,), **KINDS[task.method]).fit(train)
        by_type = [p.regressors[target].validated for p in method.checker_.at_hand.values()]
        validated[form], answers[form] = float(np.mean(by_type)), predict(method)
    best = min(validated, key=lambda form: validated[form])  # as one with all forms would choose
    alone = {f"PredictDDL, {form} alone": own for form, own in answers.items()} if task.method == "PredictDDL" else {}
    return Fitted({task.method: answers[best], **alone}, validated)


def forecasts(examples: Sequence[Example], times: Callable[[Example], float], say: Say) -> Floats:
    """Foretell's own, which has seen none of these rows."""
    predicted = []
    for e in examples:
        try:
            assert e.query.graph is not None
            found = foretell.forecast(e.query.graph, e.query.cluster, e.query.plan)
            predicted.append(found.step_time.seconds * times(e))
        except ForetellError as error:
            say(f"{e.query.architecture}: {error}")
            predicted.append(np.nan)
    return np.array(predicted)


# Ernest: runs of the workload itself, and one fit for each.


def ernest(
    examples: Sequence[Example], workload: Callable[[Query], object], sampled: Callable[[Example], bool], target: str
) -> tuple[Floats, dict[str, float]]:
    """What Ernest predicts of rows it did not sample, what its runs cost, and how long fitting and answering take."""
    predicted = np.full(len(examples), np.nan)
    spent: dict[str, float] = defaultdict(float)
    by_workload = defaultdict(list)
    for row, e in enumerate(examples):
        by_workload[workload(e.query)].append(row)
    for rows in by_workload.values():
        runs = [alike(examples[i]) for i in rows if sampled(examples[i])]
        others = [i for i in rows if not sampled(examples[i])]
        if not runs or not others:
            continue
        begin = time.process_time()
        method = Ernest().fit(runs)
        fitted = time.process_time()
        answers = method.predict([alike(examples[i]).query for i in others])
        spent["fit"] += fitted - begin
        spent["predict"] += time.process_time() - fitted
        spent["measuring"] += sum(e.cost for e in runs)
        spent["runs"] += len(runs)
        spent["workloads"] += 1
        spent["answers"] += len(others)
        predicted[others] = [p.values.get(target, np.nan) for p in answers]
    return predicted, dict(spent)


def alike(example: Example) -> Example:
    """The same run without what distinguishes workloads: here they are separated before Ernest sees them."""
    return replace(example, query=replace(example.query, architecture="", settings={}))


def pooled_ernest(examples: Sequence[Example], group: Group, setting: Callable[[Query], object], target: str) -> Floats:
    """Ernest reused for networks nobody ran: it sees no network, so it predicts of each what the others took together."""
    predicted = np.full(len(examples), np.nan)
    for rows in folds(examples, group):
        test = set(rows)
        for kind in {setting(examples[i].query) for i in rows}:
            train = [e for i, e in enumerate(examples) if i not in test and setting(e.query) == kind]
            own = [i for i in rows if setting(examples[i].query) == kind]
            method = Ernest().fit([alike(e) for e in train])
            answers = method.predict([alike(examples[i]).query for i in own])
            predicted[own] = [p.values.get(target, np.nan) for p in answers]
    return predicted


# Seconds to an answer.


def timing(part: str, examples: Sequence[Example], most: int = 6) -> dict[str, float]:
    """Seconds to capture a network nobody has seen, to read and embed its graph, to infer; medians over networks.

    Next to them Foretell's, from the same graph to its forecast. Seconds are of a processor.
    """
    different = list({e.query.architecture: e for e in examples}.values())
    chosen = different[:: -(-len(different) // most)]
    method = PredictDDL(forms=("linear", "polynomial")).fit(examples)
    method.predict([chosen[0].query])
    spent: dict[str, list[float]] = defaultdict(list)

    def take(name: str, act: Callable[[], object]) -> None:
        begin = processor_seconds()
        act()
        spent[name].append(processor_seconds() - begin)

    for e in chosen:
        q = e.query
        assert q.graph is not None
        fresh = [replace(q.graph) for _ in range(3)]  # nothing read yet
        take("capture", partial(capture_again, part, q))
        take("embed", partial(method.embedder.embed, fresh[:1]))
        take("predict", partial(method.predict, [replace(q, graph=fresh[1])]))
        take("forecast", partial(foretell.forecast, fresh[2], q.cluster, q.plan))
    return {name: float(np.median(values)) for name, values in spent.items()} | {"networks": len(chosen)}


def processor_seconds() -> float:
    """Of this process and those it waited for: a capture works in one of its own."""
    return sum(os.times()[:4])


def capture_again(part: str, query: Query) -> None:
    """From a SOURCE to its graph, nothing kept of an earlier one: what a new network costs before it can be read."""
    assert query.graph is not None
    source, settings = query.architecture, {"batch": str(query.graph.samples or 1)}
    if part in MODULES:
        settings["name"] = source.removeprefix("box/")
        source = f"foretell_bench.emulated.{MODULES[part]}:network"
    foretell.capture_graph(source, settings, cache=False)
