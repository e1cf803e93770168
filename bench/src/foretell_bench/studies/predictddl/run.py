"""The study of PredictDDL on networks it has not seen, with Ernest, which is fitted anew for each, and Foretell's forecasts.

A fifth of the networks, or of the families, is left out at a time. Every figure is of rows whose network the method never
saw, but for Ernest, which sees its own sampled runs of it. Results are kept a part at a time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.methods.protocol import JOB_TIME, STEP_TIME, Example, Query
from foretell_bench.sources import examples as sources
from foretell_bench.sources.emulated import host_jobs
from foretell_bench.studies.predictddl.fits import (
    METHODS,
    Group,
    Predictions,
    Rows,
    Say,
    architecture,
    ernest,
    forecasts,
    left_out,
    pooled_ernest,
    timing,
)
from foretell_bench.studies.predictddl.report import errors, predictions, show, show_spent

REUSED: Final = "Ernest, reused with no run"
CNN_FAMILIES: Final = tuple(
    "densenet mnasnet mobilenet resnext shufflenet squeezenet vgg wide_resnet resnet".split()
)  # the last is a part of others' names


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data: Path  # public measurements
    stores: Path  # the project's own
    results: Path
    methods: Sequence[str] = METHODS  # fit these again, keep the others
    architectures: int = 80  # of timm
    steps: int = 300  # of the H200 store, evenly over its networks
    precisions: Sequence[str] = ("fp16", "fp32")  # of cnn_many_gpus
    workers: int = 1
    untimed: bool = False  # keep the seconds to an answer that are there
    say: Say

    def saved(self, part: str) -> dict[str, Any]:
        """What the results have of a part."""
        found: dict[str, Any] = read(self.results).get(part, {})
        return found

    def kept(self, part: str, split: str) -> Predictions:
        """What methods that are not fitted again predicted before."""
        if set(self.methods) >= set(METHODS):
            return {}
        before = predictions(self.saved(part).get(split, {})).items()
        return {name: np.array([np.nan if v is None else v for v in values]) for name, values in before}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def run(options: Options, parts: Sequence[str]) -> None:
    for name in parts:
        found = PARTS[name](options)
        text = json.dumps(read(options.results) | {name: short(found)}, separators=(",", ":"))
        options.results.write_text(text + "\n")


def short(value: Any) -> Any:
    """Four digits are enough; what was not predicted is null."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return [short(v) for v in value] if isinstance(value, list | tuple | np.ndarray) else value


# Every part.


def compare(
    part: str, rows: Rows, options: Options, family: Group | None = None,
    times: Callable[[Example], float] | None = lambda e: 1.0,
) -> dict[str, Any]:  # fmt: skip
    """What all methods predict of networks, and of families, that were left out; `times` turns a step into the target."""
    examples, target, saved = rows.examples, rows.target, options.saved(part)
    found: dict[str, Any] = {
        "timing": saved.get("timing", {}) if options.untimed else timing(part, examples),
        "measured": [e.measured[target] for e in examples], "networks": [e.query.architecture for e in examples],
    }  # fmt: skip
    ours: Predictions = {}
    if times is not None and "Foretell" in options.methods:
        ours["Foretell"] = forecasts(examples, times, options.say)
    for split, group in (("unseen architectures", architecture), ("unseen families", family)):
        if group is None:
            continue
        predicted, validated = left_out(rows, group, options.methods, options.workers, options.say)
        found[split] = {"validated": saved.get(split, {}).get("validated", {}) | validated}
        add(found, split, options.kept(part, split) | predicted | ours, rows, options.say)
    found["validated"] = found["unseen architectures"]["validated"].get("PredictDDL", [])
    return found


def add(found: dict[str, Any], split: str, predicted: Predictions, rows: Rows, say: Say) -> None:
    """Predictions to those there are, and their errors."""
    every = found[split].get("predicted", {}) | predicted
    found[split] |= {"predicted": every, "errors": errors(every, rows.examples, rows.target)}
    show(f"{split}, {len({e.query.architecture for e in rows.examples})} networks", found[split]["errors"], say)


def compare_ernest(
    found: Mapping[str, Any], rows: Rows, workload: Callable[[Query], object], sampled: Callable[[Example], bool],
    title: str, say: Say,
) -> dict[str, Any]:  # fmt: skip
    """Errors of all methods on the rows that Ernest did not sample, and what it spent; nothing where there are none."""
    fitted, spent = ernest(rows.examples, workload, sampled, rows.target)
    if not np.isfinite(fitted).any():
        return {}
    others = found["unseen architectures"]["predicted"].items()
    predicted = {name: np.where(np.isfinite(fitted), values, np.nan) for name, values in others} | {title: fitted}
    table = errors(predicted, rows.examples, rows.target)
    show(f"the rows that were not sampled: {title}", table, say)
    show_spent(spent, found["timing"], say)
    return {"errors": table, "spent": spent}


# The parts.


def part_digits(options: Options) -> dict[str, Any]:
    """How good the weights are that the hypernetwork generates."""
    from foretell_bench.research.ghn.hypernetwork import Hypernetwork, load
    from foretell_bench.research.ghn.train import judge

    found, fresh = judge(load(), networks=200), judge(Hypernetwork(), networks=50)
    options.say(f"{found.networks} unseen networks on unseen digits: {found.generated:.1%} right with generated weights "
                f"({found.worst:.1%} to {found.best:.1%}), {fresh.generated:.1%} from an untrained hypernetwork, "
                f"{found.random:.1%} with random weights; chance is 10 %")  # fmt: skip
    return {"generated": found.generated, "worst": found.worst, "best": found.best, "random": found.random,
            "untrained": fresh.generated, "networks": found.networks}  # fmt: skip


def cnn_family(query: Query) -> str:
    return next(f for f in CNN_FAMILIES if f in query.architecture)


def part_cnn(options: Options) -> dict[str, Any]:
    examples = sources.cnn_many_gpus(options.data, options.say, precisions=options.precisions).items
    rows = Rows(examples, examples, STEP_TIME)
    found = compare("cnn", rows, options, cnn_family)

    def setting(query: Query) -> object:
        return query.cluster.nodes[0].device.name, query.settings["precision"]

    def workload(query: Query) -> object:
        return query.architecture, setting(query)

    reused = {REUSED: pooled_ernest(examples, architecture, setting, STEP_TIME)}
    add(found, "unseen architectures", reused, rows, options.say)
    found["ernest"] = {}
    for counts in ((1, 2), (1, 4), (1, 2, 3)):
        key = "+".join(map(str, counts))

        def sampled(e: Example, counts: Sequence[int] = counts) -> bool:
            return e.query.cluster.devices in counts

        title = f"Ernest, runs on {key} GPUs"
        found["ernest"][key] = compare_ernest(found, rows, workload, sampled, title, options.say)
    return found


def part_timm(options: Options) -> dict[str, Any]:
    examples = sources.timm_train(options.data, options.say, options.architectures).items
    return compare("timm", Rows(examples, examples, STEP_TIME), options)


def part_h200(options: Options) -> dict[str, Any]:
    """Steps of images on the project's own device; Foretell's shipped model has seen them, so it is left out."""
    steps = sources.h200_steps(options.stores / "h200", options.say, options.steps).items
    images = [e for e in steps if e.query.dataset == "images"]
    examples = [replace(e, measured={STEP_TIME: e.measured[STEP_TIME]}, ops=()) for e in images]
    options = replace(options, methods=[name for name in options.methods if name != "Foretell"])
    return compare("h200", Rows(examples, examples, STEP_TIME), options, times=None)


def part_hosts(options: Options) -> dict[str, Any]:
    cheap = {(0.25, 2), (0.25, 3), (0.25, 4), (0.5, 2), (0.5, 4)}  # small parts of the data, as Ernest samples
    return jobs("box", options, cheap)


def part_cnn_jobs(options: Options) -> dict[str, Any]:
    """Jobs of many CNNs, all on pictures of one size: what PredictDDL is made for."""
    cheap = {(0.25, 1), (0.25, 2), (0.25, 4), (0.5, 1), (0.5, 2)}
    return jobs("box-cnns", options, cheap, lambda q: q.architecture.removeprefix("box/").partition("-")[0])


def jobs(part: str, options: Options, cheap: set[tuple[float, int]], family: Group | None = None) -> dict[str, Any]:
    """Whole jobs of data-parallel workers: what Ernest is made for, data and workers both vary."""
    whole = [e for e in host_jobs(options.stores / part, options.say).items if not e.query.plan.servers]
    rows = Rows([replace(e, measured={JOB_TIME: e.measured[JOB_TIME]}) for e in whole], whole, JOB_TIME)
    found = compare(part, rows, options, family, lambda e: float(e.query.settings["steps"]))

    def setting(query: Query) -> object:
        return query.settings["rate"]

    def workload(query: Query) -> object:
        return query.architecture, query.batch / query.plan.dp, setting(query)

    reused = {REUSED: pooled_ernest(rows.examples, architecture, setting, JOB_TIME)}
    add(found, "unseen architectures", reused, rows, options.say)
    sizes = defaultdict(set)
    for e in rows.examples:
        sizes[workload(e.query)].add((e.query.fraction, e.query.plan.dp))

    def sampled(e: Example) -> bool:
        return (e.query.fraction, e.query.plan.dp) in cheap and cheap < sizes[workload(e.query)]

    if own := compare_ernest(found, rows, workload, sampled, "Ernest, five runs of each", options.say):
        found["ernest"] = own
    return found


PARTS: Final[Mapping[str, Callable[[Options], dict[str, Any]]]] = {
    "digits": part_digits,
    "cnn": part_cnn,
    "timm": part_timm,
    "h200": part_h200,
    "box": part_hosts,
    "box-cnns": part_cnn_jobs,
}
