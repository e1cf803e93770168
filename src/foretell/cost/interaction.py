"""The interaction network: what ops of a step do to each other, which a sum of their times does not know.

Ops that are alike are one node, so a step of a hundred equal layers is as small as one layer. Nodes pass on, along the flow of
data and through the whole step, what they are; for each it is then predicted by how much its ops take more or less than by
themselves. Where nothing is predicted, the forecast is the sum of op times exactly.

Trained with PyTorch Geometric in `learn/interaction.py`; what is here needs NumPy alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.cost.files import check_numbers, load_arrays, reading, save_arrays
from foretell.cost.roofline import price_calls
from foretell.errors import ModelError
from foretell.graph import PHASES, Graph, Signature
from foretell.hardware import Device

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FILE: Final = "interaction.safetensors"
VERSION: Final = 1
MAX_CORRECTION: Final = 0.3  # logarithm beyond which no op is corrected
PLAIN: Final = ("seconds", "over_roofline", "flops", "bytes", "intensity", "of_cache", "cached", "position", *PHASES,
                "count", "share", "log_share", "step_seconds", "training")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A step as the network sees it before anything is priced: one node for each signature that launches a kernel."""

    signatures: Sequence[Signature]  # of each node
    count: Floats  # runs of a node's ops in the step
    flops: Floats
    traffic: Floats
    least: Floats  # seconds at the roofline
    cached: Floats  # part of what its ops read that was touched so lately that it is in the cache
    position: Floats  # in the step, from 0 to 1, on average
    phases: Floats
    makes: Ints  # edges: the node that wrote last what another reads
    takes: Ints
    often: Floats  # how often an edge is there
    training: bool

    def __len__(self) -> int:
        return len(self.count)

    def shares(self, *, onto: bool = False) -> Floats:
        """Of each edge, among those into the node it ends at, or among those out of the node it comes from."""
        ends = self.makes if onto else self.takes
        return self.often / np.bincount(ends, weights=self.often, minlength=len(self))[ends]


def outline(graph: Graph, device: Device) -> Outline:
    """One walk over the ops in order."""
    prices, calls = price_calls(graph, device), graph.calls
    nodes: dict[Signature, int] = {}
    node_of_call = [
        nodes.setdefault(call.signature, len(nodes)) if price.work.kernel else -1
        for call, price in zip(calls.distinct, prices, strict=True)
    ]
    alone: dict[int, int] = {}  # node → the call that comes first
    for number, node in enumerate(node_of_call):
        alone.setdefault(node, number)
    sums = [[0.0] * 7 for _ in nodes]  # of each node: runs, place, cached bytes, read bytes, runs by phase
    sizes = [[x.distinct_bytes for x in signature.inputs] for signature in nodes]
    edges: dict[tuple[int, int], int] = {}
    writer: dict[int, int] = {}
    touched: dict[int, float] = {}  # storage → bytes moved in all when it was last used
    storage_of, cache, moved = [t.storage for t in graph.tensors], float(device.l2_bytes), 0.0
    phases = {phase: 4 + i for i, phase in enumerate(PHASES)}
    for place, (op, call) in enumerate(zip(graph.ops, calls.of_op, strict=True)):
        node = node_of_call[call]
        if node < 0:
            continue
        times, own = op.times, sums[node]
        own[0] += times
        own[1] += times * place
        own[phases[op.phase]] += times
        read = [storage_of[t] for t in op.inputs]
        for storage, size in zip(read, sizes[node], strict=True):
            age = moved - touched.get(storage, -math.inf)
            if age < cache:
                own[2] += times * min(size, cache - age)
            own[3] += times * size
            before = writer.get(storage)
            if before is not None:
                edges[before, node] = edges.get((before, node), 0) + times
            touched[storage] = moved
        moved += prices[call].work.traffic
        for storage in [storage_of[t] for t in op.outputs] + [read[i] for i in op.signature.mutates]:
            writer[storage], touched[storage] = node, moved
    table = np.array(sums).reshape(-1, 7)
    count = table[:, 0]
    least = [prices[alone[node]] for node in range(len(nodes))]
    pairs = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    return Outline(
        signatures=tuple(nodes), count=count, flops=np.array([p.work.flops for p in least]),
        traffic=np.array([p.work.traffic for p in least], dtype=np.float64), least=np.array([p.seconds for p in least]),
        cached=table[:, 2] / np.maximum(table[:, 3], 1.0), position=table[:, 1] / np.maximum(count * len(graph.ops), 1.0),
        phases=table[:, 4:] / np.maximum(count, 1.0)[:, None], makes=pairs[:, 0], takes=pairs[:, 1],
        often=np.array(list(edges.values()), dtype=np.float64), training=graph.training,
    )  # fmt: skip


def node_features(step: Outline, seconds: Floats, device: Device) -> Floats:
    """What a node knows of itself; `PLAIN` names the columns. Its family is apart."""
    whole = max(float(seconds @ step.count), 1e-12)
    share = seconds * step.count / whole
    traffic = np.maximum(step.traffic, 1.0)
    ridge = device.peak("bf16") / device.bandwidth
    return np.column_stack([
        np.log(np.maximum(seconds, 1e-9) * 1e6), np.log(np.maximum(seconds, 1e-9) / np.maximum(step.least, 1e-8)),
        np.log1p(step.flops), np.log(traffic), np.log1p(step.flops / traffic / ridge), np.log(traffic / device.l2_bytes),
        step.cached, step.position, step.phases, np.log(np.maximum(step.count, 1.0)), share, np.log(share + 1e-6),
        np.full(len(share), math.log(whole * 1e3)), np.full(len(share), float(step.training)),
    ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """The trained network."""

    families: tuple[str, ...]  # of ops, in the order of their columns
    weights: Mapping[str, npt.NDArray[np.float32]]
    strength: float = 1.0  # how much of a prediction held on families it had not seen; 0: the sum of op times

    def correct(self, step: Outline, seconds: Floats, families: Sequence[str], device: Device) -> Floats:
        """The logarithm of what each node's ops take in this step over what they take by themselves."""
        if not self.strength:
            return np.zeros(len(step))
        w = self.weights
        with np.errstate(all="ignore"):
            head = self._states(step, seconds, families, device) @ w["head.weight"].T + w["head.bias"]
        if not np.all(np.isfinite(head)):
            raise ModelError("the interaction network answers with what is no number. Fit it anew: foretell fit")
        return np.asarray(self.strength * MAX_CORRECTION * np.tanh(head[:, 0].astype(np.float64)), dtype=np.float64)

    def embed(self, step: Outline, seconds: Floats, families: Sequence[str], device: Device) -> Floats:
        """A step as one vector: its nodes' states, each by its part of the step."""
        share = seconds * step.count / max(float(seconds @ step.count), 1e-12)
        return np.asarray(share @ self._states(step, seconds, families, device), dtype=np.float64)

    def _states(
        self, step: Outline, seconds: Floats, families: Sequence[str], device: Device
    ) -> npt.NDArray[np.float32]:
        w = self.weights
        x = (node_table(step, seconds, families, self.families, device) - w["mean"]) / w["scale"]
        state = np.maximum(x.astype(np.float32) @ w["encode.weight"].T + w["encode.bias"], 0)
        share = (seconds * step.count / max(float(seconds @ step.count), 1e-12)).astype(np.float32)
        into, onto = _Sum(step.makes, step.takes, step.shares()), _Sum(step.takes, step.makes, step.shares(onto=True))
        number = 0
        while f"rounds.{number}.own.weight" in w:
            at = f"rounds.{number}."
            received = (
                state @ w[f"{at}own.weight"].T + w[f"{at}own.bias"] + into(state @ w[f"{at}into.weight"].T)
                + onto(state @ w[f"{at}onto.weight"].T) + (share @ state) @ w[f"{at}whole.weight"].T
            )  # fmt: skip
            state = state + np.maximum(received, 0)
            number += 1
        return np.asarray(state, dtype=np.float32)

    def save(self, folder: Path) -> None:
        about = {"families": json.dumps(self.families), "columns": json.dumps(PLAIN), "strength": repr(self.strength)}
        save_arrays(folder / FILE, self.weights, version=VERSION, **about)

    @classmethod
    def load(cls, path: Path) -> Interaction:
        with reading(path, "interaction network"):
            weights, about = load_arrays(path, version=VERSION)
            if tuple(json.loads(about["columns"])) != PLAIN:
                raise ModelError(f"{path} was written by another version of Foretell. Fit it anew: foretell fit")
            families = tuple(map(str, json.loads(about["families"])))
            check_numbers("strength", strength := float(about["strength"]), dims=0, least=0, most=1)
            _check_weights(weights, len(PLAIN) + len(families))
            return cls(families=families, weights=weights, strength=strength)


def _check_weights(weights: Mapping[str, npt.NDArray[np.float32]], columns: int) -> None:
    """Whether the arrays of a file fit each other, and hold numbers."""
    hidden = len(weights["encode.bias"])
    shapes = {"mean": (columns,), "scale": (columns,), "encode.weight": (hidden, columns), "encode.bias": (hidden,),
              "head.weight": (1, hidden), "head.bias": (1,)}  # fmt: skip
    rounds = {name.split(".")[1] for name in weights if name.startswith("rounds.")}
    for number in range(len(rounds)):
        shapes[f"rounds.{number}.own.bias"] = (hidden,)
        shapes |= {f"rounds.{number}.{part}.weight": (hidden, hidden) for part in ("own", "into", "onto", "whole")}
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise ValueError("arrays of other shapes than a network has")
    for name, array in weights.items():
        check_numbers(name, array, dims=array.ndim)
    check_numbers("scale", weights["scale"], least=1e-9)


class _Sum:
    """Adds up what nodes send along edges, each by its share, at the nodes they lead to."""

    def __init__(self, makes: Ints, takes: Ints, share: Floats) -> None:
        order = np.argsort(takes, kind="stable")
        self._makes, self._share = makes[order], share[order].astype(np.float32)[:, None]
        self._ends, self._starts = np.unique(takes[order], return_index=True)

    def __call__(self, sent: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        out = np.zeros_like(sent)
        if len(self._ends):
            out[self._ends] = np.add.reduceat(sent[self._makes] * self._share, self._starts)
        return out


def node_table(step: Outline, seconds: Floats, families: Sequence[str], known: Sequence[str], device: Device) -> Floats:
    """All that a node knows of itself: its numbers, and its family as one of the known."""
    kinds = np.array(families)[:, None] == np.array(known)[None, :]
    return np.hstack([node_features(step, seconds, device), kinds])
