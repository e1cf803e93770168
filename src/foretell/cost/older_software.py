"""What software of another time makes of a step that was captured as of today.

Four things are known. Kernels of a family took so many times longer under a version, read off one board whose steps were
published under several. Before torch 2, optimizers went from parameter to parameter where today's take lists of them, and
attention wrote its scores to memory. Before torch 2.1, optimizers over lists added to their roots in a copy of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.features import LAUNCH_FLOOR
from foretell.cost.files import check_numbers, reading
from foretell.cost.folder import file_of
from foretell.cost.host import HostCosts, mode_of
from foretell.graph import ITEM_BYTES, Graph
from foretell.graph.calls import Call
from foretell.graph.operators import operator_of
from foretell.hardware import Device, Host
from foretell.limits import read_json
from foretell.profile import family_of
from foretell.software import (
    FIRST_FUSED_ATTENTION,
    FIRST_LISTED_UPDATES,
    FIRST_ROOTS_IN_PLACE,
    RELEASES,
    Software,
    Version,
)
from foretell.units import Bytes, Seconds

FILE: Final = "software.json"
Floats = npt.NDArray[np.float64]
_ADDED_IN_PLACE: Final = "aten._foreach_add_.Scalar"
# How often attention that is written out moves its scores: a product writes them, a softmax reads and writes, a product reads;
# backward, a product writes their gradient, the softmax reads both and writes, and three products read. Autocast casts to fp32
# and back around the softmax, which then moves twice the bytes.
_PASSES: Final = {"attention": 4, "attention_backward": 7}
_PASSES_OF_CASTS: Final = {"attention": 8, "attention_backward": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderSoftware:
    """How many times longer kernels of a profile's families take under a version than under today's."""

    times: Mapping[Version, Mapping[str, float]] = field(hash=False, default_factory=dict)
    spread: float = 0.0  # standard deviation, as a logarithm, of a step of architectures left out
    source: str = ""

    def __post_init__(self) -> None:
        for factors in self.times.values():
            check_numbers("how many times longer", list(factors.values()), least=0.5, most=10)

    @classmethod
    def load(cls, path: Path) -> OlderSoftware:
        with reading(path, "software of another time"):
            content = read_json(path)
            times = {Software.parse(name).torch: factors for name, factors in content["times"].items()}
            return cls(times=dict(sorted(times.items())), spread=content["spread"], source=content["source"])

    def factor(self, family: str, software: Software) -> float:
        """Between two versions that were published, on the way from one to the other; beyond them, as the nearest."""
        if not self.times:
            return 1.0
        logs = [math.log(factors.get(family, 1.0)) for factors in self.times.values()]
        return math.exp(np.interp(_releases_before(software.torch), [_releases_before(v) for v in self.times], logs))


def older_software_in(folder: Path) -> OlderSoftware:
    """Of a model's folder; where it says nothing, versions differ in what torch itself did otherwise."""
    path = file_of(folder, FILE)
    return OlderSoftware.load(path) if path else OlderSoftware()


def device_seconds(seconds: Floats, graph: Graph, device: Device, software: Software, older: OlderSoftware) -> Floats:
    """Of every op of a graph, by what it takes today."""

    def factor(call: Call) -> float:
        return older.factor(family_of(call.signature), software)

    def further(call: Call) -> Seconds:
        if software.torch < FIRST_FUSED_ATTENTION and operator_of(call.signature.name).is_attention:
            return _moved(call, autocast=graph.precision.autocast is not None) / device.bandwidth
        return LAUNCH_FLOOR * (_one_by_one(call, software) - 1)

    calls = graph.calls
    found: Floats = seconds * np.array(calls.each(factor)) + np.array(calls.each(further))
    return found


def host_seconds(seconds: Floats, graph: Graph, host: Host, software: Software, costs: HostCosts) -> Floats:
    """Of every op of a graph: an op over a list was one op for each of its tensors."""

    def further(call: Call) -> Seconds:
        alone = costs.kernel[mode_of(call, graph)]["plain"] * host.op_seconds
        return alone * (_one_by_one(call, software) - 1)

    found: Floats = seconds + np.array(graph.calls.each(further))
    return found


def writes_scores(graph: Graph, software: Software) -> bool:
    """Whether attention wrote its scores to memory, which the memory of a forecast does not count."""
    names = (operator_of(call.signature.name) for call in graph.calls.distinct)
    return software.torch < FIRST_FUSED_ATTENTION and any(operator.is_attention for operator in names)


def copied_bytes(graph: Graph, software: Software) -> list[Bytes]:
    """What each op of a graph made a copy of, that is written in place today: the roots that an optimizer adds its epsilon to."""
    if not FIRST_LISTED_UPDATES <= software.torch < FIRST_ROOTS_IN_PLACE:
        return [0] * len(graph.ops)
    return graph.calls.each(lambda call: sum(x.nbytes for x in call.signature.inputs) if _adds_to_roots(call) else 0)


def _adds_to_roots(call: Call) -> bool:
    return call.phase == "optimizer" and call.signature.target == _ADDED_IN_PLACE and not call.on_host


def _one_by_one(call: Call, software: Software) -> int:
    """Ops that one over a list of parameters was."""
    listed = operator_of(call.signature.name).walks_a_list and not call.on_host
    if software.torch >= FIRST_LISTED_UPDATES or not listed:
        return 1
    return max(len(call.signature.mutates), len(call.signature.outputs), 1)


def _moved(call: Call, *, autocast: bool) -> Bytes:
    """Scores that attention reads and writes where it is written out."""
    query, key = (call.signature.tensor(name) for name in ("query", "key"))
    if query is None or key is None:
        return 0
    family = operator_of(call.signature.name).family
    passes = _PASSES[family] + (_PASSES_OF_CASTS[family] if autocast else 0)
    return passes * math.prod(query.shape[:-1]) * key.shape[-2] * ITEM_BYTES[query.dtype]


def _releases_before(version: Version) -> int:
    return sum(released < version for released in RELEASES)
