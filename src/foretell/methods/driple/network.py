"""Driple's network: rounds of messages with one shared convolution and one shared GRU, Set2Set, three dense layers.

    embed   convolution 3 → 64                             the first round
    early   convolution 64 → 64, shared                    half of the rounds
    late    the same one; a copy of its own after `part`   the other half
    update  GRU 64 → 64, after every round, shared
    pool    Set2Set 64 → 128
    readout 128 → 64 → 64 → targets

These names are the parameter groups of transfer learning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from foretell.errors import InputError, check_choice
from foretell.methods.driple.features import FEATURES

if TYPE_CHECKING:  # seconds to load, and only a fit needs it
    from torch_geometric.data import Batch

Kind = Literal["gcn", "gat", "gin", "mpnn"]
KINDS: Final = get_args(Kind)
GROUPS_OF_PARAMETERS: Final = ("embed", "early", "late", "update", "pool", "readout")
BEGINNING: Final = ("embed", "early", "update")  # what the early rounds go through
FROZEN: Final = (*BEGINNING, "pool")  # in transfer: the release tunes its late convolution and the dense layers alone
WIDTH: Final = 64
_TYPE_WIDTH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is chosen of the network."""

    kind: Kind = "gcn"
    rounds: int = 50  # N / 2 for N groups
    readings: int = 100  # of Set2Set: N
    width: int = WIDTH
    types: int = 0  # operators in the vocabulary of the directed, typed graph; 0: the coarsened one


class Way(NamedTuple):
    """Edges that messages go along, 2 × edges; and those with a loop at every node, weighted as a GCN weighs them."""

    edges: Tensor
    looped: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Way:
        return Way(*(part.to(device) for part in self))


def ways_of(graphs: Batch, *, directed: bool) -> list[Way]:
    """One where the graph is undirected; else down, from the op that writes, and up."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    edges = graphs.edge_index
    apart = [edges, edges.flip(0)] if directed else [torch.cat([edges, edges.flip(0)], dim=1)]
    return [Way(way, *gcn_norm(way, num_nodes=graphs.num_nodes)) for way in apart]


class Network(nn.Module):
    """`graphs` are some graphs as one that is not connected: features `x`, `types` and the graph of each node."""

    def __init__(self, shape: Shape, targets: int) -> None:
        from torch_geometric.nn import Set2Set

        super().__init__()
        self.made_with = (shape, targets)
        self.shape = shape
        width = shape.width
        entry = len(FEATURES) + (_TYPE_WIDTH if shape.types else 0)
        self.vocabulary = nn.Embedding(shape.types + 1, _TYPE_WIDTH) if shape.types else None
        self.embed = _Convolution(shape, entry, width)
        self.early = _Convolution(shape, width, width)
        self.late: nn.Module | None = None  # None: the early one goes on
        self.update = nn.GRUCell(width, width)
        self.pool = Set2Set(width, processing_steps=shape.readings)
        dense = (nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.readout = nn.Sequential(*dense, nn.Linear(width, targets), nn.LeakyReLU())

    def part(self) -> None:
        """Give the late rounds a convolution of their own, which begins as the shared one."""
        if self.late is None:
            self.late = copy.deepcopy(self.early)

    def replace_targets(self, targets: int, known: Mapping[int, int]) -> None:
        """A last layer for other targets: target → the one it was before, where it was there."""
        last = self.readout[-2]
        assert isinstance(last, nn.Linear)
        fresh = nn.Linear(last.in_features, targets)
        with torch.no_grad():
            for now, before in known.items():
                fresh.weight[now], fresh.bias[now] = last.weight[before], last.bias[before]
        self.readout[-2] = fresh
        self.made_with = (self.shape, targets)

    def expect(self, weights: Mapping[str, Tensor]) -> None:
        """Have the parts that these weights are for."""
        if any(name.startswith("late.") for name in weights):
            self.part()

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the name of their group; every one is in exactly one."""
        modules: dict[str, list[nn.Module | None]] = {name: [getattr(self, name)] for name in GROUPS_OF_PARAMETERS}
        modules["embed"].append(self.vocabulary)
        return {name: [p for m in found if m is not None for p in m.parameters()] for name, found in modules.items()}

    def tune(self, names: Sequence[str]) -> None:
        """Only these groups learn from now on."""
        groups = self.groups()
        for name in names:
            check_choice("parameter group", name, [*groups], InputError)
            if not groups[name]:
                raise InputError(f"the parameter group {name!r} has no parameters yet. Call part() first.")
        for name, parameters in groups.items():
            for p in parameters:
                p.requires_grad_(name in names)

    def begin(self, graphs: Batch, ways: Sequence[Way]) -> Tensor:
        """Node states after the early rounds."""
        x = graphs.x
        if self.vocabulary is not None:
            x = torch.cat([x, self.vocabulary(graphs.types)], dim=1)
        padded = nn.functional.pad(x, (0, self.shape.width - x.shape[1]))  # as the release does for its first GRU
        state: Tensor = self.update(padded, self.embed(x, ways))
        for _ in range(self.shape.rounds // 2 - 1):
            state = self.update(state, self.early(state, ways))
        return state

    def end(self, state: Tensor, graphs: Batch, ways: Sequence[Way]) -> Tensor:
        """Targets, from the node states that the early rounds left."""
        convolution = self.late or self.early
        for _ in range(self.shape.rounds - self.shape.rounds // 2):
            state = self.update(state, convolution(state, ways))
        predicted: Tensor = self.readout(_pooled(self.pool, state, graphs))
        return predicted

    def forward(self, graphs: Batch, ways: Sequence[Way]) -> Tensor:
        return self.end(self.begin(graphs, ways), graphs, ways)


def _pooled(pool: Any, state: Tensor, graphs: Batch) -> Tensor:
    """What Set2Set gives, with the nodes of every graph in a row of their own: a reading is six ops, not twenty."""
    from torch_geometric.utils import to_dense_batch

    most = int(graphs.ptr.diff().max())
    nodes, real = to_dense_batch(state, graphs.batch, max_num_nodes=most, batch_size=graphs.num_graphs)
    nowhere = torch.zeros_like(nodes[..., 0]).masked_fill(~real, float("-inf"))
    pooled: Tensor = nodes.new_zeros(graphs.num_graphs, pool.out_channels)
    memory = None
    for _ in range(pool.processing_steps):
        query, memory = pool.lstm(pooled[None], memory)
        shares = torch.softmax((nodes * query[0, :, None]).sum(2) + nowhere, dim=1)
        pooled = torch.cat([query[0], (shares[..., None] * nodes).sum(1)], dim=1)
    return pooled


class _Convolution(nn.Module):
    """Messages along every way, each with weights of its own."""

    def __init__(self, shape: Shape, before: int, after: int) -> None:
        super().__init__()
        self.weighted = shape.kind == "gcn"
        self.bend = _BENT[shape.kind]
        self.along = nn.ModuleList(_one_way(shape.kind, before, after) for _ in range(2 if shape.types else 1))

    def forward(self, x: Tensor, ways: Sequence[Way]) -> Tensor:
        heard = [
            _weighed(one, x, way) if self.weighted else one(x, way.edges)
            for one, way in zip(self.along, ways, strict=True)
        ]
        total: Tensor = self.bend(sum(heard[1:], heard[0]))
        return total


def _weighed(one: Any, x: Tensor, way: Way) -> Tensor:
    """What a GCN layer gives: its weights are known, and what the library checks every time takes longer than the sum."""
    source, target = way.looped
    sent: Tensor = one.lin(x)
    heard = torch.zeros_like(sent).index_add(0, target, way.weights[:, None] * sent.index_select(0, source))
    output: Tensor = heard + one.bias
    return output


# As the layers of the release end; those of GIN and of messages have theirs inside.
_BENT: Final[dict[Kind, Callable[[Tensor], Tensor]]] = {
    "gcn": nn.functional.leaky_relu, "gat": nn.functional.elu, "gin": nn.Identity(), "mpnn": nn.Identity(),
}  # fmt: skip
_EPSILON: Final = 0.1  # of GIN, where learning starts


def _one_way(kind: Kind, before: int, after: int) -> nn.Module:
    from torch_geometric.nn import GATConv, GCNConv, GINConv

    made: dict[Kind, Any] = {
        "gcn": lambda: GCNConv(before, after, normalize=False),  # weights are given: they are the same in all rounds
        "gat": lambda: GATConv(before, after // 4, heads=4, bias=False),
        "gin": lambda: GINConv(_two_layers(before, after), eps=_EPSILON, train_eps=True),
        "mpnn": lambda: _Messages(before, after),
    }
    convolution: nn.Module = made[kind]()
    return convolution


def _two_layers(before: int, after: int) -> nn.Module:
    wide = max(before, after)
    return nn.Sequential(nn.Linear(before, wide), nn.ReLU(), nn.Linear(wide, after), nn.ReLU())


class _Messages(nn.Module):
    """A message is made of both ends; a node adds up what it gets and looks at it beside itself."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.send, self.hear = nn.Linear(2 * before, before), nn.Linear(2 * before, after)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        sent = torch.relu(self.send(torch.cat([x[target], x[source]], dim=1)))
        heard = torch.zeros_like(x).index_add(0, target, sent)
        new: Tensor = nn.functional.leaky_relu(self.hear(torch.cat([x, heard], dim=1)))
        return new
