"""After PredictDDL on networks it has not seen, beside Ernest, which is fitted anew for each, and Foretell's forecasts.

    python bench/scripts/methods_predictddl.py --data FOLDER [--only digits|cnn|timm|h200|box|box-cnns] [--workers 8] [--architectures 80]
    python bench/scripts/methods_predictddl.py --picture

Prints its figures and writes bench/results/predictddl.json, a part at a time. FOLDER holds the public measurements
(docs/internals/data.md); --picture draws bench/notes/methods/predictddl.svg from the results. A fifth of the
networks, or of the families, is left out at a time. Every figure is of rows whose network the method never saw, but for
Ernest, which sees its own sampled runs of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from foretell_bench.errors import Errors
from foretell_bench.methods.nearest import NearestNetwork
from foretell_bench.methods.ours import Foretell
from foretell_bench.methods.predictddl_operators import PredictDDLOperators
from foretell_bench.pages.accuracy import scatter
from foretell_bench.research.ghn.hypernetwork import PICTURES
from foretell_bench.sources import examples as sources
from foretell_bench.sources.box import box_runs

from foretell import capture_graph
from foretell.errors import ForetellError
from foretell.forecasting.forecast import forecast
from foretell.learn.workers import each
from foretell.methods.ernest import Ernest
from foretell.methods.predictddl.method import PredictDDL
from foretell.methods.predictddl.regressors import FORMS
from foretell.methods.protocol import JOB_TIME, STEP_TIME, Example, Method, Query

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results" / "predictddl.json"
PICTURE = HERE.parent / "docs" / "accuracy" / "methods" / "predictddl.svg"
H200 = HERE / "data" / "h200"
FOLDS = 5
Floats = npt.NDArray[np.float64]
Group = Callable[[Query], str]
Said = dict[str, Floats]
Judged = dict[str, list[dict[str, float]]]  # method → a fold: form → its error on networks held back in training


KINDS: dict[str, dict[str, Any]] = {
    "PredictDDL": {},
    "PredictDDL, hypernetwork untrained": {"trained": False},
    "PredictDDL, hypernetwork of pictures": {"weights": PICTURES},
    "PredictDDL, no embedding": {"reads": "work"},
    "PredictDDL, embedding only": {"reads": "embedding"},
    "PredictDDL, embedding only, hypernetwork untrained": {"reads": "embedding", "trained": False},
    "PredictDDL, embedding only, hypernetwork of pictures": {"reads": "embedding", "weights": PICTURES},
}
METHODS = (*KINDS, "nearest network", "variant", "Foretell")
REUSED = "Ernest, reused with no run"
SCRIPTS = {"box": "box_models.py", "box-cnns": "box_cnn_models.py"}  # part → whose networks it runs
TAUGHT = "Foretell, taught by the same rows"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Networks left out.


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
class Asked:
    """What all tasks share; `whole` are the same rows with all that was measured, for Foretell, which makes jobs of steps."""

    examples: Sequence[Example]
    whole: Sequence[Example]
    target: str


@dataclass(frozen=True, slots=True)
class Told:
    """Answers by name; and for each form the error on networks held back in training."""

    answers: Said
    validated: dict[str, float]


def left_out(
    examples: Sequence[Example], group: Group, target: str, options: argparse.Namespace, whole: Sequence[Example] = ()
) -> tuple[Said, Judged]:
    """What methods say of every row, fitted on the other groups, and how validation judged each form in each fold."""
    predicted: Said = defaultdict(lambda: np.full(len(examples), np.nan))
    judged: Judged = defaultdict(list)
    there = [n for n in options.methods if n not in KINDS or KINDS[n].get("weights", HERE).exists()]
    tasks = [Task(n, f, tuple(rows)) for f, rows in enumerate(folds(examples, group)) for n in there]
    asked = Asked(examples, whole or examples, target)
    for task, told in each(tell, asked, tasks, options.workers):
        for name, answers in told.answers.items():
            predicted[name][list(task.rows)] = answers
        if told.validated:
            judged[task.method].append(told.validated)
        least = f"; validation: {min(told.validated.values()):.1%}" if told.validated else ""
        say(f"{task.method}, fold {task.fold + 1}: {len(task.rows)} rows{least}")
    forms = [f"PredictDDL, {form} alone" for form in FORMS]
    order = ["PredictDDL", *forms, *KINDS, *predicted]
    return {name: predicted[name] for name in dict.fromkeys(order) if name in predicted}, dict(judged)


def tell(asked: Asked, task: Task) -> Told:
    held_out, target = set(task.rows), asked.target
    seen = [e for i, e in enumerate(asked.examples) if i not in held_out]
    queries = [asked.examples[i].query for i in task.rows]

    def said(method: Method) -> Floats:
        return np.array([p.values.get(target, np.nan) for p in method.predict(queries)])

    if task.method == "nearest network":
        return Told({task.method: said(NearestNetwork().fit(seen))}, {})
    if task.method == "variant":
        variant = PredictDDLOperators().fit(seen)
        return Told({variant.name: said(variant)}, {})
    if task.method == "Foretell":
        return Told({TAUGHT: said(Foretell().fit([e for i, e in enumerate(asked.whole) if i not in held_out]))}, {})
    answers, validated = {}, {}
    for form in FORMS:
        method = PredictDDL(forms=(form,), **KINDS[task.method]).fit(seen)
        by_type = [p.regressors[target].validated for p in method.checker_.at_hand.values()]
        validated[form], answers[form] = float(np.mean(by_type)), said(method)
    best = min(validated, key=lambda form: validated[form])  # as one with all forms would choose
    alone = {f"PredictDDL, {form} alone": own for form, own in answers.items()} if task.method == "PredictDDL" else {}
    return Told({task.method: answers[best], **alone}, validated)


def forecasts(examples: Sequence[Example], times: Callable[[Example], float]) -> Floats:
    """Foretell's own, which has seen none of these rows."""
    predicted = []
    for e in examples:
        try:
            assert e.query.graph is not None
            predicted.append(forecast(e.query.graph, e.query.cluster, e.query.plan).step_time.seconds * times(e))
        except ForetellError as error:
            say(f"{e.query.architecture}: {error}")
            predicted.append(np.nan)
    return np.array(predicted)


# Ernest: runs of the workload itself, and one fit for each.


def ernest(examples: Sequence[Example], workload: Callable[[Query], object], sampled: Callable[[Example], bool],
           target: str) -> tuple[Floats, dict[str, float]]:  # fmt: skip
    """What Ernest says of rows it did not sample, what its runs cost, and how long fitting and answering take."""
    predicted = np.full(len(examples), np.nan)
    spent: dict[str, float] = defaultdict(float)
    by_workload = defaultdict(list)
    for row, e in enumerate(examples):
        by_workload[workload(e.query)].append(row)
    for rows in by_workload.values():
        runs = [alike(examples[i]) for i in rows if sampled(examples[i])]
        asked = [i for i in rows if not sampled(examples[i])]
        if not runs or not asked:
            continue
        begin = time.process_time()
        method = Ernest().fit(runs)
        fitted = time.process_time()
        answers = method.predict([alike(examples[i]).query for i in asked])
        spent["fit"] += fitted - begin
        spent["predict"] += time.process_time() - fitted
        spent["measuring"] += sum(e.cost for e in runs)
        spent["runs"] += len(runs)
        spent["workloads"] += 1
        spent["answers"] += len(asked)
        predicted[asked] = [p.values.get(target, np.nan) for p in answers]
    return predicted, dict(spent)


def alike(example: Example) -> Example:
    """The same run without what tells workloads apart: here they are told apart before Ernest sees them."""
    return replace(example, query=replace(example.query, architecture="", settings={}))


def pooled_ernest(examples: Sequence[Example], group: Group, setting: Callable[[Query], object], target: str,
                  count: int = FOLDS) -> Floats:  # fmt: skip
    """Ernest reused for networks nobody ran: it sees no network, so it says of each what the others took together."""
    predicted = np.full(len(examples), np.nan)
    for rows in folds(examples, group, count):
        held_out = set(rows)
        for kind in {setting(examples[i].query) for i in rows}:
            seen = [e for i, e in enumerate(examples) if i not in held_out and setting(e.query) == kind]
            asked = [i for i in rows if setting(examples[i].query) == kind]
            method = Ernest().fit([alike(e) for e in seen])
            answers = method.predict([alike(examples[i]).query for i in asked])
            predicted[asked] = [p.values.get(target, np.nan) for p in answers]
    return predicted


# Figures.


def errors(
    predicted: Mapping[str, Floats], examples: Sequence[Example], target: str, rows: Sequence[int]
) -> dict[str, Any]:
    found = {}
    for name, values in predicted.items():
        kept = [i for i in rows if np.isfinite(values[i])]
        if kept:
            e = Errors.of([values[i] for i in kept], [examples[i].measured[target] for i in kept])
            found[name] = {"mean": e.mean, "median": e.median, "p90": e.p90, "rmse": e.rmse, "rows": e.count}
    return found


def show(title: str, table: Mapping[str, Mapping[str, float]]) -> None:
    print(f"\n{title}")
    for name, e in table.items():
        print(
            f"  {name:38s} mean {e['mean']:7.1%}  median {e['median']:7.1%}  p90 {e['p90']:7.1%}  {e['rows']:4.0f} rows"
        )


def timing(part: str, examples: Sequence[Example], options: argparse.Namespace, most: int = 6) -> dict[str, float]:
    """Seconds to answer: to capture a network nobody has seen, to read and embed its graph, to infer; medians over networks.

    Foretell's, beside: from the same graph to its forecast. Seconds are of a processor.
    """
    if options.untimed:
        found: dict[str, float] = results().get(part, {}).get("timing", {})
        return found
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
        take("forecast", partial(forecast, fresh[2], q.cluster, q.plan))
    return {name: float(np.median(values)) for name, values in spent.items()} | {"networks": len(chosen)}


def processor_seconds() -> float:
    """Of this process and those it waited for: a capture works in one of its own."""
    return sum(os.times()[:4])


def capture_again(part: str, query: Query) -> None:
    """From a SOURCE to its graph, nothing kept of an earlier one: what a new network costs before it can be read."""
    assert query.graph is not None
    source, settings = query.architecture, {"batch": str(query.graph.samples or 1)}
    if part in SCRIPTS:
        settings["name"], source = source.removeprefix("box/"), f"{HERE / 'scripts' / SCRIPTS[part]}:network"
    capture_graph(source, settings, cache=False)


def rows_of(examples: Sequence[Example], target: str) -> dict[str, Any]:
    return {"measured": [e.measured[target] for e in examples], "networks": [e.query.architecture for e in examples]}


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def kept(part: str, split: str, options: argparse.Namespace) -> Said:
    """What was predicted before, by methods that are not asked again."""
    if set(options.methods) >= set(METHODS):
        return {}
    predicted = results().get(part, {}).get(split, {}).get("said", {})
    return {name: np.array([np.nan if v is None else v for v in values]) for name, values in predicted.items()}


# The parts.


def part_digits(options: argparse.Namespace) -> dict[str, Any]:
    from foretell_bench.research.ghn.hypernetwork import Hypernetwork, load
    from foretell_bench.research.ghn.train import judge

    found, fresh = judge(load(), networks=200), judge(Hypernetwork(), networks=50)
    print(f"{found.networks} unseen networks on unseen digits: {found.generated:.1%} right with generated weights "
          f"({found.worst:.1%} to {found.best:.1%}), {fresh.generated:.1%} from an untrained hypernetwork, "
          f"{found.random:.1%} with random weights; chance is 10 %")  # fmt: skip
    return {"generated": found.generated, "worst": found.worst, "best": found.best, "random": found.random,
            "untrained": fresh.generated, "networks": found.networks}  # fmt: skip


CNN_FAMILIES = (
    "densenet",
    "mnasnet",
    "mobilenet",
    "resnext",
    "shufflenet",
    "squeezenet",
    "vgg",
    "wide_resnet",
    "resnet",
)


def cnn_family(query: Query) -> str:
    return next(f for f in CNN_FAMILIES if f in query.architecture)


def part_cnn(options: argparse.Namespace) -> dict[str, Any]:
    examples = sources.cnn_many_gpus(options.data, say, precisions=options.precisions).items
    found = asked_of("cnn", examples, STEP_TIME, options, cnn_family)

    def setting(query: Query) -> object:
        return query.cluster.nodes[0].device.name, query.settings["precision"]

    def workload(query: Query) -> object:
        return query.architecture, setting(query)

    add(found, "unseen architectures", {REUSED: pooled_ernest(examples, lambda q: q.architecture, setting, STEP_TIME)},
        examples, STEP_TIME)  # fmt: skip
    found["ernest"], predicted = {}, found["unseen architectures"]["said"]
    for counts in ((1, 2), (1, 4), (1, 2, 3)):
        fitted, spent = ernest(examples, workload, lambda e, c=counts: e.query.cluster.devices in c, STEP_TIME)
        rows = [i for i in range(len(examples)) if np.isfinite(fitted[i])]
        key = "+".join(map(str, counts))
        table = errors(predicted | {f"Ernest, runs on {key} GPUs": fitted}, examples, STEP_TIME, rows)
        found["ernest"][key] = {"errors": table, "spent": spent}
        show(f"cnn_many_gpus, the rows Ernest did not sample (runs on {key} GPUs)", table)
        tell_spent(spent, found["timing"])
    return found


def asked_of(part: str, examples: Sequence[Example], target: str, options: argparse.Namespace, family: Group | None = None,
             whole: Sequence[Example] = (), times: Callable[[Example], float] | None = lambda e: 1.0) -> dict[str, Any]:  # fmt: skip
    """What all methods say of networks, and of families, that were left out; `times` makes what is asked of a step."""
    found: dict[str, Any] = {"timing": timing(part, examples, options), **rows_of(examples, target)}
    ours = {"Foretell": forecasts(examples, times)} if times and "Foretell" in options.methods else {}
    for split, group in (("unseen architectures", architecture), ("unseen families", family)):
        if group is None:
            continue
        predicted, judged = left_out(examples, group, target, options, whole)
        found[split] = {"validated": results().get(part, {}).get(split, {}).get("validated", {}) | judged}
        add(found, split, kept(part, split, options) | predicted | ours, examples, target)
    found["validated"] = found["unseen architectures"]["validated"].get("PredictDDL", [])
    return found


def add(found: dict[str, Any], split: str, said: Said, examples: Sequence[Example], target: str) -> None:
    """Answers to those there are, and their errors."""
    every = found[split].setdefault("said", {}) | said
    found[split] |= {"said": every, "errors": errors(every, examples, target, range(len(examples)))}
    show(f"{split}, {len({e.query.architecture for e in examples})} networks", found[split]["errors"])


def tell_spent(spent: Mapping[str, float], timed: Mapping[str, float]) -> None:
    if not timed:
        return
    each = (spent["measuring"] + spent["fit"] + spent["predict"]) / spent["workloads"]
    print(f"  Ernest: {spent['runs']:.0f} runs of {spent['workloads']:.0f} workloads took {spent['measuring']:.0f} s; "
          f"{1e3 * spent['fit'] / spent['workloads']:.2f} ms to fit, {1e3 * spent['predict'] / spent['answers']:.3f} ms to "
          f"answer; {each:.1f} s from a new workload to its answers. PredictDDL: {1e3 * timed['predict']:.0f} ms from a graph, "
          f"{each / timed['predict']:.0f} times less")  # fmt: skip


def part_timm(options: argparse.Namespace) -> dict[str, Any]:
    return asked_of("timm", sources.timm_train(options.data, say, options.architectures).items, STEP_TIME, options)


def part_h200(options: argparse.Namespace) -> dict[str, Any]:
    """Steps of images on the project's own device; Foretell's shipped model has seen them, so it is not asked."""
    examples = [replace(e, measured={STEP_TIME: e.measured[STEP_TIME]}, ops=())
                for e in sources.h200_steps(H200, say, options.steps).items if e.query.dataset == "images"]  # fmt: skip
    which = [name for name in options.methods if name != "Foretell"]
    return asked_of("h200", examples, STEP_TIME, argparse.Namespace(**vars(options) | {"methods": which}), times=None)


def part_box(options: argparse.Namespace) -> dict[str, Any]:
    cheap = {(0.25, 2), (0.25, 3), (0.25, 4), (0.5, 2), (0.5, 4)}  # small parts of the data, as Ernest samples
    return jobs("box", options, cheap)


def part_cnns(options: argparse.Namespace) -> dict[str, Any]:
    """Jobs of many CNNs, all on pictures of one size: what PredictDDL is made for."""
    cheap = {(0.25, 1), (0.25, 2), (0.25, 4), (0.5, 1), (0.5, 2)}
    return jobs("box-cnns", options, cheap, lambda q: q.architecture.removeprefix("box/").partition("-")[0])


def jobs(
    part: str, options: argparse.Namespace, cheap: set[tuple[float, int]], family: Group | None = None
) -> dict[str, Any]:
    """Whole jobs of data-parallel workers: what Ernest is made for, data and workers both vary."""
    whole = [e for e in box_runs(HERE / "data" / part, say).items if not e.query.plan.servers]
    examples = [replace(e, measured={JOB_TIME: e.measured[JOB_TIME]}) for e in whole]
    found = asked_of(part, examples, JOB_TIME, options, family, whole, lambda e: float(e.query.settings["steps"]))

    def setting(query: Query) -> object:
        return query.settings["rate"]

    def workload(query: Query) -> object:
        return query.architecture, query.batch / query.plan.dp, setting(query)

    add(
        found,
        "unseen architectures",
        {REUSED: pooled_ernest(examples, architecture, setting, JOB_TIME)},
        examples,
        JOB_TIME,
    )
    sizes = defaultdict(set)
    for e in examples:
        sizes[workload(e.query)].add((e.query.fraction, e.query.plan.dp))

    def sampled(e: Example) -> bool:
        return (e.query.fraction, e.query.plan.dp) in cheap and cheap < sizes[workload(e.query)]

    fitted, spent = ernest(examples, workload, sampled, JOB_TIME)
    rows = [i for i in range(len(examples)) if np.isfinite(fitted[i])]
    if rows:
        said = found["unseen architectures"]["said"] | {"Ernest, five runs of each": fitted}
        table = errors(said, examples, JOB_TIME, rows)
        found["ernest"] = {"errors": table, "spent": spent}
        show(f"{part}, the jobs Ernest did not sample", table)
        tell_spent(spent, found["timing"])
    return found


PARTS = {"digits": part_digits, "cnn": part_cnn, "timm": part_timm, "h200": part_h200, "box": part_box,
         "box-cnns": part_cnns}  # fmt: skip


def draw() -> None:
    found = results()
    drawn = []
    for part in [p for p in PARTS if "unseen architectures" in found.get(p, {})]:
        predicted = found[part]["unseen architectures"]["said"]["PredictDDL"]
        drawn += list(zip(found[part]["measured"], predicted, found[part]["networks"], strict=True))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(scatter(drawn, "PredictDDL on unseen networks, predicted over measured"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "shared" / "data")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--methods", nargs="*", choices=METHODS, default=METHODS, help="ask these again, keep the others"
    )
    parser.add_argument("--architectures", type=int, default=80, help="of timm")
    parser.add_argument("--steps", type=int, default=300, help="of the H200 store, evenly over its networks")
    parser.add_argument("--precisions", nargs="*", default=("fp16", "fp32"), help="of cnn_many_gpus")
    parser.add_argument("--workers", type=int, default=1, help="processes that fit")
    parser.add_argument("--untimed", action="store_true", help="keep the times to an answer that are there")
    parser.add_argument("--picture", action="store_true")
    options = parser.parse_args()
    if options.picture:
        draw()
        return
    for name in [options.only] if options.only else PARTS:
        found = PARTS[name](options)
        RESULTS.write_text(json.dumps(results() | {name: _short(found)}, separators=(",", ":")) + "\n")


def _short(value: Any) -> Any:
    """Four digits are enough; what was not predicted is null."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return (
        [_short(float(v) if isinstance(v, np.floating) else v) for v in value]
        if isinstance(value, list | tuple | np.ndarray)
        else value
    )


if __name__ == "__main__":
    main()
