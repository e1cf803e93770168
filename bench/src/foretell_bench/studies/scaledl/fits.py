"""Fits of ScaleDL on steps of an H200: the data, read once, and tasks that know it and run side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from foretell.design.design import design
from foretell.design.information import BUILDING, FURTHER_RUNS, Candidate, OpSet, op_set_of
from foretell.hardware import Cluster
from foretell.hardware import device as known_device
from foretell.measure.record import Point
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Query
from foretell.methods.scaledl.layers import LayerSettings
from foretell.methods.scaledl.method import Page, ScaleDL, read
from foretell.methods.scaledl.network import NetworkSettings
from foretell.plans import Plan
from foretell_bench.methods.plainer import additive, additive_layers, flop_linear, roofline

if TYPE_CHECKING:
    from foretell.graph import Graph
    from foretell.learn.dataset import Measured
    from foretell.measure.record import StepRow
    from foretell.store.store import Store

Array = npt.NDArray[Any]
TARGETS: Final = {"device": DEVICE_TIME, "step": STEP_TIME}
LAYERS: Final = {
    "width 96": LayerSettings(), "width 192": LayerSettings(width=192), "twice as long": LayerSettings(epochs=80),
}  # fmt: skip
NETWORKS: Final = {  # with the parts whose layer times are predicted by models that saw the other parts; 1: by those that saw them
    "2 rounds": (NetworkSettings(), 5), "3 rounds": (NetworkSettings(rounds=3), 5),
    "twice as long": (NetworkSettings(epochs=50), 5), "layer times seen": (NetworkSettings(), 1),
}  # fmt: skip
FORETELL: Final[Mapping[str, Mapping[str, float]]] = {  # what is changed of the trees of Foretell's operators
    "as shipped": {}, "31 leaves": {"num_leaves": 31}, "95 leaves": {"num_leaves": 95}, "twice the trees": {"rounds": 900},
    "half the rate, twice the trees": {"learning_rate": 0.0225, "rounds": 900}, "all features": {"feature_fraction": 1.0},
    "20 rows a leaf": {"min_data_in_leaf": 20},
}  # fmt: skip
WHOLE: Final = "after ScaleDL"
CUT: Final = "messages cut"
PARTS: Final[Mapping[str, Mapping[str, Any]]] = {  # what is taken away, and what is changed for it
    WHOLE: {}, CUT: {"messages": False}, "with linear layers": {"linear": True}, "whole-graph network": {"sees_times": False},
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
    from foretell.learn.dataset import Measured, op_table
    from foretell.learn.fit import families_of
    from foretell.store.store import Store
    from foretell_bench.research.groups import groups

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


def op_times(store: Store) -> dict[str, Array]:
    table = store.query("select step, device_seconds from ops order by step, op")
    ids, seconds = (table[c].to_numpy(zero_copy_only=False) for c in ("step", "device_seconds"))
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
    return {ids[a]: seconds[a:b] for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)}


def collect(
    rows: Sequence[tuple[StepRow, Graph, Array]],
    folds: Mapping[str, int],
    largest: set[str],
    families: Mapping[str, str],
) -> Data:
    """`rows`: a step's row of the store, its graph, the times of its ops."""
    data = Data([], [], [], [], [], [], [], [], [], [])
    cluster, plan = Cluster.parse("h200"), Plan()
    for s, graph, ops in rows:
        query, ops_seconds = Query(architecture=s.source, plan=plan, cluster=cluster, graph=graph), ops.tolist()
        if s.kind == "operators":
            data.operators.append(read(Example(query=query, measured={}, ops=ops_seconds)))
            continue
        assert s.device_seconds is not None, "a step that is timed has both"
        assert s.step_seconds is not None
        measured = {DEVICE_TIME: s.device_seconds, STEP_TIME: s.step_seconds}
        data.pages.append(read(Example(query=query, measured=measured, ops=ops_seconds)))
        data.sources.append(s.source)
        data.names.append(s.id)
        data.training.append(graph.training)
        data.costs.append(BUILDING["step"] + (s.repetitions + FURTHER_RUNS) * s.step_seconds)
        data.op_sets.append(op_set_of(graph))
        data.folds.append(folds[s.id])
        data.largest.append(s.id in largest)
        data.families.append(families.get(s.source, s.source))
    return data


# Tasks. Forked workers inherit what they are about.

_data: Data | None = None
_measured: Measured | None = None  # the same store, as Foretell's models learn from it


def share(data: Data, measured: Measured | None = None) -> None:
    """Sets what tasks of this process, and of those forked from now on, are about."""
    global _data, _measured
    _data, _measured = data, measured


def the_data() -> Data:
    assert _data is not None
    return _data


def picked(where: Array) -> list[Page]:
    pages = the_data().pages
    return [pages[i] for i in np.flatnonzero(where)]


def scaledl(layers: str, network: str, on: str, *, seed: int = 0, linear: bool = False, **changed: Any) -> ScaleDL:
    """By the names of its settings; `changed` of the network."""
    settings, parts = NETWORKS[network]
    how = replace(LAYERS[layers], seed=seed)
    return ScaleDL(
        layers=replace(how, shape="linear") if linear else how,
        network=replace(settings, seed=seed, trains_on=on, **changed), parts=parts,
    )  # fmt: skip


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
    validating = set(np.random.default_rng(7).permutation(names)[: len(names) // 5].tolist())
    away = np.array([s in validating for s in data.sources])
    return train & ~away, train & away


def try_layers(name: str) -> tuple[str, float, float]:
    began = time.monotonic()
    fit, validating = validation()
    method = ScaleDL(layers=LAYERS[name], network=NetworkSettings(rounds=0))
    method.fit_pages(picked(fit) + the_data().operators)
    error = mre(predicted_by(method, picked(validating))["device"], the_data().measured("device")[validating])
    return name, error, time.monotonic() - began


def try_network(name: str, layers: str, on: str) -> tuple[str, float, float, float]:
    began = time.monotonic()
    fit, validating = validation()
    method = scaledl(layers, name, on).fit_pages(picked(fit) + the_data().operators)
    predicted = predicted_by(method, picked(validating))
    device, step = (mre(predicted[w], the_data().measured(w)[validating]) for w in TARGETS)
    return name, device, step, time.monotonic() - began


def left_out(which: int | str) -> Array:
    """Of a fold of architectures, of the largest batches, or of a family."""
    data = the_data()
    if which == "batch":
        return np.array(data.largest)
    groups = data.folds if isinstance(which, int) else data.families
    return np.array([group == which for group in groups])


def fold(which: int | str, layers: str, network: str, on: str) -> dict[str, Any]:
    """The method and what is quick: method → target → what was predicted of the steps left out."""
    away = left_out(which)
    train, test = picked(~away), picked(away)
    operators = the_data().operators
    began = time.monotonic()
    method = scaledl(layers, network, on).fit_pages(train + operators)
    spent = {"fit": time.monotonic() - began}
    began = time.monotonic()
    predicted = {"after ScaleDL": predicted_by(method, test)}
    spent["predict"] = (time.monotonic() - began) / len(test)
    plain = scaledl(layers, network, on, rounds=0)
    plain.layer_models_ = method.layer_models_
    predicted["without the network"] = predicted_by(plain.with_layers(train), test)
    predicted["additive, on layers"] = dict.fromkeys(TARGETS, additive_layers(train, operators, test).tolist())
    predicted["additive, on steps"] = {w: additive(train, test, t).tolist() for w, t in TARGETS.items()}
    predicted["FLOP-linear"] = {w: flop_linear(train, test, t).tolist() for w, t in TARGETS.items()}
    predicted["roofline"] = dict.fromkeys(TARGETS, roofline(test).tolist())
    return {"left out": which, "steps": np.flatnonzero(away).tolist(), "predicted": predicted, "seconds": spent}


def without(which: int | str, part: str, seed: int, layers: str, network: str, on: str) -> dict[str, Any]:
    """A part of the method taken away, or nothing, with another seed."""
    away, changed = left_out(which), PARTS[part]
    operators = [] if changed.get("sees_times") is False else the_data().operators
    method = scaledl(layers, network, on, seed=seed, **changed).fit_pages(picked(~away) + operators)
    predicted = {part: predicted_by(method, picked(away))}
    return {"left out": which, "seed": seed, "steps": np.flatnonzero(away).tolist(), "predicted": predicted}


def chosen_points(which: int, budget: float, by: str, seed: int) -> list[int]:
    data = the_data()
    pool = np.flatnonzero(np.array(data.folds) != which)
    made = [Candidate(point=Point(source=data.sources[i], settings={"record": data.names[i]}), ops=data.op_sets[i],
                      seconds=data.costs[i]) for i in pool]  # fmt: skip
    place = {id(c): int(i) for c, i in zip(made, pool, strict=True)}
    found = design(made, known_device("h200"), budget, method=by, seed=seed)  # type: ignore[arg-type]
    return [place[id(c.candidate)] for c in found.choices]


def points(which: int, budget: float, by: str, seed: int, layers: str, network: str, on: str) -> dict[str, Any]:
    """Fitted on the steps that were chosen and nothing else, validated against the fold that was left out."""
    data = the_data()
    chosen = chosen_points(which, budget, by, seed)
    away = np.array(data.folds) == which
    method = scaledl(layers, network, on).fit_pages([data.pages[i] for i in chosen])
    predicted = predicted_by(method, picked(away))
    return {"fold": which, "budget": budget, "by": by, "seed": seed, "points": len(chosen),
            "seconds": sum(data.costs[i] for i in chosen),
            **{w: mre(predicted[w], data.measured(w)[away]) for w in TARGETS}}  # fmt: skip


def try_foretell(name: str) -> tuple[str, float, float]:
    """Foretell's operators with other trees, on the same architectures: what ops take, added up."""
    from foretell.cost.model import CostModel
    from foretell.forecasting.step import one_device_step
    from foretell.learn.operators import fit_operators
    from foretell.learn.options import ROUNDS

    assert _measured is not None
    began, measured = time.monotonic(), _measured
    fit, validating = validation()
    place = {s.id: i for i, s in enumerate(measured.steps)}
    own = [place[the_data().names[i]] for i in np.flatnonzero(validating)]
    unseen = [place[the_data().names[i]] for i in np.flatnonzero(~fit)]  # fold 0 among them
    changed = dict(FORETELL[name])
    rounds = int(changed.pop("rounds", ROUNDS))
    train = measured.ops.where(~np.isin(measured.ops.step, unseen))
    operators = fit_operators(train, rounds=rounds, trees=changed)
    model = CostModel(name="tried", device="h200", operators=operators)
    predicted = [one_device_step(measured.graph(i), measured.device, model).device_seconds for i in own]
    return name, mre(predicted, np.array([measured.steps[i].device_seconds for i in own])), time.monotonic() - began
