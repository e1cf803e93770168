"""The network across layers: T = Σ tᵢ + readout, over the directed graph of what a rank runs.

A node is a layer or a collective: its features, the time its model gives it, and what kind it is. After two or three
rounds of messages between producers and consumers every node predicts two things: by how much its neighbourhood changes
its time, and what the host pays to issue it. D is the sum of the changed times of layers, C that of collectives, H the sum
of what the host pays; the step takes the longer of D and H, smoothly, waits for other stages of its pipeline (w), and for
the part of C that nothing hides: T = (Dᵖ + Hᵖ)^(1/p) · (1 + a·w) + b·C, where a and b follow from precision, plan and
cluster. Everything beyond Σ tᵢ is the readout. It starts at D = Σ tᵢ, and with the network left out T is Σ tᵢ·(1 + a·w) +
b·C, the additive model. How much of what the network says is applied is found on architectures it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import torch
from torch import Tensor, nn

from foretell.errors import InputError
from foretell.methods.scaledl.features import GENERAL, ROUNDS, Floats, Sheet
from foretell.methods.scaledl.layers import Training, descend

if TYPE_CHECKING:  # seconds to load, and only a fit needs it
    from torch_geometric.data import Batch, Data

Pair = tuple[float, float]  # device and step; nan: not measured
_ISSUING: Final = 5e-6  # seconds a host pays for an op, about: where H starts
_ALONE: Final = 1e-5  # seconds of an op, where a network that is given no times starts
_NOTHING: Final = 1e-7  # seconds of a step that launches no kernel: its logarithm must be a number
_FAR: Final = 5.0  # deviations: nothing the network sees is farther out


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(Training):
    """What is chosen of the network."""

    rounds: int = 2  # of messages; 0: no network, the additive model
    width: int = 48
    epochs: int = 25
    batch: int = 12  # steps
    decay: float = 1e-3
    messages: bool = True  # False: heads as they are, but no edges: what messages are worth
    sees_times: bool = True  # False: a whole-graph network, which sees no layer models
    trains_on: str = "cpu"  # where torch trains it; a fitted one is on the CPU

    def __post_init__(self) -> None:
        if not 0 <= self.rounds <= ROUNDS:
            raise InputError(f"rounds of messages must be 0 to {ROUNDS}, got {self.rounds}.")


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
    def __init__(self, kinds: int, operators: int, around: int, settings: NetworkSettings) -> None:
        super().__init__()
        self.made_with = (kinds, operators, around, settings)
        self.sees_times = settings.sees_times
        self.messages = settings.messages
        self.passes = settings.rounds > 0
        self.kind, self.operator = nn.Embedding(kinds + 1, 8), nn.Embedding(operators + 1, 8)
        self.enter = nn.Linear(len(GENERAL) + 1 + 16, settings.width)
        self.rounds = nn.ModuleList(_Round(settings.width) for _ in range(settings.rounds))
        self.read = nn.Sequential(nn.Linear(settings.width, settings.width), nn.SiLU(), nn.Linear(settings.width, 2))
        self.power = nn.Parameter(torch.tensor(1.0))
        self.several = nn.Sequential(nn.Linear(around, 16), nn.SiLU(), nn.Linear(16, 2))
        for last in (self.read[-1], self.several[-1]):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]

    def forward(self, b: Batch, strength: float = 1.0) -> tuple[Tensor, Tensor]:
        """log of device time and of step time; `strength` is how much of what the nodes predict of times is applied."""
        seconds = b.seconds if self.sees_times else torch.full_like(b.seconds, _ALONE)
        host = torch.zeros_like(seconds)
        if self.passes:
            changed, issued = self._heads(b, seconds)
            seconds, host = seconds * (strength * changed).exp(), _ISSUING * issued.exp()
        zeros = b.around.new_zeros(b.num_graphs)
        device = zeros.index_add(0, b.batch, b.runs * seconds * ~b.communicates).clamp(min=_NOTHING)
        exchanged = zeros.index_add(0, b.batch, b.runs * seconds * b.communicates)
        issuing = zeros.index_add(0, b.batch, b.runs * host)
        power = 1.0 + nn.functional.softplus(self.power * 3.0)
        longer = device * (1 + (issuing / device).clamp(min=1e-4) ** power) ** (1 / power) if self.passes else device
        waits, hidden = self.several(b.around).clamp(-8.0, 8.0).exp().T
        return device.log(), (longer * (1 + b.waiting * waits) + exchanged * hidden).log()

    def _heads(self, b: Batch, seconds: Tensor) -> Tensor:
        """Of every node, logarithms: its time over what its layer says, and the host's over what is usual."""
        known = ((seconds.log() + 10.0) / 3.0)[:, None]
        h = nn.functional.silu(self.enter(torch.cat([b.x, known, self.kind(b.kind), self.operator(b.operator)], 1)))
        nobody = b.before_index[:, :0]
        before, after = (b.before_index, b.after_index) if self.messages else (nobody, nobody)
        for each in self.rounds:
            h = each(h, before, after)
        found: Tensor = self.read(h).clamp(-8.0, 8.0).T
        return found


@dataclass(slots=True)
class Across:
    """The fitted network, with what standardises its inputs."""

    settings: NetworkSettings = field(default_factory=NetworkSettings)
    network_: _Network | None = None
    mean_: Floats = field(default_factory=lambda: np.zeros(0))
    deviation_: Floats = field(default_factory=lambda: np.zeros(0))
    around_: Floats = field(default_factory=lambda: np.zeros((2, 0)))  # mean and deviation of what surrounds steps
    strength: float = 1.0  # how much of its changes of times is applied
    kinds_: dict[str, int] = field(default_factory=dict)
    operators_: dict[str, int] = field(default_factory=dict)

    def fit(self, sheets: Sequence[Sheet], seconds: Sequence[Floats], measured: Sequence[Pair]) -> Self:
        """Steps, the seconds of their layers, and the measured seconds of the device and of the step."""
        from torch_geometric.data import Batch

        layers = [layer for sheet in sheets for layer in sheet.layers]
        values = np.array([[layer.values[c] for c in GENERAL] for layer in layers])
        self.mean_, self.deviation_ = values.mean(axis=0), np.maximum(values.std(axis=0), 0.05)
        around = np.array([sheet.around for sheet in sheets])
        spread = around.std(axis=0)  # what never varied says nothing, however far away it is later
        self.around_ = np.stack([around.mean(axis=0), np.where(spread > 1e-6, np.maximum(spread, 0.05), np.inf)])
        self.kinds_ = {k: i for i, k in enumerate(sorted({layer.kind for layer in layers}))}
        self.operators_ = {k: i for i, k in enumerate(sorted({layer.operator for layer in layers}))}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            network = _Network(len(self.kinds_), len(self.operators_), around.shape[1], self.settings)
            steps = zip(sheets, seconds, measured, strict=True)
            ready = [self._data(*step).to(self.settings.trains_on) for step in steps]
            network.to(self.settings.trains_on)

            def loss(rows: Tensor) -> Tensor:
                return _loss(network, Batch.from_data_list([ready[i] for i in rows.tolist()]))

            if network.passes or any(sheet.shares for sheet in sheets):
                descend(network, len(sheets), loss, self.settings)
        self.network_ = network.cpu().eval()
        return self

    def predict(self, sheets: Sequence[Sheet], seconds: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Seconds of the device and of the step."""
        from torch_geometric.data import Batch

        assert self.network_ is not None, "fit first"
        found = np.zeros((len(sheets), 2))
        with torch.no_grad():
            for i, step in enumerate(zip(sheets, seconds, strict=True)):
                batch = Batch.from_data_list([self._data(*step)])
                found[i] = [log.exp().item() for log in self.network_(batch, self.strength)]
        return found[:, 0], found[:, 1]

    def _data(self, sheet: Sheet, seconds: Floats, measured: Pair = (math.nan, math.nan)) -> Data:
        """A step for PyTorch Geometric: edges are `…_index`, so that a batch numbers their nodes anew."""
        from torch_geometric.data import Data

        def floats(values: Any) -> Tensor:
            return torch.tensor(np.asarray(values), dtype=torch.float32)

        layers, of = sheet.layers, sheet.layer
        values = np.array([[layer.values[c] for c in GENERAL] for layer in layers]).reshape(len(layers), len(GENERAL))
        scaled = np.clip((values - self.mean_) / self.deviation_, -_FAR, _FAR)
        kinds = torch.tensor([self.kinds_.get(x.kind, len(self.kinds_)) for x in layers], dtype=torch.long)
        operators = [self.operators_.get(x.operator, len(self.operators_)) for x in layers]
        return Data(
            x=floats(scaled[of]),
            kind=kinds[of],
            operator=torch.tensor(operators, dtype=torch.long)[of],
            seconds=floats(seconds[of]).clamp(min=1e-8),
            runs=floats(sheet.runs),
            before_index=torch.tensor(sheet.before),
            after_index=torch.tensor(sheet.after),
            communicates=torch.tensor([x.communicates for x in layers], dtype=torch.bool)[of],
            around=floats([np.clip((sheet.around - self.around_[0]) / self.around_[1], -_FAR, _FAR)]),
            waiting=floats([sheet.waiting]),
            wanted=floats(np.log([measured])),
        )


def _loss(network: _Network, b: Batch) -> Tensor:
    predicted = torch.stack(network(b), 1)
    there = ~b.wanted.isnan()
    return nn.functional.huber_loss(predicted[there], b.wanted[there], delta=0.2)
