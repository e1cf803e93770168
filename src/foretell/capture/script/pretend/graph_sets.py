"""Sets of graphs by name, of PyTorch Geometric and OGB: as many nodes, edges, features and classes as are published."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.session import Session

_PARTS: Final = ("val", "valid", "validation", "test")
_MOST_EDGES: Final = 2**24  # that are really made


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSet:
    """Nodes and edges of a graph (of one of many, their mean), and what each has."""

    nodes: int
    edges: int
    features: int
    classes: int
    graphs: int = 1
    edge_features: int = 0
    many: bool = False  # classes that may all be true at once
    target: str = "node"  # or graph, or value
    positions: bool = False
    integers: bool = False  # features that are looked up in tables
    train: float = 0.5  # of the nodes or graphs


def _one(nodes: int, edges: int, features: int, classes: int, **how: Any) -> GraphSet:
    return GraphSet(nodes=nodes, edges=edges, features=features, classes=classes, **how)


def _many(graphs: int, nodes: int, edges: int, features: int, classes: int, **how: Any) -> GraphSet:
    return GraphSet(
        graphs=graphs, nodes=nodes, edges=edges, features=features, classes=classes, **({"target": "graph"} | how)
    )


SETS: Final[Mapping[str, GraphSet]] = {
    "cora": _one(2708, 10556, 1433, 7, train=140 / 2708), "citeseer": _one(3327, 9104, 3703, 6, train=120 / 3327),
    "pubmed": _one(19717, 88648, 500, 3, train=60 / 19717), "reddit": _one(232965, 114615892, 602, 41, train=0.66),
    "reddit2": _one(232965, 23213838, 602, 41, train=0.66), "flickr": _one(89250, 899756, 500, 7),
    "yelp": _one(716847, 13954819, 300, 100, many=True, train=0.75), "amazonproducts": _one(1569960, 264339468, 200, 107, many=True),
    "computers": _one(13752, 491722, 767, 10), "photo": _one(7650, 238162, 745, 8), "cs": _one(18333, 163788, 6805, 15),
    "physics": _one(34493, 495924, 8415, 5), "wikics": _one(11701, 431206, 300, 10), "karateclub": _one(34, 156, 34, 4),
    "texas": _one(183, 325, 1703, 5), "cornell": _one(183, 298, 1703, 5), "wisconsin": _one(251, 515, 1703, 5),
    "chameleon": _one(2277, 36101, 2325, 5), "squirrel": _one(5201, 217073, 2089, 5), "actor": _one(7600, 30019, 932, 5),
    "dblp": _one(17716, 105734, 1639, 4), "cora_ml": _one(2995, 16316, 2879, 7), "facebook": _one(22470, 342004, 128, 4),
    "ogbn-arxiv": _one(169343, 1166243, 128, 40, train=0.537), "ogbn-products": _one(2449029, 61859140, 100, 47, train=0.08),
    "ogbn-proteins": _one(132534, 39561252, 8, 112, many=True, edge_features=8, train=0.65),
    "ogbn-papers100m": _one(111059956, 1615685872, 128, 172, train=0.011),
    "ppi": _many(20, 2245, 61318, 50, 121, many=True, target="node"),
    "mutag": _many(188, 18, 40, 7, 2, edge_features=4), "enzymes": _many(600, 33, 124, 3, 6),
    "proteins": _many(1113, 39, 146, 3, 2), "collab": _many(5000, 74, 4914, 0, 3), "imdb-binary": _many(1000, 20, 193, 0, 2),
    "imdb-multi": _many(1500, 13, 132, 0, 3), "reddit-binary": _many(2000, 430, 996, 0, 2), "nci1": _many(4110, 30, 65, 37, 2),
    "dd": _many(1178, 284, 1431, 89, 2), "ptc_mr": _many(344, 14, 29, 18, 2), "aids": _many(2000, 16, 32, 38, 2),
    "qm9": _many(130831, 18, 37, 11, 19, edge_features=4, target="value", positions=True),
    "zinc": _many(220011, 23, 50, 1, 1, edge_features=1, target="value", integers=True),
    "zinc-subset": _many(10000, 23, 50, 1, 1, edge_features=1, target="value", integers=True),
    "modelnet10": _many(3991, 1024, 0, 0, 10, positions=True), "modelnet40": _many(9843, 1024, 0, 0, 40, positions=True),
    "shapenet": _many(12137, 2616, 0, 3, 50, positions=True, target="node"),
    "mnistsuperpixels": _many(60000, 75, 1393, 1, 10, positions=True), "faust": _many(80, 6890, 41328, 0, 10, positions=True),
    "esol": _many(1128, 13, 27, 9, 1, edge_features=3, target="value", integers=True),
    "freesolv": _many(642, 9, 17, 9, 1, edge_features=3, target="value", integers=True),
    "lipo": _many(4200, 27, 59, 9, 1, edge_features=3, target="value", integers=True),
    "hiv": _many(41127, 26, 55, 9, 1, edge_features=3, integers=True),
    "ogbg-molhiv": _many(41127, 26, 55, 9, 1, edge_features=3, train=0.8, integers=True),
    "ogbg-molpcba": _many(437929, 26, 56, 9, 128, edge_features=3, many=True, train=0.8, integers=True),
    "ogbg-ppa": _many(158100, 243, 4532, 0, 37, edge_features=7, train=0.49), "ogbg-code2": _many(452741, 125, 124, 2, 1, train=0.9),
}  # fmt: skip
# Classes of PyTorch Geometric, and which of their arguments names the set; those without name it themselves.
_NAMED: Final = ("Planetoid", "TUDataset", "Amazon", "Coauthor", "WebKB", "WikipediaNetwork", "CitationFull", "MoleculeNet",
                 "ModelNet", "HeterophilousGraphDataset", "GNNBenchmarkDataset")  # fmt: skip
_ALONE: Final = ("Reddit", "Reddit2", "Flickr", "Yelp", "AmazonProducts", "WikiCS", "Actor", "PPI", "QM9", "ZINC", "ShapeNet",
                 "MNISTSuperpixels", "FAUST", "FacebookPagePage")  # fmt: skip
_OF_OGB: Final = {
    "ogb.nodeproppred": ("PygNodePropPredDataset", "NodePropPredDataset"),
    "ogb.graphproppred": ("PygGraphPropPredDataset", "GraphPropPredDataset"),
}


def install(session: Session) -> None:
    once_imported("torch_geometric.datasets", lambda module: _adapt(module, session))
    for library, kinds in _OF_OGB.items():
        once_imported(library, partial(_adapt_ogb, kinds=kinds, session=session))


def _adapt_ogb(module: Any, kinds: tuple[str, ...], session: Session) -> None:
    for kind in kinds:
        _wrap(getattr(module, kind, None), session)


def _adapt(datasets: Any, session: Session) -> None:
    for name in (*_NAMED, *_ALONE):
        _wrap(getattr(datasets, name, None), session)


def _wrap(kind: Any, session: Session) -> None:
    if kind is None:
        return
    make = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(self, *args, **kwargs)
        except Exception as error:
            known = _known(kind.__name__, args, kwargs)
            if known is None:
                name = kwargs.get("name") or next((a for a in args[1:] if isinstance(a, str)), kind.__name__)
                raise StandInError(
                    f"graphs of {kind.__name__}",
                    f"set {str(name)!r}",
                    "Put the set's files on this machine, under its root.",
                ) from error
            session.stand_in(f"graphs of {kind.__name__}{_named(args, kwargs)}")
            _fill(self, known, args, kwargs)

    replace(kind, "__init__", init)


def _named(args: Any, kwargs: Mapping[str, Any]) -> str:
    name = kwargs.get("name") or next((a for a in args[1:] if isinstance(a, str)), None)
    return f" {name}" if name else ""


def _known(kind: str, args: Any, kwargs: Mapping[str, Any]) -> GraphSet | None:
    given = [str(a).lower() for a in (*args, *kwargs.values()) if isinstance(a, str)]
    wanted = [name for name in given if name in SETS]
    if kind == "ZINC" and (kwargs.get("subset") or True in args):
        return SETS["zinc-subset"]
    if kind == "ModelNet":
        return SETS[f"modelnet{kwargs.get('name') or next((a for a in args[1:] if a in ('10', '40')), '10')}"]
    return SETS.get(wanted[-1]) if wanted else SETS.get(kind.lower())


def _fill(self: Any, known: GraphSet, args: Any, kwargs: Mapping[str, Any]) -> None:
    """What the set's own classes keep: one large graph of which a sample is a slice, or the only one."""
    root, transform = str(args[0] if args else kwargs.get("root", ".")), kwargs.get("transform")
    self.root = root
    self.name = _named(args, kwargs).strip() or type(self).__name__
    self.log, self._indices, self.transform = False, None, transform
    self.pre_transform, self.pre_filter, self.force_reload = kwargs.get("pre_transform"), None, False
    graph = _graph(known)
    if type(self).__module__.startswith("ogb") and known.graphs == 1:
        graph.y = graph.y.view(known.nodes, -1)
    graph = graph if self.pre_transform is None else self.pre_transform(graph)
    part = str(kwargs.get("split") or next((a for a in args if a in _PARTS), "train"))
    count = known.graphs if known.graphs == 1 or part not in _PARTS else max(known.graphs // 10, 1)
    self.foretell = (known, graph, count)
    self._data = graph if known.graphs == 1 else None
    self.slices = self._data_list = None
    _answer(type(self))


def _answer(kind: Any) -> None:
    """Lengths, samples and counts of a set that has no files to read them from."""
    if "foretell_answers" in vars(kind):
        return
    kind.foretell_answers = True
    methods: dict[str, Callable[..., Any]] = {
        "len": lambda self: self.foretell[2],
        "get": lambda self, i: copy.copy(self.foretell[1]),
        "get_idx_split": lambda self, *args: _split(self.foretell[0]),
        "copy": lambda self, idx=None: self if idx is None else [self.foretell[1]] * len(idx),
    }
    values: dict[str, Callable[[Any], Any]] = {
        "num_classes": lambda self: self.foretell[0].classes, "num_tasks": lambda self: self.foretell[0].classes,
        "num_node_features": lambda self: self.foretell[0].features, "num_features": lambda self: self.foretell[0].features,
        "num_edge_features": lambda self: self.foretell[0].edge_features, "data": lambda self: self._data,
        "raw_dir": lambda self: self.root, "processed_dir": lambda self: self.root,
        "eval_metric": lambda self: "rocauc", "task_type": lambda self: "classification",
    }  # fmt: skip
    for name, method in methods.items():
        setattr(kind, name, _either(getattr(kind, name, None), method))
    for name, value in values.items():
        real = getattr(kind, name, None)
        setattr(kind, name, property(_either(real.fget if isinstance(real, property) else None, value)))


def _either(real: Callable[..., Any] | None, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Ours for a set that is stood in for; others of its class are as they were."""

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "foretell" in vars(self) or real is None:
            return ours(self, *args, **kwargs)
        return real(self, *args, **kwargs)

    return answer


def _split(known: GraphSet) -> dict[str, torch.Tensor]:
    count = known.nodes if known.graphs == 1 else known.graphs
    first, second = int(count * known.train), int(count * (known.train + 1) / 2)
    every = torch.arange(count)
    return {"train": every[:first], "valid": every[first:second], "test": every[second:]}


def _graph(known: GraphSet) -> Any:
    from torch_geometric.data import Data

    edges = min(known.edges, _MOST_EDGES)
    at = torch.arange(edges)
    graph = Data(edge_index=torch.stack([at % known.nodes, (at * 7 + at // known.nodes) % known.nodes]))
    graph.num_nodes = known.nodes
    if known.features:
        graph.x = torch.zeros(known.nodes, known.features, dtype=torch.int64 if known.integers else torch.float32)
    if known.edge_features:
        shape = (edges,) if known.edge_features == 1 else (edges, known.edge_features)
        graph.edge_attr = torch.zeros(shape, dtype=torch.int64 if known.integers else torch.float32)
    if known.positions:
        graph.pos = torch.rand(known.nodes, 3)
    if known.target == "value" and known.features == 11:
        graph.z = torch.ones(known.nodes, dtype=torch.int64)
    graph.y = _targets(known)
    if known.graphs == 1:
        place = torch.arange(known.nodes)
        first, second = int(known.nodes * known.train), int(known.nodes * (known.train + 1) / 2)
        graph.train_mask, graph.val_mask, graph.test_mask = (
            place < first,
            (place >= first) & (place < second),
            place >= second,
        )
    return graph


def _targets(known: GraphSet) -> torch.Tensor:
    rows = known.nodes if known.target == "node" else 1
    if known.target == "value":
        return torch.zeros(rows, known.classes) if known.classes > 1 else torch.zeros(rows)
    if known.many or (known.target == "graph" and known.classes == 1):
        return torch.zeros(rows, known.classes)
    return torch.arange(rows) % known.classes
