"""Many of Driple's fits at once: the same networks and updates as one at a time, as one tensor over fits, for one GPU.

One network is too small for a GPU: most of an update is the start of kernels. Fits of the same shape are stacked along a first
dimension; each has its own rows, batches, best epoch and end, and Adam's numbers are of each weight alone, so that none
learns from another. A fit that has ended is taken out. An update is recorded once and played again, and a stack can be kept in
a file and gone on with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
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
_WARM: Final = 3  # updates before one is recorded, as libraries choose their kernels in the first
_STATE: Final = "state"  # in a file's header
_EVERY: Final = 50  # epochs
_KEPT: Final = 100  # seconds, after which a file is written anew


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
    """Graphs of every fit, each with as many places for nodes: fits × graphs × places."""

    x: Tensor
    links: Tensor  # … × places: what a node hears of another
    real: Tensor  # whether there is a node
    labels: Tensor  # fits × graphs × targets

    def to(self, device: str) -> _Batch:
        return _Batch(*(getattr(self, name).to(device) for name in self.__slots__))

    def of(self, *chosen: Tensor) -> _Batch:
        return _Batch(*(getattr(self, name)[chosen] for name in self.__slots__))


def fit_all(
    given: Sequence[Given], settings: DripleSettings, *, seconds: float = 1e9, say: Say = lambda text: None,
    kept: Path | None = None,
) -> list[Outcome]:  # fmt: skip
    """Until all have ended by patience, or time is up; the weights of each one's best epoch stay. With a file, a later call goes
    on where an earlier one had to stop."""
    stack = _Stack(given, settings)
    if kept is not None and kept.exists():
        stack.read(kept)
        say(f"goes on after epoch {stack.epoch}")
    began = written = time.monotonic()
    while stack.going and stack.epoch < settings.epochs:
        stack.train()
        now = time.monotonic()
        if stack.epoch % _EVERY == 0 or now - began > seconds:
            say(f"epoch {stack.epoch}, {now - began:.0f} s, {stack.open} of {len(given)} go on")
        if now - began > seconds:
            break
        if kept is not None and now - written > _KEPT:
            stack.write(kept)
            written = now
    if kept is not None:
        stack.write(kept)
    return stack.outcomes()


class _Stack:
    """Fits that go on, at an epoch."""

    def __init__(self, given: Sequence[Given], settings: DripleSettings) -> None:
        self.settings, self.epoch, on = settings, 0, settings.trains_on
        methods = [Driple(replace(settings, seed=one.seed)) for one in given]
        self.found = [
            Outcome(fitted=m.beginning(one.train, one.known, one.tune)) for m, one in zip(methods, given, strict=True)
        ]
        self.generators = [np.random.default_rng(one.seed) for one in given]
        parts = [parted(one.train, settings.validated) for one in given]
        order = [_dealt(*part) for part in zip(self.generators, parts, strict=True)]
        self.whole = _stacked(methods, self.found, order, settings.batch).to(on)
        exam = _stacked(methods, self.found, [left_out for _, left_out in parts], None).to(on)
        self.exam = exam.of(torch.arange(len(given), device=on), torch.zeros(len(given), dtype=torch.long, device=on))
        network = self.found[0].fitted.network
        self.shape, self.learning = network.shape, [n for n in network.state_dict() if _learns(network, n)]
        states = [f.fitted.network.state_dict() for f in self.found]
        self.weights: Weights = {name: torch.stack([s[name] for s in states]).to(on) for name in states[0]}
        self.first, self.second = (
            {name: torch.zeros_like(self.weights[name]) for name in self.learning} for _ in range(2)
        )
        self.best = {name: value.clone() for name, value in self.weights.items()}
        self.updates = torch.zeros((), dtype=torch.float64, device=on)
        self.going = list(range(len(given)))
        with torch.no_grad():
            for f, error in zip(self.found, _losses(self.weights, self.exam, self.shape).tolist(), strict=True):
                f.curve.append(error)
        self._record()

    @property
    def open(self) -> int:
        return sum(not f.ended for f in self.found)

    def train(self) -> None:
        """One epoch of all."""
        turns = np.stack([g.permutation(self.whole.x.shape[1]) for g in self.generators])
        for turn in torch.tensor(turns[self.going]).T:
            self._turn.copy_(turn)
            self._update()
        self._validate()
        self.epoch += 1
        for place, (i, error) in enumerate(zip(self.going, self._errors.tolist(), strict=True)):
            self._note(self.found[i], i, place, error)
        if self.open == 0:
            self.going = []
        elif self.open < _GROUPS_TAKEN * len(self.going):
            self._take_out()

    def outcomes(self) -> list[Outcome]:
        for i, f in enumerate(self.found):
            f.fitted.network.load_state_dict({name: value[i].cpu() for name, value in self.best.items()})
            # What goes on past its end while others do is cut off.
            f.curve = f.curve[: f.best_epoch + self.settings.patience + 1]
        return self.found

    def _note(self, found: Outcome, i: int, place: int, error: float) -> None:
        found.curve.append(error)
        if found.ended:
            return
        if error < found.best:
            found.best, found.best_epoch = error, self.epoch
            for name, value in self.weights.items():
                self.best[name][i] = value[place]
        elif self.epoch - found.best_epoch >= self.settings.patience:
            found.ended = True

    def _take_out(self) -> None:
        """Those that have ended."""
        stay = torch.tensor([p for p, i in enumerate(self.going) if not self.found[i].ended], device=self._turn.device)
        self.going = [i for i in self.going if not self.found[i].ended]
        self.whole, self.exam = self.whole.of(stay), self.exam.of(stay)
        for own in (self.weights, self.first, self.second):
            for name in list(own):
                own[name] = own[name][stay]
        self._record()

    # One update, and a look at what is left out.

    def _record(self) -> None:
        """Kernels are started as a whole from now on."""
        on, count = self.updates.device, len(self.going)
        self._turn, self._errors = torch.zeros(count, dtype=torch.long, device=on), torch.zeros(count, device=on)
        self._fits = torch.arange(count, device=on)
        tensors = [*self.weights.values(), *self.first.values(), *self.second.values(), self.updates]
        before = [one.clone() for one in tensors]
        self._update, self._validate = (_recorded(what, on) for what in (self._one_update, self._one_look))
        with torch.no_grad():
            for one, was in zip(tensors, before, strict=True):
                one.copy_(was)

    def _one_update(self) -> None:
        batch = self.whole.of(self._fits, self._turn)
        leaves = {name: self.weights[name].detach().requires_grad_() for name in self.learning}
        loss = _losses({**self.weights, **leaves}, batch, self.shape).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            self.updates += 1
            low, high = ((1 - beta**self.updates).float() for beta in _BETAS)
            for name, gradient in zip(self.learning, gradients, strict=True):
                first, second, own = self.first[name], self.second[name], self.weights[name]
                slope = gradient + self.settings.decay * own
                first.lerp_(slope, 1 - _BETAS[0])
                second.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
                own.sub_(self.settings.rate / low * first / (second / high).sqrt_().add_(_TINY))

    def _one_look(self) -> None:
        with torch.no_grad():
            self._errors.copy_(_losses(self.weights, self.exam, self.shape))

    # Kept in a file.

    def write(self, path: Path) -> None:
        """All that a later call needs."""
        about = {
            "epoch": self.epoch, "going": self.going, "updates": self.updates.item(),
            "generators": [g.bit_generator.state for g in self.generators],
            "fits": [[f.curve, f.best, f.best_epoch, f.ended] for f in self.found],
        }  # fmt: skip
        own = {"weights": self.weights, "first": self.first, "second": self.second, "best": self.best}
        tensors = {f"{part} {name}": value for part, some in own.items() for name, value in some.items()}
        partial = path.with_suffix(".part")
        save_file({n: v.contiguous().cpu() for n, v in tensors.items()}, partial, {_STATE: json.dumps(about)})
        partial.replace(path)

    def read(self, path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()[_STATE])
            tensors = {name: file.get_tensor(name) for name in [*file.keys()]}
        own = {"weights": self.weights, "first": self.first, "second": self.second, "best": self.best}
        for part, some in own.items():
            for name, value in some.items():
                some[name] = tensors[f"{part} {name}"].to(value.device)
        self.epoch = about["epoch"]
        self.updates.fill_(about["updates"])
        for generator, state in zip(self.generators, about["generators"], strict=True):
            generator.bit_generator.state = state
        for f, (curve, best, best_epoch, ended) in zip(self.found, about["fits"], strict=True):
            f.curve, f.best, f.best_epoch, f.ended = curve, best, best_epoch, ended
        stay = torch.tensor([self.going.index(i) for i in about["going"]], device=self.updates.device)
        self.going = about["going"]
        self.whole, self.exam = self.whole.of(stay), self.exam.of(stay)
        self._record()


def _recorded(what: Callable[[], None], on: torch.device) -> Callable[[], None]:
    if on.type != "cuda":
        return what
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM):
            what()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        what()
    return graph.replay


def _learns(network: Network, name: str) -> bool:
    return dict(network.named_parameters())[name].requires_grad


# Rows as tensors.


def _dealt(generator: np.random.Generator, part: tuple[Sequence[Example], Sequence[Example]]) -> list[Example]:
    seen, _ = part
    return [seen[i] for i in generator.permutation(len(seen))]


def _stacked(
    methods: Sequence[Driple], found: Sequence[Outcome], rows: Sequence[Sequence[Example]], size: int | None
) -> _Batch:
    """Fits × batches × what each has; one batch of all where no size is given."""
    apart = [[own[i : i + (size or len(own))] for i in range(0, len(own), size or len(own))] for own in rows]
    if len({len(own) for own in apart}) > 1 or len({f.fitted.network.made_with for f in found}) > 1:
        raise InputError(
            "fits are stacked where they have as many batches, targets and rounds. Fit them one at a time."
        )
    each = [
        [_one(m, f.fitted, some) for some in own] for m, f, own in zip(methods, found, apart, strict=True)
    ]  # fmt: skip
    flat = [batch for own in each for batch in own]
    whole = _Batch(*(_padded([getattr(b, n) for b in flat], _FILL[n]) for n in _Batch.__slots__))
    return _Batch(*(getattr(whole, n).unflatten(0, (len(rows), -1)) for n in _Batch.__slots__))


_FILL: Final[Mapping[str, Any]] = {"x": 0.0, "links": 0.0, "real": False, "labels": float("nan")}


def _one(method: Driple, fitted: Fitted, some: Sequence[Example]) -> _Batch:
    graphs, ways = method.batch_of(fitted, [e.query for e in some])
    starts, sizes = graphs.ptr[:-1], graphs.ptr.diff()
    most = int(sizes.max())
    real = torch.arange(most) < sizes[:, None]
    x = torch.zeros(len(sizes), most, graphs.x.shape[1])
    x[real] = graphs.x
    source, target = ways[0].looped
    graph = graphs.batch[target]
    links = torch.zeros(len(sizes), most, most)
    places = graph, target - starts[graph], source - starts[graph]
    links.index_put_(places, ways[0].weights, accumulate=True)
    return _Batch(x, links, real, torch.tensor(method.labels_of(some, fitted), dtype=torch.float32))


def _padded(parts: Sequence[Tensor], fill: Any) -> Tensor:
    """Stacked, each made as large as the largest."""
    size = [max(part.shape[d] for part in parts) for d in range(parts[0].dim())]
    whole = parts[0].new_full((len(parts), *size), fill)
    for row, part in zip(whole, parts, strict=True):
        row[tuple(slice(0, n) for n in part.shape)] = part
    return whole


# What the network does.


def _losses(weights: Mapping[str, Tensor], batch: _Batch, shape: Any) -> Tensor:
    """Mean square of each fit; what was not measured, and what only fills up, does not count."""
    predicted = forward(weights, batch, shape)
    known = ~torch.isnan(batch.labels)
    off = torch.where(known, predicted - batch.labels.nan_to_num(), 0.0)
    return (off**2).sum((1, 2)) / known.sum((1, 2))


def forward(weights: Mapping[str, Tensor], batch: _Batch, shape: Any) -> Tensor:
    """What `Network` does, of every fit with its own weights: fits × graphs × targets."""
    fits, graphs, places, _ = batch.x.shape
    links = batch.links.flatten(0, 1)

    def convolution(name: str, x: Tensor) -> Tensor:
        sent = torch.bmm(x, weights[f"{name}.along.0.lin.weight"].mT)
        heard = torch.bmm(links, sent.reshape(fits * graphs, places, -1)).reshape(sent.shape)
        return functional.leaky_relu(heard + weights[f"{name}.along.0.bias"][:, None])

    def updated(state: Tensor, heard: Tensor) -> Tensor:
        """The GRU reads the state, and what was heard is what it remembers, as the release has it."""
        read = torch.baddbmm(weights["update.bias_ih"][:, None], state, weights["update.weight_ih"].mT)
        remembered = torch.baddbmm(weights["update.bias_hh"][:, None], heard, weights["update.weight_hh"].mT)
        return _gate(read, remembered, heard)

    x = batch.x.flatten(1, 2)
    padded = functional.pad(x, (0, shape.width - x.shape[2]))
    state = updated(padded, convolution("embed", x))
    early = shape.rounds // 2
    late = "late" if "late.along.0.bias" in weights else "early"
    for turn in range(1, shape.rounds):
        state = updated(state, convolution("early" if turn < early else late, state))
    hidden = _pooled(weights, state.reshape(fits * graphs, places, -1), batch.real, shape.readings)
    for layer in (0, 2):
        hidden = functional.relu(_dense(weights, layer, hidden))
    return functional.leaky_relu(_dense(weights, 4, hidden))


def _dense(weights: Mapping[str, Tensor], layer: int, x: Tensor) -> Tensor:
    return torch.baddbmm(weights[f"readout.{layer}.bias"][:, None], x, weights[f"readout.{layer}.weight"].mT)


def _gate(read: Tensor, remembered: Tensor, state: Tensor) -> Tensor:
    """Of a GRU: reset, update, new."""
    if state.is_cuda:  # in one kernel
        flat = [one.flatten(0, 1) for one in (read, remembered, state)]
        fused: Tensor = torch.ops.aten._thnn_fused_gru_cell(*flat)[0]
        return fused.reshape(state.shape)
    (r, z, n), (hr, hz, hn) = read.chunk(3, 2), remembered.chunk(3, 2)
    reset, keep = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
    new = torch.tanh(n + reset * hn)
    return new + keep * (state - new)


def _pooled(weights: Mapping[str, Tensor], nodes: Tensor, real: Tensor, readings: int) -> Tensor:
    """Set2Set."""
    fits, graphs, _ = real.shape
    width = nodes.shape[2]
    empty = ~real.any(2, keepdim=True)  # a graph that only fills up reads its first place
    first = torch.arange(real.shape[2], device=real.device) == 0
    unreal = ~(real | (empty & first)).flatten(0, 1)
    nowhere = torch.zeros(unreal.shape, device=nodes.device).masked_fill(unreal, float("-inf"))
    query, memory = (nodes.new_zeros(fits, graphs, width) for _ in range(2))
    pooled = nodes.new_zeros(fits, graphs, 2 * width)
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
