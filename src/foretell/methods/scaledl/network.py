"""The network across layers: T = Σ tᵢ + readout, over the directed graph of a step.

A node is a layer: its features, the time its model gives it, and what kind it is. After two or three rounds of messages
between producers and consumers every node says two things: by how much its neighbourhood changes its time, and what the
host pays to issue it. D is the sum of the changed times, H the sum of what the host pays; the step takes the longer of the
two, smoothly, and what communication adds: T = (Dᵖ + Hᵖ)^(1/p) + C. Everything beyond Σ tᵢ is the readout. It starts at
D = Σ tᵢ, and with the network left out T is Σ tᵢ + C, the additive model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from foretell.errors import InputError
from foretell.methods.scaledl.features import GENERAL, ROUNDS, SPREAD, Floats, Layer, Sheet
from foretell.methods.scaledl.layers import descend

_ISSUING: Final = 5e-6  # seconds a host pays for an op, about: where H starts
_ALONE: Final = 1e-5  # seconds of an op, where a network that is told no times starts
_NOTHING: Final = 1e-7  # seconds of a step that launches no kernel: its logarithm must be a number
_FAR: Final = 5.0  # deviations: nothing the network sees is farther out
_IDEAL: Final = SPREAD.index("ideal")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """What is chosen of the network."""

    rounds: int = 2  # of messages; 0: no network, the additive model
    width: int = 48
    epochs: int = 25
    rate: float = 4e-3
    batch: int = 12  # steps
    decay: float = 1e-3
    told_times: bool = True  # False: a whole-graph network, which sees no layer models
    seed: int = 0
    trains_on: str = "cpu"  # where torch trains it; a fitted one is on the CPU

    def __post_init__(self) -> None:
        if not 0 <= self.rounds <= ROUNDS:
            raise InputError(f"rounds of messages must be 0 to {ROUNDS}, got {self.rounds}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step for the network: its sheet, the seconds of its layers, and what was measured (nan: it was not)."""

    sheet: Sheet
    seconds: Floats  # of each of the sheet's layers
    device: float = math.nan
    step: float = math.nan


class _Round(nn.Module):
    """Messages from producers and from consumers, each with weights of their own."""

    def __init__(self, width: int) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.before = SAGEConv(width, width)
        self.after = SAGEConv(width, width, root_weight=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, before: Tensor, after: Tensor) -> Tensor:
        new: Tensor = nn.functional.silu(self.norm(self.before(h, before) + self.after(h, after)))
        return h + new


class _Network(nn.Module):
    def __init__(self, kinds: int, operators: int, settings: NetworkSettings) -> None:
        super().__init__()
        self.told = settings.told_times
        self.passes = settings.rounds > 0
        self.kind, self.operator = nn.Embedding(kinds + 1, 8), nn.Embedding(operators + 1, 8)
        self.enter = nn.Linear(len(GENERAL) + 1 + 16, settings.width)
        self.rounds = nn.ModuleList(_Round(settings.width) for _ in range(settings.rounds))
        self.says = nn.Sequential(nn.Linear(settings.width, settings.width), nn.SiLU(), nn.Linear(settings.width, 2))
        self.power = nn.Parameter(torch.tensor(1.0))
        self.talk = nn.Sequential(nn.Linear(len(SPREAD), 16), nn.SiLU(), nn.Linear(16, 1))
        for last in (self.says[-1], self.talk[-1]):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, b: _Batch) -> tuple[Tensor, Tensor]:
        """log of device time and of step time."""
        seconds = b.seconds if self.told else torch.full_like(b.seconds, _ALONE)
        host = torch.zeros_like(seconds)
        if self.passes:
            told = ((seconds.log() + 10.0) / 3.0)[:, None]
            h = nn.functional.silu(self.enter(torch.cat([b.x, told, self.kind(b.kind), self.operator(b.operator)], 1)))
            for each in self.rounds:
                h = each(h, b.before, b.after)
            says = self.says(h)
            seconds = seconds * says[:, 0].clamp(-8.0, 8.0).exp()
            host = _ISSUING * says[:, 1].clamp(-8.0, 8.0).exp()
        zeros = b.spread.new_zeros(len(b.spread))
        device = zeros.index_add(0, b.step, b.runs * seconds).clamp(min=_NOTHING)
        issued = zeros.index_add(0, b.step, b.runs * host)
        power = 1.0 + nn.functional.softplus(self.power * 3.0)
        longer = device * (1 + (issued / device).clamp(min=1e-4) ** power) ** (1 / power) if self.passes else device
        several = (b.spread[:, 1] > 0).float()
        ideal = b.ideal.exp() * several
        return device.log(), (longer + ideal * self.talk(b.spread)[:, 0].clamp(-8.0, 8.0).exp()).log()


@dataclass(slots=True)
class _Batch:
    x: Tensor
    kind: Tensor
    operator: Tensor
    seconds: Tensor
    runs: Tensor
    before: Tensor
    after: Tensor
    step: Tensor
    spread: Tensor
    ideal: Tensor
    wanted: Tensor  # steps × (device, step), logarithms

    def to(self, device: str) -> _Batch:
        return _Batch(*(getattr(self, f.name).to(device) for f in fields(self)))


@dataclass(slots=True)
class Across:
    """The fitted network, with what standardises its inputs."""

    settings: NetworkSettings = field(default_factory=NetworkSettings)
    network_: _Network | None = None
    mean_: Floats = field(default_factory=lambda: np.zeros(0))
    deviation_: Floats = field(default_factory=lambda: np.zeros(0))
    kinds_: dict[str, int] = field(default_factory=dict)
    operators_: dict[str, int] = field(default_factory=dict)

    def fit(self, steps: Sequence[Step]) -> Across:
        layers = [layer for s in steps for layer in s.sheet.layers]
        values = np.array([[layer.values[c] for c in GENERAL] for layer in layers])
        self.mean_, self.deviation_ = values.mean(axis=0), np.maximum(values.std(axis=0), 0.05)
        self.kinds_ = {k: i for i, k in enumerate(sorted({layer.kind for layer in layers}))}
        self.operators_ = {k: i for i, k in enumerate(sorted({layer.operator for layer in layers}))}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            network = _Network(len(self.kinds_), len(self.operators_), self.settings)
            ready = [self._batch([s]).to(self.settings.trains_on) for s in steps]
            network.to(self.settings.trains_on)
            if network.passes or any(s.sheet.spread.any() for s in steps):
                descend(
                    network, len(steps), lambda rows: _loss(network, _joined([ready[i] for i in rows.tolist()])), self.settings
                )  # fmt: skip
        self.network_ = network.cpu().eval()
        return self

    def say(self, steps: Sequence[Step]) -> tuple[Floats, Floats]:
        """Seconds of the device and of the step."""
        assert self.network_ is not None, "fit first"
        found = []
        with torch.no_grad():
            for s in steps:
                device, step = self.network_(self._batch([s]))
                found.append((device.exp().item(), step.exp().item()))
        said = np.array(found, dtype=np.float64).reshape(-1, 2)
        return said[:, 0], said[:, 1]

    def _batch(self, steps: Sequence[Step]) -> _Batch:
        return _joined([_batch_of(s, self._standard(s.sheet.layers), self._names(s.sheet.layers)) for s in steps])

    def _standard(self, layers: Sequence[Layer]) -> Floats:
        values = np.array([[layer.values[c] for c in GENERAL] for layer in layers]).reshape(len(layers), len(GENERAL))
        return np.clip((values - self.mean_) / self.deviation_, -_FAR, _FAR)

    def _names(self, layers: Sequence[Layer]) -> tuple[list[int], list[int]]:
        kinds, operators = self.kinds_, self.operators_
        return (
            [kinds.get(x.kind, len(kinds)) for x in layers],
            [operators.get(x.operator, len(operators)) for x in layers],
        )


def _batch_of(s: Step, x: Floats, names: tuple[list[int], list[int]]) -> _Batch:
    layer = s.sheet.layer

    def floats(values: Floats) -> Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return _Batch(
        x=floats(x[layer]), kind=torch.tensor(names[0], dtype=torch.long)[layer], operator=torch.tensor(names[1], dtype=torch.long)[layer],
        seconds=floats(s.seconds[layer]).clamp(min=1e-8), runs=floats(s.sheet.runs), before=torch.tensor(s.sheet.before),
        after=torch.tensor(s.sheet.after), step=torch.zeros(len(layer), dtype=torch.long),
        spread=floats(_scaled(s.sheet.spread))[None], ideal=floats(s.sheet.spread[None])[:, _IDEAL],
        wanted=floats(np.log([[s.device, s.step]])),
    )  # fmt: skip


def _scaled(spread: Floats) -> Floats:
    """Logarithms of bytes and rates, brought near one."""
    return np.asarray(spread * np.array([0.1, 1.0, 1.0, 0.1, 0.2, 1.0, 1.0, 1.0]), dtype=np.float64)


def _joined(parts: Sequence[_Batch]) -> _Batch:
    """Steps side by side as one graph."""
    starts = np.cumsum([0, *(len(p.runs) for p in parts[:-1])]).tolist()

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(p, name) for p in parts])

    def edges(name: str) -> Tensor:
        return torch.cat([getattr(p, name) + start for p, start in zip(parts, starts, strict=True)], 1)

    counts = torch.tensor([len(p.runs) for p in parts], device=parts[0].runs.device)
    return _Batch(
        x=cat("x"), kind=cat("kind"), operator=cat("operator"), seconds=cat("seconds"), runs=cat("runs"),
        before=edges("before"), after=edges("after"), step=torch.arange(len(parts), device=counts.device).repeat_interleave(counts),
        spread=cat("spread"), ideal=cat("ideal"), wanted=cat("wanted"),
    )  # fmt: skip


def _loss(network: _Network, b: _Batch) -> Tensor:
    said = torch.stack(network(b), 1)
    there = ~b.wanted.isnan()
    return nn.functional.huber_loss(said[there], b.wanted[there], delta=0.2)
