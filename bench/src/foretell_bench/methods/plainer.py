"""What ScaleDL is compared with: additive, FLOP-linear and roofline models.

They see what it sees. A kind of layer has a rate for each precision, work is counted in seconds at the device's peak and
bandwidth, collectives are kinds of their own, counted in seconds of their link, and a pipeline's waiting stretches the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from foretell.errors import ForetellError, InputError
from foretell.methods.graphs import answers
from foretell.methods.protocol import DEVICE_TIME, STEP_TIME, Example, Prediction, Query
from foretell.methods.scaledl.features import Layer, sheet_of
from foretell.methods.scaledl.method import Page, ScaleDL, read
from foretell.methods.scaledl.network import NetworkSettings

Array = npt.NDArray[Any]
_TARGETS: Final = (STEP_TIME, DEVICE_TIME)
_NO_GRAPH: Final = "it needs the graph of the step, and the source does not say what was run"


def kind_of(layer: Layer) -> str:
    """What has a rate of its own."""
    return layer.kind if layer.communicates else f"{layer.kind}, {layer.numbers}"


def work_of(layer: Layer) -> tuple[float, float, float]:
    """One call, seconds of arithmetic at the peak, seconds of memory or of the link."""
    if layer.communicates:
        return 1.0, 0.0, layer.roofline
    seconds = np.exp([layer.values["arithmetic"], layer.values["memory"]]) / 1e9
    return 1.0, float(seconds[0]), float(seconds[1])


def sums(pages: Sequence[Page], kinds: Sequence[str], *, step: bool = True) -> Array:
    """Steps × (calls, seconds of arithmetic, seconds of memory) of each kind; of the device without what is exchanged."""
    place = {kind: 3 * i for i, kind in enumerate(kinds)}
    table = np.zeros((len(pages), 3 * len(kinds)))
    for row, page in zip(table, pages, strict=True):
        for layer, runs in zip(page.sheet.layers, page.runs, strict=True):
            at = place.get(kind_of(layer))
            if at is not None and (step or not layer.communicates):
                waits = 0.0 if layer.communicates or not step else page.sheet.waiting
                row[at : at + 3] += runs * (1 + waits) * np.array(work_of(layer))
    return table


def additive(train: Sequence[Page], test: Sequence[Page], target: str) -> Array:
    """A time per call, operation and byte of each kind, none negative, fitted on whole steps in relative terms."""
    kinds, step = sorted({kind_of(layer) for p in train for layer in p.sheet.layers}), target == STEP_TIME
    took = np.array([p.measured[target] for p in train])
    return nonnegative(sums(train, kinds, step=step), took, sums(test, kinds, step=step))


def additive_layers(train: Sequence[Page], operators: Sequence[Page], test: Sequence[Page]) -> Array:
    """The same, each kind fitted on its own ops: what a profiler of layers gives."""
    kinds: dict[str, list[tuple[float, ...]]] = {}
    for page in (*train, *operators):
        for layer, seconds in zip(page.sheet.layers, page.seconds, strict=True):
            if seconds > 0:
                kinds.setdefault(kind_of(layer), []).append((*work_of(layer), float(seconds)))
    predicted = np.zeros(len(test))
    for kind, rows in kinds.items():
        table = np.array(rows)
        predicted += nonnegative(table[:, :3], table[:, 3], sums(test, [kind]))
    return predicted


def flop_linear(train: Sequence[Page], test: Sequence[Page], target: str) -> Array:
    """A constant, and a time for what arithmetic takes at the peak in each precision; on several devices, for the links."""

    def table(pages: Sequence[Page]) -> Array:
        rows = []
        for p in pages:
            row = dict.fromkeys(("16 bits", "tf32", "32 bits", "links"), 0.0)
            for layer, runs in zip(p.sheet.layers, p.runs, strict=True):
                _, arithmetic, other = work_of(layer)
                row["links" if layer.communicates else layer.numbers] += runs * (
                    other if layer.communicates else arithmetic
                )
            rows.append([1.0, *row.values()])
        return np.array(rows)

    return nonnegative(table(train), np.array([p.measured[target] for p in train]), table(test))


def roofline(test: Sequence[Page]) -> Array:
    """Nothing is fitted."""
    return np.array([sum(x.roofline * r for x, r in zip(p.sheet.layers, p.runs, strict=True)) for p in test])


def nonnegative(known: Array, took: Array, wanted: Array) -> Array:
    from scipy.optimize import nnls

    scaled = known / took[:, None]
    size = np.maximum(scaled.max(axis=0), 1e-300)
    costs, _ = nnls(scaled / size, np.ones(len(took)), maxiter=50 * known.shape[1])
    return np.asarray(wanted @ (costs / size))


class _Plain:
    """Behind the protocol: whatever is fitted is fitted when it is pages, which takes milliseconds."""

    name: ClassVar[str]

    @staticmethod
    def seconds(train: Sequence[Page], test: Sequence[Page], target: str) -> Array:
        raise NotImplementedError

    def __init__(self) -> None:
        self.pages_: list[Page] = []

    def fit(self, examples: Sequence[Example]) -> Self:
        self.pages_ = [page for e in examples if e.measured and (page := _page(e)) is not None]
        if not self.pages_:
            raise InputError(f"{self.name} cannot be fitted: none of {len(examples)} examples has a graph and a time.")
        return self

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return answers(queries, self._answers, _NO_GRAPH)

    def _answers(self, queries: Sequence[Query]) -> list[Prediction]:
        """All at once: a fit on pages is the same for every question."""
        refused: dict[int, str] = {}
        for i, query in enumerate(queries):
            try:
                sheet_of(query)
            except ForetellError as error:
                refused[i] = str(error)
        wanted = [i for i in range(len(queries)) if i not in refused]
        pages = [read(Example(query=queries[i], measured={})) for i in wanted]
        values: list[dict[str, float]] = [{} for _ in wanted]
        for target in _TARGETS:
            if pages and (known := [p for p in self.pages_ if p.measured.get(target, 0.0) > 0]):
                for row, seconds in zip(values, self.seconds(known, pages, target).tolist(), strict=True):
                    row[target] = max(seconds, 1e-9)
        found = {
            i: Prediction(values=row, why="" if row else "no example has a time")
            for i, row in zip(wanted, values, strict=True)
        }
        return [found[i] if i in found else Prediction(values={}, why=refused[i]) for i in range(len(queries))]


class Additive(_Plain):
    name = "additive"
    seconds = staticmethod(additive)


class FlopLinear(_Plain):
    name = "FLOP-linear"
    seconds = staticmethod(flop_linear)


class Roofline(_Plain):
    name = "roofline"

    @staticmethod
    def seconds(train: Sequence[Page], test: Sequence[Page], target: str) -> Array:
        return roofline(test)


def whole_graph(seed: int = 0) -> ScaleDL:
    """ScaleDL's network with no layers below it: all it knows, it learned from whole steps."""
    return ScaleDL(network=NetworkSettings(sees_times=False, seed=seed), name="whole-graph network")


def _page(example: Example) -> Page | None:
    if example.query.graph is None:
        return None
    try:
        return read(example)
    except ForetellError:
        return None  # its plan cannot be modelled
