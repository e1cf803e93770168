"""Many of Driple's fits at once: the same networks and updates as one at a time, as one tensor over fits, for one GPU.

One network is too small for a GPU: most of an update is the start of kernels. Fits of the same shape are stacked along a first
dimension; each has its own rows, batches, best epoch and end, and Adam's numbers are of each weight alone, so that none
learns from another. A fit that has ended is taken out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from foretell.errors import InputError
from foretell.methods.driple.method import Driple, DripleSettings, Fitted, parted
from foretell.methods.driple.network import GROUPS_OF_PARAMETERS, Network
from foretell.methods.protocol import Example

Weights = dict[str, Tensor]
Say = Callable[[str], None]
_BETAS: Final = (0.9, 0.999)  # as torch's Adam has them
_TINY: Final = 1e-8
_GROUPS_TAKEN: Final = 0.8  # of the fits that are stacked still go on: with fewer, the others are taken out


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One fit: what it learns from, what it is question in the end, and what it is tailored from."""

    train: Sequence[Example]
    test: Sequence[Example]
    seed: int
    known: Fitted | None = None  # None: from nothing
    tune: Sequence[str] = GROUPS_OF_PARAMETERS


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a fit."""

    curve: list[float] = field(
        default_factory=list
    )  # mean square on what is left out, before the first epoch and after each
    best: float = float("inf")
    best_epoch: int = 0
    ended: bool = False  # by patience; else time was up
    fitted: Fitted


@dataclass(slots=True)
class _Batch:
    """Graphs of every fit: fits × nodes, and where each node lies among the nodes of its graph."""

    x: Tensor
    source: Tensor
    target: Tensor
    weights: Tensor
    nodes: Tensor  # fits × graphs × places: which node
    real: Tensor  # whether there is one
    labels: Tensor

    def to(self, device: str) -> _Batch:
        return _Batch(*(getattr(self, name).to(device) for name in self.__slots__))

    def of(self, chosen: Tensor) -> _Batch:
        return _Batch(*(getattr(self, name)[chosen] for name in self.__slots__))


def fit_all(
    given: Sequence[Given], settings: DripleSettings, *, seconds: float = 1e9, say: Say = lambda text: None
) -> list[Outcome]:
    """Until all have ended by patience, or time is up; the weights of each one's best epoch stay."""
    methods = [Driple(replace(settings, seed=one.seed)) for one in given]
    found = [Outcome(fitted=m.beginning(one.train, one.known, one.tune)) for m, one in zip(methods, given, strict=True)]
    parts = [parted(one.train, settings.validated) for one in given]
    generators = [np.random.default_rng(one.seed) for one in given]
    orders = [[seen[i] for i in g.permutation(len(seen))] for g, (seen, _) in zip(generators, parts, strict=True)]
    size = settings.batch
    counts = {-(-len(order) // size) for order in orders}
    if len(counts) > 1 or len({f.fitted.network.made_with for f in found}) > 1:
        raise InputError(
            "fits are stacked where they have as many batches, targets and rounds. Fit them one at a time."
        )
    count = counts.pop()
    rows = [[order[i * size : (i + 1) * size] for order in orders] for i in range(count)]
    batches = _alike([_stacked(methods, found, each) for each in rows])
    exam = _stacked(methods, found, [left_out for _, left_out in parts]).to(settings.trains_on)
    whole = _Batch(*(torch.stack([getattr(b, n) for b in batches], 1) for n in _Batch.__slots__)).to(settings.trains_on)
    names = list(found[0].fitted.network.state_dict())
    shape = found[0].fitted.network.shape
    weights = {
        name: torch.stack([f.fitted.network.state_dict()[name] for f in found]).to(settings.trains_on) for name in names
    }
    learning = [name for name in names if _learns(found[0].fitted.network, name)]
    first, second = ({name: torch.zeros_like(weights[name]) for name in learning} for _ in range(2))
    going, began = list(range(len(given))), time.monotonic()
    kept = {name: value.clone() for name, value in weights.items()}
    with torch.no_grad():
        for f, error in zip(found, _losses(weights, exam, shape).tolist(), strict=True):
            f.curve.append(error)
    step = 0
    for epoch in range(1, settings.epochs + 1):
        turns = np.stack([g.permutation(count) for g in generators])
        for turn in torch.tensor(turns[going], device=settings.trains_on).T:
            step += 1
            batch = _Batch(
                *(getattr(whole, n)[torch.arange(len(going), device=turn.device), turn] for n in _Batch.__slots__)
            )
            for name in learning:
                weights[name] = weights[name].detach().requires_grad_()
            gradients = torch.autograd.grad(_losses(weights, batch, shape).sum(), [weights[n] for n in learning])
            with torch.no_grad():
                for name, gradient in zip(learning, gradients, strict=True):
                    slope = gradient + settings.decay * weights[name]
                    first[name].lerp_(slope, 1 - _BETAS[0])
                    second[name].mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
                    spread = (second[name] / (1 - _BETAS[1] ** step)).sqrt_().add_(_TINY)
                    weights[name] = weights[name] - settings.rate / (1 - _BETAS[0] ** step) * first[name] / spread
        with torch.no_grad():
            errors = _losses(weights, exam, shape).tolist()
        ended = []
        for place, (i, error) in enumerate(zip(going, errors, strict=True)):
            f = found[i]
            f.curve.append(error)
            if error < f.best:
                f.best, f.best_epoch = error, epoch
                for name in names:
                    kept[name][i] = weights[name][place].detach()
            elif epoch - f.best_epoch >= settings.patience:
                f.ended = True
                ended.append(place)
        late = time.monotonic() - began > seconds
        if epoch % 50 == 0 or late:
            say(
                f"epoch {epoch}, {time.monotonic() - began:.0f} s, {sum(not f.ended for f in found)} of {len(found)} go on"
            )
        if late or all(f.ended for f in found):
            break
        if sum(not found[i].ended for i in going) < _GROUPS_TAKEN * len(going):
            stay = torch.tensor([p for p, i in enumerate(going) if not found[i].ended], device=settings.trains_on)
            going = [i for i in going if not found[i].ended]
            whole, exam = whole.of(stay), exam.of(stay)
            weights = {name: value.detach()[stay] for name, value in weights.items()}
            first, second = ({name: value[stay] for name, value in some.items()} for some in (first, second))
    for i, f in enumerate(found):
        f.fitted.network.load_state_dict({name: kept[name][i].cpu() for name in names})
        # What goes on past its end while others do is cut off.
        f.curve = f.curve[: f.best_epoch + settings.patience + 1]
    return found


def _learns(network: Network, name: str) -> bool:
    return dict(network.named_parameters())[name].requires_grad


def _stacked(methods: Sequence[Driple], found: Sequence[Outcome], rows: Sequence[Sequence[Example]]) -> _Batch:
    parts = [_one(method, f.fitted, some) for method, f, some in zip(methods, found, rows, strict=True)]
    return _Batch(*(_padded([getattr(part, n) for part in parts], _FILL.get(n, 0.0)) for n in _Batch.__slots__))


_FILL: Final[Mapping[str, Any]] = {"labels": float("nan"), "source": 0, "target": 0, "nodes": 0, "real": False}


def _one(method: Driple, fitted: Fitted, some: Sequence[Example]) -> _Batch:
    graphs, ways = method.batch_of(fitted, [e.query for e in some])
    sizes = graphs.ptr.diff().tolist()
    nodes = torch.zeros(len(sizes), max(sizes), dtype=torch.long)
    real = torch.zeros_like(nodes, dtype=torch.bool)
    for row, (start, size) in enumerate(zip(graphs.ptr.tolist(), sizes, strict=False)):
        nodes[row, :size] = torch.arange(start, start + size)
        real[row, :size] = True
    labels = torch.tensor(method.labels_of(some, fitted), dtype=torch.float32)
    source, target = ways[0].looped
    return _Batch(graphs.x, source, target, ways[0].weights, nodes, real, labels)


def _padded(parts: Sequence[Tensor], fill: Any) -> Tensor:
    """Stacked, each made as large as the largest."""
    size = [max(part.shape[d] for part in parts) for d in range(parts[0].dim())]
    whole = parts[0].new_full((len(parts), *size), fill)
    for row, part in zip(whole, parts, strict=True):
        row[tuple(slice(0, n) for n in part.shape)] = part
    return whole


def _alike(batches: Sequence[_Batch]) -> list[_Batch]:
    """All as large as the largest, so that they can be stacked."""
    columns = {n: _padded([getattr(b, n) for b in batches], _FILL.get(n, 0.0)) for n in _Batch.__slots__}
    return [_Batch(*(columns[n][i] for n in _Batch.__slots__)) for i in range(len(batches))]


def _losses(weights: Mapping[str, Tensor], batch: _Batch, shape: Any) -> Tensor:
    """Mean square of each fit; what was not measured, and what only fills up, does not count."""
    predicted = forward(weights, batch, shape)
    known = ~torch.isnan(batch.labels)
    off = torch.where(known, predicted - batch.labels.nan_to_num(), 0.0)
    return (off**2).sum((1, 2)) / known.sum((1, 2))


def forward(weights: Mapping[str, Tensor], batch: _Batch, shape: Any) -> Tensor:
    """What `Network` does, of every fit with its own weights: fits × graphs × targets."""
    fits, count, _ = batch.x.shape
    start = torch.arange(fits, device=batch.x.device)[:, None] * count
    source, target = ((ends + start).reshape(-1) for ends in (batch.source, batch.target))
    share = batch.weights.reshape(-1, 1)

    def convolution(name: str, x: Tensor) -> Tensor:
        sent = torch.bmm(x, weights[f"{name}.along.0.lin.weight"].mT).reshape(fits * count, -1)
        heard = torch.zeros_like(sent).index_add(0, target, share * sent.index_select(0, source))
        bias = weights[f"{name}.along.0.bias"][:, None]
        return functional.leaky_relu(heard.reshape(fits, count, -1) + bias)

    def updated(state: Tensor, heard: Tensor) -> Tensor:
        """The GRU reads the state, and what was heard is what it remembers, as the release has it."""
        read = torch.baddbmm(weights["update.bias_ih"][:, None], state, weights["update.weight_ih"].mT)
        remembered = torch.baddbmm(weights["update.bias_hh"][:, None], heard, weights["update.weight_hh"].mT)
        return _gate(read, remembered, heard)

    padded = functional.pad(batch.x, (0, shape.width - batch.x.shape[2]))
    state = updated(padded, convolution("embed", batch.x))
    early = shape.rounds // 2
    late = "late" if "late.along.0.bias" in weights else "early"
    for turn in range(1, shape.rounds):
        state = updated(state, convolution("early" if turn < early else late, state))
    hidden = _pooled(weights, state, batch, shape.readings)
    for layer in (0, 2):
        hidden = functional.relu(_dense(weights, layer, hidden))
    return functional.leaky_relu(_dense(weights, 4, hidden))


def _dense(weights: Mapping[str, Tensor], layer: int, x: Tensor) -> Tensor:
    return torch.baddbmm(weights[f"readout.{layer}.bias"][:, None], x, weights[f"readout.{layer}.weight"].mT)


def _gate(read: Tensor, remembered: Tensor, state: Tensor) -> Tensor:
    """Of a GRU: reset, update, new."""
    (r, z, n), (hr, hz, hn) = read.chunk(3, 2), remembered.chunk(3, 2)
    reset, keep = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
    new = torch.tanh(n + reset * hn)
    return new + keep * (state - new)


def _pooled(weights: Mapping[str, Tensor], state: Tensor, batch: _Batch, readings: int) -> Tensor:
    """Set2Set."""
    fits, graphs, places = batch.nodes.shape
    width = state.shape[2]
    index = batch.nodes.reshape(fits, -1, 1).expand(-1, -1, width)
    nodes = state.gather(1, index).reshape(fits * graphs, places, width)
    empty = ~batch.real.any(2)  # a graph that only fills up reads its first place
    real = batch.real.clone()
    real[..., 0] |= empty
    nowhere = (
        torch.zeros(real.shape, device=state.device).masked_fill(~real, float("-inf")).reshape(fits * graphs, places)
    )
    query, memory = (state.new_zeros(fits, graphs, width) for _ in range(2))
    pooled = state.new_zeros(fits, graphs, 2 * width)
    for _ in range(readings):
        gates = (
            torch.baddbmm(weights["pool.lstm.bias_ih_l0"][:, None], pooled, weights["pool.lstm.weight_ih_l0"].mT)
            + torch.baddbmm(weights["pool.lstm.bias_hh_l0"][:, None], query, weights["pool.lstm.weight_hh_l0"].mT)
        )  # fmt: skip
        i, f, g, o = gates.chunk(4, 2)
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
        query = torch.sigmoid(o) * torch.tanh(memory)
        question = query.reshape(fits * graphs, width, 1)
        shares = torch.softmax(torch.bmm(nodes, question)[..., 0] + nowhere, dim=1)
        heard = torch.bmm(shares[:, None], nodes)[:, 0].reshape(fits, graphs, width)
        pooled = torch.cat([query, heard], dim=2)
    return pooled
