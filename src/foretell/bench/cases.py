"""Measured steps as questions to Foretell: a graph, a cluster, a plan; and the answers calibrated with a few factors.

A cluster's software and network differ from the catalogue's by factors that hold for all its steps. Four are fitted on
rows that are not tested: for device time, host time, communication that does not hide, and bubble.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from foretell.bench.figures import relative_errors
from foretell.bench.rows import Row, Say
from foretell.errors import InputError
from foretell.forecasting import forecast
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.units import Bytes, Seconds
from foretell.workload import Plan

_TWO_BATCHES = (2, 4)  # a batch of one takes short cuts
_QUIET = 1e-3  # a host so fast that it is never waited for, so that its time can be told apart
ENOUGH = 8  # rows to fit four factors on
_SOFT = 6.0  # device and host run side by side: nearly their maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of a forecast that are calibrated, and its memory by purpose."""

    device: Seconds
    host: Seconds
    waiting: Seconds  # for communication that does not hide behind compute
    bubble: Seconds
    memory: Mapping[str, Bytes]

    def seconds(self, factors: Sequence[float]) -> Seconds:
        """A pipeline runs empty in proportion to what fills it, be that the device or the host."""
        device, host, waiting, bubble = factors
        busy = device * self.device + waiting * self.waiting
        paced = float((busy**_SOFT + (host * self.host) ** _SOFT) ** (1 / _SOFT))
        return paced * (1 + bubble * self.bubble / (self.device + self.waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there is no forecast."""

    why: str
    impossible: bool  # or only not modelled yet


def ask(graph: Graph, cluster: Cluster, plan: Plan) -> Answer | Refusal:
    quiet = {node: _quiet(node) for node in dict.fromkeys(cluster.nodes)}
    try:
        found = forecast(graph, dataclasses.replace(cluster, nodes=tuple(quiet[n] for n in cluster.nodes)), plan)
    except InputError as error:
        return Refusal(why=str(error), impossible="does not model yet" not in str(error))
    device, bubble = found.device_time.seconds, found.bubble.seconds
    memory = {
        **dataclasses.asdict(found.memory.breakdown),
        "allocated": found.memory.allocated,
        "total": found.memory.total,
    }
    return Answer(
        device=device, host=found.host_time.seconds / _QUIET, bubble=bubble, memory=memory,
        waiting=max(found.step_time.seconds - device - bubble, 0.0),
    )  # fmt: skip


def _quiet(node: Any) -> Any:
    host = dataclasses.replace(node.host, op_seconds=node.host.op_seconds * _QUIET)
    return dataclasses.replace(node, host=host)


def calibrate(answers: Sequence[Answer], measured: Sequence[Seconds]) -> list[float]:
    """Factors that make answers and measurements agree, in ratios and robustly; each within 1/8 and 8."""
    from scipy.optimize import least_squares

    def off(logs: np.ndarray) -> np.ndarray:
        factors = np.exp(logs).tolist()
        ratios = [np.log(answer.seconds(factors) / seen) for answer, seen in zip(answers, measured, strict=True)]
        return np.concatenate([ratios, 0.05 * logs])

    found = least_squares(off, np.zeros(4), bounds=(-2.1, 2.1), loss="soft_l1", f_scale=0.1)
    return [float(factor) for factor in np.exp(found.x)]


def errors_across(cases: Sequence[tuple[str, Answer, Seconds]], *, inverse: bool = False) -> np.ndarray:
    """Errors of each kind of model with the factors of all others; `inverse` for rates in place of times."""
    errors = []
    for kind in dict.fromkeys(case[0] for case in cases):
        known = [case for case in cases if case[0] != kind]
        test = [case for case in cases if case[0] == kind]
        if len(known) >= ENOUGH:
            factors = calibrate([answer for _, answer, _ in known], [seconds for _, _, seconds in known])
            predicted, measured = (
                [answer.seconds(factors) for _, answer, _ in test],
                [seconds for _, _, seconds in test],
            )
            errors.append(relative_errors(measured, predicted) if inverse else relative_errors(predicted, measured))
    return np.concatenate(errors) if errors else np.array([])


class Models:
    """Graphs of language models by their Hugging Face configuration, captured at two batches and extended to others."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._captured: dict[str, tuple[Graph, Graph]] = {}

    def graph(self, config: Mapping[str, Any], settings: Mapping[str, str], batch: int) -> Graph:
        from foretell.capture.rescale import extend

        key = json.dumps([dict(config), dict(settings)], sort_keys=True)
        if key not in self._captured:
            self._captured[key] = self._capture(config, settings)
        return extend(*self._captured[key], sizes=_TWO_BATCHES, to=batch)

    def _capture(self, config: Mapping[str, Any], settings: Mapping[str, str]) -> tuple[Graph, Graph]:
        from foretell.capture import capture
        from foretell.capture.cache import folder

        text = json.dumps(dict(config), sort_keys=True)
        path = folder() / "configurations" / hashlib.sha256(text.encode()).hexdigest()[:12] / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        graphs = []
        for batch in _TWO_BATCHES:
            self._say(f"capturing a {config['model_type']} at batch {batch}")
            graphs.append(capture(str(path), {**settings, "batch": str(batch)}))
        return graphs[0], graphs[1]


def sample(rows: Sequence[Row], most: int, by: Sequence[str]) -> list[Row]:
    """Some of many rows, as many of each kind where there are enough; it does not hang on their order."""
    kinds: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: hashlib.sha256(json.dumps(row).encode()).digest()):
        kinds[tuple(row[column] for column in by)].append(row)
    turns = zip_longest(*kinds.values())
    return list(islice((row for turn in turns for row in turn if row is not None), most))
