"""After ScaleDL (arXiv 2511.04162): a nonlinear model for each kind of layer, a graph network across layers, and
D-optimal choice of what to measure. bench/notes/methods/scaledl.md says what the paper leaves open and how it is filled here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from foretell.design.design import Method as Choosing
from foretell.design.design import design
from foretell.design.information import Candidate, op_set_of
from foretell.errors import ForetellError, InputError
from foretell.hardware import Device
from foretell.measure.record import Point
from foretell.methods.graphs import answers
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Prediction, Query
from foretell.methods.scaledl.features import FLOOR, Floats, Layer, Sheet, sheet_of
from foretell.methods.scaledl.layers import LayerModels, LayerSettings
from foretell.methods.scaledl.network import Across, NetworkSettings
from foretell.methods.scaledl.rates import divided
from foretell.units import Seconds

_AT_LEAST: Final = 0.3  # weight of a layer that takes nothing of its step
_STRENGTHS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
FEWEST: Final = 60  # steps, to leave parts of them out
_NO_GRAPH: Final = "after-ScaleDL needs the graph of the step, and this source does not say what was run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An example, read: its sheet, and what was measured of its layers and of the whole."""

    architecture: str
    sheet: Sheet
    seconds: Floats  # of each layer of the sheet, nan where it was not timed
    runs: Floats
    measured: dict[str, float]


@dataclass(slots=True)
class ScaleDL:
    """`fit` learns layers from examples whose ops were timed, and the network from those with a time of the whole."""

    layers: LayerSettings = field(default_factory=LayerSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    parts: int = (
        5  # the network learns from layer times predicted by models that saw the other parts; 1: by those that saw it
    )
    name: str = "after ScaleDL"
    layer_models_: LayerModels | None = None
    across_: Across | None = None

    def fit(self, examples: Sequence[Example]) -> Self:
        """Examples without a graph, or of a plan that cannot be modelled, teach it nothing; there must be others."""
        return self.fit_pages([read(e) for e in examples if e.query.graph is not None and not _refused(e.query)])

    def fit_pages(self, pages: Sequence[Page]) -> Self:
        """`fit`, for who fits on parts of the same examples again and again."""
        if not pages:
            raise InputError(f"{self.name} cannot be fitted: no example has a graph. Give it steps that were captured.")
        self.layer_models_ = self._fit_layers(pages)
        return self.with_layers(pages)

    def with_layers(self, pages: Sequence[Page]) -> Self:
        """Fit the network alone, over the layer models that are there."""
        wanted = [p for p in pages if DEVICE_TIME in p.measured or STEP_TIME in p.measured]
        if not wanted:
            raise InputError(
                f"{self.name} cannot be fitted: no example has a step or device time. Give it measured steps."
            )
        part_of = self._parted(wanted)
        predicted: dict[int, Floats] = {}
        for part in sorted(set(part_of.values())):
            own = [p for p in wanted if part_of[p.architecture] == part]
            others = [p for p in pages if part_of.get(p.architecture, -1) != part]
            models = self._fit_layers(others) if len(own) < len(wanted) else self.layer_models_
            predicted |= {id(p): _seconds(models, p.sheet.layers) for p in own}
        self.across_ = self._trained(wanted, predicted)
        self.across_.strength = self._strength(wanted, predicted, part_of)
        return self

    def _parted(self, wanted: Sequence[Page]) -> dict[str, int]:
        """Architecture → part; one part where there is no network, no timed layer, or too little to leave any of it out."""
        names = {p.architecture for p in wanted}
        whole = (
            self.network.rounds == 0 or self.layer_models_ is None or len(wanted) < FEWEST or len(names) < self.parts
        )
        return _parts(wanted, 1 if whole else self.parts)

    def _trained(self, pages: Sequence[Page], predicted: Mapping[int, Floats]) -> Across:
        measured = [(p.measured.get(DEVICE_TIME, math.nan), p.measured.get(STEP_TIME, math.nan)) for p in pages]
        return Across(self.network).fit([p.sheet for p in pages], [predicted[id(p)] for p in pages], measured)

    def _strength(self, wanted: Sequence[Page], predicted: Mapping[int, Floats], part_of: Mapping[str, int]) -> float:
        """How much of what the network changes holds on parts it has not seen; all of it where there is but one part."""
        parts = set(part_of.values())
        if len(parts) == 1:
            return 1.0
        errors: dict[float, list[float]] = {strength: [] for strength in _STRENGTHS}
        for part in parts:
            across = self._trained([p for p in wanted if part_of[p.architecture] != part], predicted)
            own = [p for p in wanted if part_of[p.architecture] == part]
            for strength in _STRENGTHS:
                across.strength = strength
                found = across.predict([p.sheet for p in own], [predicted[id(p)] for p in own])
                errors[strength] += [_error(p, float(d), float(s)) for p, d, s in zip(own, *found, strict=True)]
        return min(_STRENGTHS, key=lambda strength: float(np.mean(errors[strength])))

    def _fit_layers(self, pages: Sequence[Page]) -> LayerModels | None:
        """Where no op was timed, from whole steps."""
        if not self.network.sees_times:
            return None
        layers, seconds, weight = timed_layers(pages)
        if not layers:
            layers, seconds, weight = timed_layers(_divided(pages))
        return LayerModels(self.layers).fit(layers, seconds, weight) if layers else None

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        if self.across_ is None:
            raise InputError(f"{self.name} was asked before it was fitted. Call fit(examples) first.")
        return answers(queries, lambda known: map(self._answer, known), _NO_GRAPH)

    def _answer(self, query: Query) -> Prediction:
        if why := _refused(query):
            return Prediction(values={}, why=why)
        device, step = self.seconds([sheet_of(query)])
        return Prediction(values={DEVICE_TIME: float(device[0]), STEP_TIME: float(step[0])})

    def seconds(self, sheets: Sequence[Sheet]) -> tuple[Floats, Floats]:
        """Of the device and of the step."""
        assert self.across_ is not None, "fit first"
        return self.across_.predict(sheets, [_seconds(self.layer_models_, sheet.layers) for sheet in sheets])


def _refused(query: Query) -> str:
    """Why its plan cannot be modelled, if so."""
    try:
        sheet_of(query)
    except ForetellError as error:
        return str(error)
    return ""


def _error(page: Page, device: Seconds, step: Seconds) -> float:
    """Of the device where it was measured: what the network changes is there; else of the step."""
    target, value = (DEVICE_TIME, device) if DEVICE_TIME in page.measured else (STEP_TIME, step)
    return abs(value / page.measured[target] - 1)


def read(example: Example) -> Page:
    sheet = sheet_of(example.query)
    size = len(sheet.layers)
    kernels = sheet.of_op >= 0
    runs = np.bincount(sheet.layer, sheet.runs, size).astype(np.float64)
    seconds = np.full(size, math.nan)
    if len(example.ops):
        taken = np.asarray(example.ops, dtype=np.float64)
        if len(taken) != len(sheet.of_op):
            raise InputError(
                f"an example of {example.query.architecture} has times of {len(taken)} ops, and a rank of its plan runs "
                f"{len(sheet.of_op)}. Give one time for each op of a rank, in order, or none."
            )
        total = np.bincount(sheet.of_op[kernels], (taken * sheet.times)[kernels], size)
        seconds = np.where(total > 0, total / runs, math.nan)
    name, measured = example.query.architecture, dict(example.measured)
    return Page(architecture=name, sheet=sheet, seconds=seconds, runs=runs, measured=measured)


def _divided(pages: Sequence[Page]) -> list[Page]:
    """Pages with a time of the whole, as if their layers had been timed."""
    whole = [p for p in pages if DEVICE_TIME in p.measured or STEP_TIME in p.measured]
    took = [p.measured.get(DEVICE_TIME, p.measured.get(STEP_TIME, math.nan)) for p in whole]
    found = divided([p.sheet for p in whole], took) if whole else []
    return [replace(p, seconds=seconds) for p, seconds in zip(whole, found, strict=True)]


def timed_layers(pages: Iterable[Page]) -> tuple[list[Layer], Floats, Floats]:
    """Distinct layers, the mean of the seconds of each (in the logarithm), and how much it matters: its share of steps."""
    place: dict[tuple[object, ...], int] = {}
    layers: list[Layer] = []
    sums: list[list[float]] = []
    for page in pages:
        taken = np.nan_to_num(page.seconds * page.runs)
        weight = np.sqrt(100.0 * taken / (taken.sum() or 1.0)) + _AT_LEAST if page.measured else np.ones(len(taken))
        for layer, seconds, heavy in zip(page.sheet.layers, page.seconds.tolist(), weight.tolist(), strict=True):
            if math.isnan(seconds):
                continue
            number = place.setdefault(layer.key, len(layers))
            if number == len(layers):
                layers.append(layer)
                sums.append([0.0, 0.0])
            sums[number][0] += heavy * math.log(seconds)
            sums[number][1] += heavy
    logs, weights = np.array(sums, dtype=np.float64).reshape(-1, 2).T
    return layers, np.exp(logs / np.maximum(weights, 1e-9)), weights


def _parts(pages: Sequence[Page], parts: int) -> dict[str, int]:
    """Architecture → part; all of an architecture's steps are in one."""
    names = sorted({p.architecture for p in pages})
    order = np.random.default_rng(0).permutation(len(names))
    return {name: int(place) % parts for name, place in zip(names, order, strict=True)}


def _seconds(models: LayerModels | None, layers: Sequence[Layer]) -> Floats:
    """Of layers by their models; of collectives, which nothing was timed of, by their bytes."""
    plain = np.array([FLOOR + layer.roofline for layer in layers])
    own = [i for i, layer in enumerate(layers) if not layer.communicates]
    if models is not None and own:
        plain[own] = models.seconds([layers[i] for i in own])
    return plain


def choose(
    candidates: Sequence[Example], device: Device, budget: Seconds, *, by: Choosing = "d-optimal", seed: int = 0
) -> list[int]:
    """Which candidates to measure for at most `budget` seconds: greedy D-optimal design and exchange, weighted by cost.

    Only shapes and costs are looked at: what was measured of a candidate plays no part.
    """
    made = []
    for number, example in enumerate(candidates):
        if example.query.graph is None:
            raise InputError(
                f"candidate {number}, {example.query.architecture}, has no graph to choose it by. Leave it out."
            )
        point = Point(source=example.query.architecture, settings=dict(example.query.settings), kind="step", plan="")
        made.append(Candidate(point=point, ops=op_set_of(example.query.graph), seconds=example.cost))
    place = {id(c): i for i, c in enumerate(made)}
    return [place[id(c.candidate)] for c in design(made, device, budget, method=by, seed=seed).choices]
