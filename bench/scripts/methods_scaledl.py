"""After ScaleDL on the H200 dataset: beside additive models, its ablations, and Foretell on the same folds.

    foretell bench accuracy --data bench/data/h200 --split architecture --save architecture.json  # and --split batch
    python bench/scripts/methods_scaledl.py [STORE] --foretell architecture.json --foretell-batch batch.json --said said.json
    python bench/scripts/methods_scaledl.py --show

Architectures are left out whole, in the eight folds that `foretell bench accuracy --split architecture` uses; with the
batch split, the largest batch of every architecture; with --families, whole families too. Settings of both are chosen
once, seven variants each, on a fifth of the architectures that fold 0 trains on, and logged; fold 0 itself is not looked
at before. Foretell's forecasts are those of its settings as shipped, whatever its seven say. What measuring costs is what
it took. Parts of the method are taken away in fold 0 and the batch split alone. What is in the file of --said is not
fitted again. Writes results/scaledl.json and, from it alone, the chart of docs/accuracy/methods/scaledl.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from foretell_bench.methods.plainer import additive, additive_layers, flop_linear, roofline

from foretell.design.design import design
from foretell.design.information import BUILDING, RUNS_BESIDE, Candidate, OpSet, op_set_of
from foretell.hardware import Cluster
from foretell.hardware import device as known_device
from foretell.measure.record import Point
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Query
from foretell.methods.scaledl.layers import LayerSettings
from foretell.methods.scaledl.method import Page, ScaleDL, read
from foretell.methods.scaledl.network import NetworkSettings
from foretell.plans import Plan

HERE = Path(__file__).parents[1]
Array = npt.NDArray[Any]
TARGETS = {"device": DEVICE_TIME, "step": STEP_TIME}
FIVE = {"ResNet-50": "timm/resnet50", "VGG-16": "torchvision/vgg16", "BERT-base": "hf/bert-base", "GPT-2": "hf/gpt2",
        "ViT-B/16": "timm/vit_base_patch16_224"}  # fmt: skip
BUDGETS = (30.0, 60.0, 120.0)  # seconds of measuring
DRAWS = 3  # of random, at each budget
DESIGN_FOLDS = (0, 1, 2)
ABLATED: tuple[int | str, ...] = (0, "batch")  # what is left out where parts of the method are
LAYERS = {
    "width 96": LayerSettings(), "width 192": LayerSettings(width=192), "twice as long": LayerSettings(epochs=80),
}  # fmt: skip
NETWORKS = {  # with the parts whose layer times are predicted by models that saw the other parts; 1: by those that saw them
    "2 rounds": (NetworkSettings(), 5), "3 rounds": (NetworkSettings(rounds=3), 5),
    "twice as long": (NetworkSettings(epochs=50), 5), "layer times seen": (NetworkSettings(), 1),
}  # fmt: skip
FORETELL: dict[str, dict[str, float]] = {  # what is changed of the trees of Foretell's operators
    "as shipped": {}, "31 leaves": {"num_leaves": 31}, "95 leaves": {"num_leaves": 95}, "twice the trees": {"rounds": 900},
    "half the rate, twice the trees": {"learning_rate": 0.0225, "rounds": 900}, "all features": {"feature_fraction": 1.0},
    "20 rows a leaf": {"min_data_in_leaf": 20},
}  # fmt: skip


@dataclass(frozen=True)
class Data:
    """The steps that are predicted and the operators measured alone, read once."""

    pages: list[Page]  # of steps
    operators: list[Page]
    sources: list[str]
    names: list[str]  # of the records
    training: list[bool]
    costs: list[float]
    op_sets: list[OpSet]
    folds: list[int]
    largest: list[bool]  # of the batches of its architecture, where there are several
    families: list[str]

    def measured(self, what: str) -> Array:
        return np.array([p.measured[TARGETS[what]] for p in self.pages])


def load(path: Path) -> Data:
    """From a store: steps and operators with a time for each op."""
    from foretell_bench.research.groups import groups

    from foretell.learn.dataset import Measured, op_table
    from foretell.learn.fit import families_of
    from foretell.store.store import Store

    store = Store(path)
    steps = [s for s in store.steps("device = 'h200'") if s.outcome in ("ok", "nan-loss") and s.world_size == 1]
    h200 = known_device("h200")
    known = Measured(device=h200, steps=steps, graphs={}, ops=op_table([], h200))
    folds, largest = groups(known, "architecture", {}), groups(known, "batch", {})
    times = op_times(store)
    graphs = store.graphs({s.graph for s in steps if s.graph})
    rows = [(i, s) for i, s in enumerate(steps) if known.is_timed(i) or s.kind == "operators"]
    return collect(
        [(s, graphs[s.graph or ""], times[s.id]) for _, s in rows if s.id in times],
        {s.id: int(folds[i].split()[1]) for i, s in rows if i in folds}, {steps[i].id for i in largest}, families_of(store),
    )  # fmt: skip


def op_times(store: Any) -> dict[str, Array]:
    table = store.query("select step, device_seconds from ops order by step, op")
    ids, seconds = (table[c].to_numpy(zero_copy_only=False) for c in ("step", "device_seconds"))
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    return {ids[a]: seconds[a:b] for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)}


def collect(
    rows: Sequence[tuple[Any, Any, Array]], folds: dict[str, int], largest: set[str], families: dict[str, str]
) -> Data:
    """`rows`: a step's row of the store, its graph, the times of its ops."""
    data = Data([], [], [], [], [], [], [], [], [], [])
    cluster, plan = Cluster.parse("h200"), Plan()
    for s, graph, ops in rows:
        whole = {} if s.kind == "operators" else {DEVICE_TIME: s.device_seconds, STEP_TIME: s.step_seconds}
        query = Query(architecture=s.source, plan=plan, cluster=cluster, graph=graph)
        page = read(Example(query=query, measured=whole, ops=ops))
        if s.kind == "operators":
            data.operators.append(page)
            continue
        data.pages.append(page)
        data.sources.append(s.source)
        data.names.append(s.id)
        data.training.append(graph.training)
        data.costs.append(BUILDING["step"] + (s.repetitions + RUNS_BESIDE) * s.step_seconds)
        data.op_sets.append(op_set_of(graph))
        data.folds.append(folds[s.id])
        data.largest.append(s.id in largest)
        data.families.append(families.get(s.source, s.source))
    return data


# The experiment: tasks that know the data and run beside each other.

_data: Data | None = None
_measured: Any = None  # the same store, as Foretell's models learn from it


def the_data() -> Data:
    assert _data is not None
    return _data


def picked(where: Array) -> list[Page]:
    pages = the_data().pages
    return [pages[i] for i in np.flatnonzero(where)]


def predicted_by(method: ScaleDL, test: Sequence[Page]) -> dict[str, list[float]]:
    device, step = method.seconds([p.sheet for p in test])
    return {"device": device.tolist(), "step": step.tolist()}


def mre(predicted: Sequence[float], measured: Array) -> float:
    return float(np.abs(np.asarray(predicted) / measured - 1).mean())


def validation() -> tuple[Array, Array]:
    """Of fold 0's training steps: those to fit on, and a fifth of the architectures to choose by."""
    data = the_data()
    train = np.array(data.folds) != 0
    names = sorted({s for s, t in zip(data.sources, train, strict=True) if t})
    held_out = set(np.random.default_rng(7).permutation(names)[: len(names) // 5].tolist())
    away = np.array([s in held_out for s in data.sources])
    return train & ~away, train & away


def try_layers(name: str) -> tuple[str, float, float]:
    began = time.monotonic()
    fit, held_out = validation()
    method = ScaleDL(layers=LAYERS[name], network=NetworkSettings(rounds=0)).fit_pages(
        picked(fit) + the_data().operators
    )
    return (
        name,
        mre(predicted_by(method, picked(held_out))["device"], the_data().measured("device")[held_out]),
        time.monotonic() - began,
    )


def try_network(name: str, layers: str, on: str) -> tuple[str, float, float, float]:
    began = time.monotonic()
    fit, held_out = validation()
    settings, parts = NETWORKS[name]
    method = ScaleDL(layers=LAYERS[layers], network=replace(settings, trains_on=on), parts=parts)
    predicted = predicted_by(method.fit_pages(picked(fit) + the_data().operators), picked(held_out))
    device, step = (mre(predicted[w], the_data().measured(w)[held_out]) for w in TARGETS)
    return name, device, step, time.monotonic() - began


def left_out(which: int | str) -> Array:
    """Of a fold of architectures, of the largest batches, or of a family."""
    data = the_data()
    if which == "batch":
        return np.array(data.largest)
    return np.array(data.folds if isinstance(which, int) else data.families) == which


def fold(which: int | str, layers: str, network: str, on: str) -> dict[str, Any]:
    """The method and what is quick: method → target → what was predicted of the steps left out."""
    away = left_out(which)
    train, test = picked(~away), picked(away)
    operators = the_data().operators
    settings, parts = NETWORKS[network]
    settings = replace(settings, trains_on=on)
    began = time.monotonic()
    method = ScaleDL(layers=LAYERS[layers], network=settings, parts=parts).fit_pages(train + operators)
    spent = {"fit": time.monotonic() - began}
    began = time.monotonic()
    predicted = {"after ScaleDL": predicted_by(method, test)}
    spent["predict"] = (time.monotonic() - began) / len(test)
    plain = ScaleDL(layers=LAYERS[layers], network=replace(settings, rounds=0))
    plain.layer_models_ = method.layer_models_
    predicted["without the network"] = predicted_by(plain.with_layers(train), test)
    predicted["additive, on layers"] = dict.fromkeys(TARGETS, additive_layers(train, operators, test).tolist())
    predicted["additive, on steps"] = {w: additive(train, test, t).tolist() for w, t in TARGETS.items()}
    predicted["FLOP-linear"] = {w: flop_linear(train, test, t).tolist() for w, t in TARGETS.items()}
    predicted["roofline"] = dict.fromkeys(TARGETS, roofline(test).tolist())
    return {"left out": which, "steps": np.flatnonzero(away).tolist(), "said": predicted, "seconds": spent}


def ablations(which: int | str, layers: str, network: str, on: str) -> dict[str, Any]:
    away = left_out(which)
    train, test = picked(~away), picked(away)
    settings, parts = NETWORKS[network]
    settings = replace(settings, trains_on=on)
    line = ScaleDL(layers=replace(LAYERS[layers], shape="linear"), network=settings, parts=parts)
    alone = ScaleDL(network=replace(settings, told_times=False))
    cut = ScaleDL(layers=LAYERS[layers], network=replace(settings, messages=False), parts=parts)
    predicted = {
        "messages cut": predicted_by(cut.fit_pages(train + the_data().operators), test),
        "with linear layers": predicted_by(line.fit_pages(train + the_data().operators), test),
        "whole-graph network": predicted_by(alone.fit_pages(train), test),
    }
    return {"left out": which, "steps": np.flatnonzero(away).tolist(), "said": predicted}


def chosen_points(which: int, budget: float, by: str, seed: int) -> list[int]:
    data = the_data()
    pool = np.flatnonzero(np.array(data.folds) != which)
    made = [Candidate(point=Point(source=data.sources[i], settings={"record": data.names[i]}), ops=data.op_sets[i],
                      seconds=data.costs[i]) for i in pool]  # fmt: skip
    place = {id(c): int(i) for c, i in zip(made, pool, strict=True)}
    found = design(made, known_device("h200"), budget, method=by, seed=seed)  # type: ignore[arg-type]
    return [place[id(c.candidate)] for c in found.choices]


def points(which: int, budget: float, by: str, seed: int, layers: str, network: str, on: str) -> dict[str, Any]:
    """Fitted on the steps that were chosen and nothing else, held against the fold that was left out."""
    data = the_data()
    chosen = chosen_points(which, budget, by, seed)
    away = np.array(data.folds) == which
    settings, parts = NETWORKS[network]
    method = ScaleDL(layers=LAYERS[layers], network=replace(settings, trains_on=on), parts=parts)
    test = picked(away)
    predicted = predicted_by(method.fit_pages([data.pages[i] for i in chosen]), test)
    return {"fold": which, "budget": budget, "by": by, "seed": seed, "points": len(chosen),
            "seconds": sum(data.costs[i] for i in chosen),
            **{w: mre(predicted[w], data.measured(w)[away]) for w in TARGETS}}  # fmt: skip


def try_foretell(name: str) -> tuple[str, float, float]:
    """Foretell's operators with other trees, on the same architectures: what ops take, added up."""
    from foretell.cost.model import CostModel
    from foretell.cost.operators import OperatorModels
    from foretell.forecasting.step import one_device_step
    from foretell.learn.operators import training_rows
    from foretell.learn.options import ROUNDS

    assert _measured is not None
    began, measured = time.monotonic(), _measured
    fit, held_out = validation()
    place = {s.id: i for i, s in enumerate(measured.steps)}
    own = [place[the_data().names[i]] for i in np.flatnonzero(held_out)]
    unseen = [place[the_data().names[i]] for i in np.flatnonzero(~fit)]  # fold 0 among them
    changed = dict(FORETELL[name])
    rounds = int(changed.pop("rounds", ROUNDS))
    rows = training_rows(measured.ops.where(~np.isin(measured.ops.step, unseen)))
    models = {
        family: one.fit(seed=0, rounds=rounds, trees=changed) for family, one in rows.items() if len(one.wanted) >= 20
    }
    model = CostModel(name="tried", device="h200", operators=OperatorModels(families=models))
    predicted = [one_device_step(measured.graph(i), measured.device, model).device_seconds for i in own]
    return name, mre(predicted, np.array([measured.steps[i].device_seconds for i in own])), time.monotonic() - began


Done = dict[str, Any]  # a task's name → what came of it


def experiment(data: Data, store: Path, workers: int, on: str, families: bool, keep: Path | None) -> Done:
    """What was tried, chosen and predicted, task by task, written to `keep` as it comes; what is there is not done again."""
    global _data, _measured
    _data = data
    began = time.monotonic()
    done: Done = json.loads(keep.read_text()) if keep and keep.exists() else {}

    def run(wanted: dict[str, tuple[Any, ...]], pool: ProcessPoolExecutor) -> None:
        jobs = {name: pool.submit(*call) for name, call in wanted.items() if name not in done}
        for name, job in jobs.items():
            done[name] = job.result()
            print(f"{time.monotonic() - began:6.0f} s  {name}", flush=True)
            if keep:
                keep.write_text(json.dumps(done))

    # Forked workers inherit the data; the parent never touches the accelerator, so they can.
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_one_thread) as pool:
        run({f"layers: {name}": (try_layers, name) for name in LAYERS}, pool)
        layers = min(LAYERS, key=lambda name: done[f"layers: {name}"][1])
        run({f"network: {name}": (try_network, name, layers, on) for name in NETWORKS}, pool)
        network = min(NETWORKS, key=lambda name: sum(done[f"network: {name}"][1:3]))
        chosen = (layers, network, on)
        done["chosen"] = {"layers": layers, "network": network}
        done.setdefault("on", on)
        folds: list[int | str] = [*sorted(set(data.folds)), "batch"]
        kinds = sorted(set(data.families), key=lambda f: -data.families.count(f)) if families else []
        run({f"fold: {which}": (fold, which, *chosen) for which in (*folds, *kinds)}, pool)
        run({f"ablations: {which}": (ablations, which, *chosen) for which in ABLATED}, pool)
        draws = [("d-optimal", 0), *(("random", seed) for seed in range(DRAWS))]
        run({f"points: {which}, {budget:.0f} s, {by} {seed}": (points, which, budget, by, seed, *chosen)
             for which in DESIGN_FOLDS for budget in BUDGETS for by, seed in draws}, pool)  # fmt: skip
    if any(f"foretell: {name}" not in done for name in FORETELL):
        from foretell.learn.dataset import load as load_measured
        from foretell.store.store import Store

        _measured = load_measured(Store(store))
        with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_one_thread) as pool:
            run({f"foretell: {name}": (try_foretell, name) for name in FORETELL}, pool)
    return done


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


# What comes of it.


def errors(predicted: Array, measured: Array) -> dict[str, float]:
    off = np.abs(predicted / measured - 1)
    return {"mre": float(off.mean()), "median": float(np.median(off)), "p90": float(np.quantile(off, 0.9)),
            "rmse_seconds": float(np.sqrt(((predicted - measured) ** 2).mean())),
            "rmse_relative": float(np.sqrt((off**2).mean())), "rows": len(off)}  # fmt: skip


def _split_of(which: int | str) -> str:
    return "architecture" if isinstance(which, int) else "batch" if which == "batch" else "family"


def report(data: Data, done: Done, foretell: dict[str, dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Tables: split × set of steps × method × target → errors. RMSE is in seconds, as in the paper, and relative."""
    folds = [one for name, one in done.items() if name.startswith(("fold: ", "ablations: "))]
    predicted: dict[str, dict[str, dict[str, Array]]] = {}
    for split in ("architecture", "batch", "family"):
        predicted[split] = {}
        for part in (f for f in folds if _split_of(f["left out"]) == split):
            for method, values in part["said"].items():
                for what in TARGETS:
                    column = predicted[split].setdefault(method, {}).setdefault(what, np.full(len(data.pages), np.nan))
                    column[part["steps"]] = values[what]
        known = foretell.get(split, {})
        if known and predicted[split]:
            predicted[split]["Foretell"] = {
                w: np.array([known.get(name, (np.nan, np.nan))[i] for name in data.names])
                for i, w in enumerate(TARGETS)
            }
    predicted = {split: methods for split, methods in predicted.items() if methods}
    sets = {
        "all": np.ones(len(data.pages), bool), "five": np.isin(data.sources, list(FIVE.values())),
        "training": np.array(data.training), "inference": ~np.array(data.training), "fold 0": np.array(data.folds) == 0,
    }  # fmt: skip
    tables: dict[str, Any] = {}
    for split, methods in predicted.items():
        for name, mask in sets.items():
            asked = _covering(methods, mask)
            there = np.all([~np.isnan(c[w]) for c in asked.values() for w in TARGETS], axis=0)
            rows = mask & there
            if rows.any() and (split == "architecture" or name != "fold 0"):
                tables[f"{split}, {name}"] = {
                    m: {w: errors(c[w][rows], data.measured(w)[rows]) for w in TARGETS} for m, c in asked.items()
                }
    five = [
        {"network": short, "record": data.names[i], "split": split, "measured": {w: float(data.measured(w)[i]) for w in TARGETS},
         "said": {m: {w: float(c[w][i]) for w in TARGETS} for m, c in predicted[split].items() if not np.isnan(c["device"][i])}}
        for split in predicted for short, source in FIVE.items() for i in range(len(data.pages))
        if data.sources[i] == source and not np.isnan(predicted[split]["after ScaleDL"]["device"][i])
    ]  # fmt: skip
    tried = {kind: {name.partition(": ")[2]: one[1:] for name, one in done.items() if name.startswith(f"{kind}: ")}
             for kind in ("layers", "network", "foretell")}  # fmt: skip
    spent = [f["seconds"] for f in folds if "seconds" in f]
    return {
        "steps": len(data.pages), "operators": len(data.operators), "architectures": len(set(data.sources)),
        "tried": tried, "chosen": done["chosen"], "trained on": done["on"],
        "settings": {"layers": {n: dataclasses.asdict(s) for n, s in LAYERS.items()},
                     "networks": {n: dataclasses.asdict(s) | {"parts": p} for n, (s, p) in NETWORKS.items()},
                     "foretell": FORETELL},
        "seconds": {k: float(np.mean([one[k] for one in spent])) for k in ("fit", "predict")},
        "measuring_seconds": float(np.sum(data.costs)), "tables": tables, "ratios": ratios(tables),
        "designs": [one for name, one in done.items() if name.startswith("points: ")], "five": five,
        "folds": over_folds(data, predicted.get("architecture", {})),
    }  # fmt: skip


def over_folds(data: Data, methods: dict[str, dict[str, Array]]) -> dict[str, list[float]]:
    """The least and the most of what the claims say, over folds of architectures; of step time."""
    asked = {"mre": ("additive, on steps", "mre"), "rmse_seconds": ("additive, on steps", "rmse_seconds"),
             "foretell": ("Foretell", "mre")}  # fmt: skip
    found = {}
    for name, (other, figure) in asked.items():
        if other in methods and "after ScaleDL" in methods:
            pair, ratios_ = [methods[m]["step"] for m in ("after ScaleDL", other)], list[float]()
            for fold_ in sorted(set(data.folds)):
                rows = (np.array(data.folds) == fold_) & ~np.isnan(pair[0]) & ~np.isnan(pair[1])
                ours, theirs = (errors(c[rows], data.measured("step")[rows])[figure] for c in pair)
                ratios_.append(ours / theirs if name == "foretell" else theirs / ours)
            found[name] = [min(ratios_), max(ratios_)]
    return found


def _covering(methods: dict[str, dict[str, Array]], mask: Array) -> dict[str, dict[str, Array]]:
    """Those that were asked about nearly all of these steps that the method was: some were left out of fewer folds."""
    asked = int((mask & ~np.isnan(methods["after ScaleDL"]["device"])).sum())
    return {m: c for m, c in methods.items() if (mask & ~np.isnan(c["device"])).sum() >= 0.9 * asked}


def ratios(tables: dict[str, Any]) -> dict[str, Any]:
    """How many times lower than each other method's: MRE, and RMSE in seconds."""
    found: dict[str, Any] = {}
    for name, methods in tables.items():
        for own in ("after ScaleDL", "Foretell"):
            if own in methods:
                found[f"{own}: {name}"] = {
                    other: {w: {e: methods[other][w][e] / methods[own][w][e] for e in ("mre", "rmse_seconds")} for w in TARGETS}
                    for other in methods if other != own
                }  # fmt: skip
    return found


def show(made: dict[str, Any]) -> None:
    print(
        f"{made['steps']} steps of {made['architectures']} architectures, {made['operators']} operator points; chosen {made['chosen']}"
    )
    for kind, variants in made["tried"].items():
        for name, values in variants.items():
            told = ", ".join(f"{v:.1%} of {w} time" for v, w in zip(values[:-1], TARGETS, strict=False))
            print(f"  tried {kind}, {name}: errors {told}; {values[-1]:.0f} s")
    for name, methods in made["tables"].items():
        rows = next(iter(methods.values()))["device"]["rows"]
        print(f"\n{name} ({rows} steps)\n  {'':22} device: MRE  median  RMSE      step: MRE  median  RMSE")
        for method, by in sorted(methods.items(), key=lambda t: t[1]["device"]["mre"]):
            parts = [
                f"{by[w]['mre']:11.1%} {by[w]['median']:7.1%} {by[w]['rmse_seconds'] * 1e3:6.1f} ms" for w in TARGETS
            ]
            print(f"  {method:22} {'   '.join(parts)}")
    print("\ntimes lower MRE and RMSE than …")
    for name, others in made["ratios"].items():
        told = [f"{o} {r['device']['mre']:.1f}/{r['device']['rmse_seconds']:.1f} device, {r['step']['mre']:.1f}/"
                f"{r['step']['rmse_seconds']:.1f} step" for o, r in others.items()]  # fmt: skip
        print(f"  {name}: " + "; ".join(told))
    print("\nat equal seconds of measuring, mean over folds (device, step)")
    for budget in BUDGETS:
        for by in ("d-optimal", "random"):
            own = [d for d in made["designs"] if (d["budget"], d["by"]) == (budget, by)]
            if own:
                print(f"  {budget:4.0f} s {by:10} {np.mean([d['points'] for d in own]):5.0f} points  "
                      f"{np.mean([d['device'] for d in own]):6.1%}  {np.mean([d['step'] for d in own]):6.1%}")  # fmt: skip


_COLOURS = {"after ScaleDL": "#2f6fab", "Foretell": "#3a8f5c"}
_LEFT, _WIDTH, _THICK, _GAP = 150, 210, 18, 7


def chart(made: dict[str, Any]) -> str:
    """Mean relative errors, a bar a method; a panel each for device and step time, a row of them for each split."""
    drawn, top = [], 10.0
    for name, title in (("architecture, all", "architectures left out"), ("family, all", "families left out")):
        methods = made["tables"].get(name, {})
        order = sorted(methods, key=lambda m: methods[m]["device"]["mre"])
        for column, what in enumerate(TARGETS):
            left = _LEFT + column * (_WIDTH + 90)
            drawn.append(f'<text x="{left}" y="{top + 16}" font-weight="bold">{what} time, {title}</text>')
            for row, method in enumerate(order):
                y, error = top + 28 + row * (_THICK + _GAP), methods[method][what]["mre"]
                length = _WIDTH * min(error, 1.0)
                if not column:
                    drawn.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{method}</text>')
                drawn.append(
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{_THICK}" fill="{_COLOURS.get(method, "#bbbbbb")}"/>'
                    f'<text x="{left + length + 5:.1f}" y="{y + 13}">{error:.1%}</text>'
                )
        top += 44 + len(order) * (_THICK + _GAP)
    width = _LEFT + 2 * (_WIDTH + 90)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top:.0f}" width="{width}" height="{top:.0f}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#444444"><title>Mean relative error on unseen steps</title>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def short(value: Any) -> Any:
    """Four digits say all there is."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return [short(v) for v in value] if isinstance(value, list) else value


def read_predictions(path: Path | None) -> dict[str, tuple[float, float]]:
    """Record → device and step seconds, from what `foretell bench accuracy --save` wrote."""
    if path is None:
        return {}
    from foretell.learn.holdout import read_steps

    return {s.record: (s.device_predicted, s.step_predicted) for s in read_steps(path)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", type=Path, default=HERE / "data" / "h200")
    parser.add_argument("--foretell", type=Path, help="what Foretell predicted, architectures left out")
    parser.add_argument("--foretell-batch", type=Path, help="what Foretell predicted, largest batches left out")
    parser.add_argument(
        "--foretell-family", type=Path, default=HERE / "results" / "accuracy.json", help="… families left out"
    )
    parser.add_argument("--said", type=Path, help="where predictions are kept: what is there is not fitted again")
    parser.add_argument("--families", action="store_true", help="leave out whole families too")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--on", default="cpu", help="where networks are trained: cpu or cuda")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scaledl.json")
    parser.add_argument("--show", action="store_true", help="show and draw results that are there, and stop")
    options = parser.parse_args()
    picture = HERE.parent / "docs" / "accuracy" / "methods" / "scaledl.svg"
    if options.show:
        made = json.loads(options.out.read_text())
    else:
        data = load(options.store)
        done = experiment(data, options.store, options.workers, options.on, options.families, options.said)
        files = {
            "architecture": options.foretell,
            "batch": options.foretell_batch,
            "family": options.foretell_family,
        }
        made = short(report(data, done, {split: read_predictions(path) for split, path in files.items()}))
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    show(made)
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(chart(made), encoding="utf-8")


if __name__ == "__main__":
    main()
