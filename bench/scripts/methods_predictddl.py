"""After PredictDDL on networks it has not seen, beside Ernest, which is fitted anew for each, and Foretell's forecasts.

    python bench/scripts/methods_predictddl.py --data FOLDER [--only digits|cnn|timm|h200|box] [--architectures 80]
    python bench/scripts/methods_predictddl.py --picture

Prints its figures and writes bench/results/predictddl.json, a part at a time. FOLDER holds the public measurements
(docs/internals/data.md); --picture draws docs/accuracy/methods/predictddl.svg from the results. A fifth of the
networks, or of the families, is left out at a time. Every figure is of rows whose network the method never saw, but for
Ernest, which sees its own sampled runs of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from foretell_bench.errors import Errors
from foretell_bench.methods.ours import Foretell
from foretell_bench.methods.predictddl_operators import PredictDDLOperators
from foretell_bench.pages.accuracy import scatter
from foretell_bench.sources import examples as sources
from foretell_bench.sources.box import box_runs

from foretell.errors import ForetellError
from foretell.forecasting.assemble import forecast
from foretell.graph import Graph
from foretell.methods.ernest import Ernest
from foretell.methods.predictddl.method import Embedder, PredictDDL
from foretell.methods.predictddl.regressors import FORMS
from foretell.methods.protocol import JOB_TIME, STEP_TIME, Example, Query

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results" / "predictddl.json"
PICTURE = HERE.parent / "docs" / "accuracy" / "methods" / "predictddl.svg"
BOX = HERE / "data" / "box"
H200 = HERE / "data" / "h200"
FOLDS = 5
Floats = npt.NDArray[np.float64]
Group = Callable[[Query], str]
Said = dict[str, Floats]


class Blind(Embedder):
    """Says the same of every network."""

    __slots__ = ()

    def embed(self, graphs: Sequence[Graph]) -> list[Floats]:
        return [np.zeros(1) for _ in graphs]


def untrained() -> Embedder:
    """The hypernetwork as its training begins."""
    import torch
    from foretell_bench.research.ghn.hypernetwork import Hypernetwork

    torch.manual_seed(0)
    embedder = Embedder()
    embedder._encoder = Hypernetwork().encoder.eval()
    return embedder


SHIPPED = Embedder()
EMBEDDED: dict[str, Callable[[], Embedder]] = {
    "PredictDDL": lambda: SHIPPED,
    "PredictDDL, hypernetwork untrained": untrained,
    "PredictDDL, no embedding": Blind,
}
METHODS = (*EMBEDDED, "variant", "Foretell")
TAUGHT = "Foretell, taught by the same rows"
FORMS_JUDGED: list[dict[str, float]] = []  # a fold: form → its error on networks held back in training


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Networks left out.


def folds(examples: Sequence[Example], group: Group, count: int = FOLDS) -> list[list[int]]:
    """Rows by fold; a group is in one fold. Groups are dealt out in the order of their names, so that siblings part."""
    groups = sorted({group(e.query) for e in examples})
    fold = {name: i % min(count, len(groups)) for i, name in enumerate(groups)}
    found = defaultdict(list)
    for row, e in enumerate(examples):
        found[fold[group(e.query)]].append(row)
    return list(found.values())


def left_out(examples: Sequence[Example], group: Group, target: str, which: Sequence[str], count: int = FOLDS,
             whole: Sequence[Example] = ()) -> Said:  # fmt: skip
    """What methods say of every row, fitted on the other groups. `which` are names of METHODS.

    `whole` are the same rows with all that was measured, for Foretell, which makes jobs of steps. How validation judged
    each form of PredictDDL in each fold is left in FORMS_JUDGED.
    """
    FORMS_JUDGED.clear()
    predicted: dict[str, Floats] = defaultdict(lambda: np.full(len(examples), np.nan))
    embedders = {name: make() for name, make in EMBEDDED.items() if name in which}
    for number, rows in enumerate(folds(examples, group, count)):
        held_out = set(rows)
        seen, asked = [e for i, e in enumerate(examples) if i not in held_out], [examples[i].query for i in rows]
        for name, embedder in embedders.items():
            by_form = {form: _answers(PredictDDL(forms=(form,)), embedder, seen, asked, target) for form in FORMS}
            best = min(by_form, key=lambda form: by_form[form][0])  # as one with all forms would choose
            predicted[name][rows] = by_form[best][1]
            if name == "PredictDDL":
                FORMS_JUDGED.append({form: error for form, (error, _) in by_form.items()})
                for form, (_, answers) in by_form.items():
                    predicted[f"PredictDDL, {form} alone"][rows] = answers
        if "variant" in which:
            variant = PredictDDLOperators().fit(seen)
            predicted[variant.name][rows] = [p.values.get(target, np.nan) for p in variant.predict(asked)]
        if "Foretell" in which:
            ours = Foretell().fit([e for i, e in enumerate(whole or examples) if i not in held_out])
            predicted[TAUGHT][rows] = [p.values.get(target, np.nan) for p in ours.predict(asked)]
        judged = (
            ", ".join(f"{form} {error:.1%}" for form, error in FORMS_JUDGED[-1].items())
            if FORMS_JUDGED
            else "not asked"
        )
        say(
            f"fold {number + 1}: {len(rows)} rows of {len({q.architecture for q in asked})} networks; validation: {judged}"
        )
    return dict(predicted)


def _answers(method: PredictDDL, embedder: Embedder, seen: Sequence[Example], asked: Sequence[Query],
             target: str) -> tuple[float, Floats]:  # fmt: skip
    """Its validation error, and what it says."""
    method.embedder = embedder
    method.fit(seen)
    errors = [p.regressors[target].validated for p in method.checker_.at_hand.values()]
    return float(np.mean(errors)), np.array([p.values.get(target, np.nan) for p in method.predict(asked)])


def forecasts(examples: Sequence[Example], times: Callable[[Example], float] = lambda e: 1.0) -> Floats:
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


def timing(part: str, examples: Sequence[Example], which: Sequence[str], most: int = 10) -> dict[str, float]:
    """Seconds of a processor to answer from a captured graph, and of that to read and embed it; medians over networks."""
    if "PredictDDL" not in which:
        found: dict[str, float] = results().get(part, {}).get("timing", {})
        return found
    different = list({e.query.architecture: e for e in examples}.values())
    chosen = different[:: max(1, len(different) // most)]
    method = PredictDDL(forms=("linear", "polynomial"))
    method.embedder = SHIPPED
    method.fit(examples)
    method.predict([chosen[0].query])
    embed, whole, captured = [], [], []
    for e in chosen:
        assert e.query.graph is not None
        if "/" in e.query.architecture and not e.query.architecture.startswith("box/"):
            captured.append(capture_seconds(e.query))
        fresh, again = replace(e.query.graph), replace(e.query, graph=replace(e.query.graph))  # nothing read yet
        begin = time.process_time()
        method.embedder.embed([fresh])
        embed.append(time.process_time() - begin)
        begin = time.process_time()
        method.predict([again])
        whole.append(time.process_time() - begin)
    capture = {"capture": float(np.median(captured))} if captured else {}
    return {"embed": float(np.median(embed)), "predict": float(np.median(whole)), "networks": len(chosen)} | capture


def capture_seconds(query: Query) -> float:
    """From a SOURCE to its graph, nothing kept of an earlier one: what a new network costs before it can be read.

    It is the time that passes: the capture works in a process of its own.
    """
    from foretell import capture_graph

    assert query.graph is not None
    begin = time.monotonic()
    capture_graph(query.architecture, {"batch": str(query.graph.samples or 1)}, cache=False)
    return time.monotonic() - begin


def rows_of(examples: Sequence[Example], target: str) -> dict[str, Any]:
    return {"measured": [e.measured[target] for e in examples], "networks": [e.query.architecture for e in examples]}


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def kept(part: str, split: str) -> Said:
    """What was predicted before, by methods that are not asked again."""
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
    predicted = kept("cnn", "unseen architectures") | left_out(
        examples, lambda q: q.architecture, STEP_TIME, options.methods
    )
    judged = list(FORMS_JUDGED)
    by_family = kept("cnn", "unseen families") | left_out(examples, cnn_family, STEP_TIME, options.methods)
    if "Foretell" in options.methods:
        predicted["Foretell"] = by_family["Foretell"] = forecasts(examples)

    def setting(query: Query) -> object:
        return query.cluster.nodes[0].device.name, query.settings["precision"]

    def workload(query: Query) -> object:
        return query.architecture, setting(query)

    predicted["Ernest, reused with no run"] = pooled_ernest(examples, lambda q: q.architecture, setting, STEP_TIME)
    found: dict[str, Any] = {"timing": timing("cnn", examples, options.methods), "ernest": {}, "validated": judged}
    all_rows = range(len(examples))
    for split, table in (("unseen architectures", predicted), ("unseen families", by_family)):
        found[split] = {"errors": errors(table, examples, STEP_TIME, all_rows), "said": table}
        show(f"cnn_many_gpus, {split}", found[split]["errors"])
    for counts in ((1, 2), (1, 4), (1, 2, 3)):
        fitted, spent = ernest(examples, workload, lambda e, c=counts: e.query.cluster.devices in c, STEP_TIME)
        rows = [i for i in all_rows if np.isfinite(fitted[i])]
        key = "+".join(map(str, counts))
        table = errors(predicted | {f"Ernest, runs on {key} GPUs": fitted}, examples, STEP_TIME, rows)
        found["ernest"][key] = {"errors": table, "spent": spent}
        show(f"cnn_many_gpus, the rows Ernest did not sample (runs on {key} GPUs)", table)
        tell_spent(spent, found["timing"])
    return found | rows_of(examples, STEP_TIME)


def tell_spent(spent: Mapping[str, float], timed: Mapping[str, float]) -> None:
    if not timed:
        return
    each = (spent["measuring"] + spent["fit"] + spent["predict"]) / spent["workloads"]
    print(f"  Ernest: {spent['runs']:.0f} runs of {spent['workloads']:.0f} workloads took {spent['measuring']:.0f} s; "
          f"{1e3 * spent['fit'] / spent['workloads']:.2f} ms to fit, {1e3 * spent['predict'] / spent['answers']:.3f} ms to "
          f"answer; {each:.1f} s from a new workload to its answers. PredictDDL: {1e3 * timed['predict']:.0f} ms from a graph, "
          f"{each / timed['predict']:.0f} times less")  # fmt: skip


def part_timm(options: argparse.Namespace) -> dict[str, Any]:
    examples = sources.timm_train(options.data, say, options.architectures).items
    predicted = kept("timm", "unseen architectures") | left_out(
        examples, lambda q: q.architecture, STEP_TIME, options.methods
    )
    if "Foretell" in options.methods:
        predicted["Foretell"] = forecasts(examples)
    table = errors(predicted, examples, STEP_TIME, range(len(examples)))
    show(f"timm_train, unseen architectures, {len({e.query.architecture for e in examples})} of them", table)
    return {
        "unseen architectures": {"errors": table, "said": predicted},
        "validated": list(FORMS_JUDGED),
        "timing": timing("timm", examples, options.methods),
    } | rows_of(examples, STEP_TIME)


def part_h200(options: argparse.Namespace) -> dict[str, Any]:
    """Steps of images on the project's own device; Foretell's shipped model has seen them, so it is not asked."""
    examples = [replace(e, measured={STEP_TIME: e.measured[STEP_TIME]}, ops=())
                for e in sources.h200_steps(H200, say, options.steps).items if e.query.dataset == "images"]  # fmt: skip
    which = [name for name in options.methods if name != "Foretell"]
    predicted = kept("h200", "unseen architectures") | left_out(examples, lambda q: q.architecture, STEP_TIME, which)
    table = errors(predicted, examples, STEP_TIME, range(len(examples)))
    show(f"H200, unseen architectures, {len({e.query.architecture for e in examples})} of them", table)
    return {"unseen architectures": {"errors": table, "said": predicted}, "validated": list(FORMS_JUDGED)} | rows_of(
        examples, STEP_TIME
    )


def part_box(options: argparse.Namespace) -> dict[str, Any]:
    """Whole jobs of data-parallel workers: what Ernest is made for, data and hosts both vary."""
    whole = [e for e in box_runs(BOX, say).items if not e.query.plan.servers]
    examples = [replace(e, measured={JOB_TIME: e.measured[JOB_TIME]}) for e in whole]
    predicted = kept("box", "unseen architectures") | left_out(
        examples, lambda q: q.architecture, JOB_TIME, options.methods, whole=whole
    )
    if "Foretell" in options.methods:
        predicted["Foretell"] = forecasts(examples, lambda e: float(e.query.settings["steps"]))

    def setting(query: Query) -> object:
        return query.settings["rate"]

    def workload(query: Query) -> object:
        return query.architecture, query.batch / query.plan.dp, setting(query)

    predicted["Ernest, reused with no run"] = pooled_ernest(examples, lambda q: q.architecture, setting, JOB_TIME)
    found: dict[str, Any] = {"timing": timing("box", examples, options.methods), "validated": list(FORMS_JUDGED)}
    table = errors(predicted, examples, JOB_TIME, range(len(examples)))
    found["unseen architectures"] = {"errors": table, "said": predicted}
    show("hosts in a box, whole jobs, unseen architectures", table)
    sizes = defaultdict(set)
    for e in examples:
        sizes[workload(e.query)].add((e.query.fraction, e.query.plan.dp))
    cheap = {(0.25, 2), (0.25, 3), (0.25, 4), (0.5, 2), (0.5, 4)}  # small parts of the data, as Ernest samples

    def sampled(e: Example) -> bool:
        return (e.query.fraction, e.query.plan.dp) in cheap and cheap < sizes[workload(e.query)]

    fitted, spent = ernest(examples, workload, sampled, JOB_TIME)
    rows = [i for i in range(len(examples)) if np.isfinite(fitted[i])]
    if rows:
        table = errors(predicted | {"Ernest, five runs of each": fitted}, examples, JOB_TIME, rows)
        found["ernest"] = {"errors": table, "spent": spent}
        show("hosts in a box, the jobs Ernest did not sample", table)
        tell_spent(spent, found["timing"])
    return found | rows_of(examples, JOB_TIME)


PARTS = {"digits": part_digits, "cnn": part_cnn, "timm": part_timm, "h200": part_h200, "box": part_box}


def draw() -> None:
    found = results()
    drawn = []
    for part in [p for p in ("cnn", "timm", "h200", "box") if p in found]:
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
