"""The settings of `foretell bench transfer`, from public files: devices, products, clusters, trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from foretell.graph import Graph, Op, Storage, Tensor
from foretell.hardware import Cluster, recognise
from foretell.learn.transfer import published_steps
from foretell.learn.transfer.published_ops import product
from foretell.learn.transfer.published_steps import PublishedStep
from foretell.plans import Plan
from foretell.precision import Precision
from foretell.sources.named import library
from foretell.store.importers import LeftOut, Selection, public_file, public_rows, read_public, take
from foretell.store.importers import Row as PublicRow
from foretell.units import Seconds
from foretell_bench.graphs import graph_of
from foretell_bench.sources import ddp_step_times, fsdp_mpt, llm_h100_sweep, vtrain_single_node
from foretell_bench.sources.question import Question
from foretell_bench.sources.settings import (
    MOST_DRAWN,
    Fold,
    Row,
    Setting,
    halves,
    left_out_in_turn,
    some,
)

_TIMM: Final = {5: 0.09, 10: 0.08, 20: 0.07, 50: 0.06}
_AT_20: Final = {20: 0.10}
# Source → number of step times → the mean error that is the bar.
BARS: Final[Mapping[str, Mapping[int, float]]] = {
    "timm_train": _TIMM, "timm_infer": _TIMM, "cnn_many_gpus": _AT_20, "gemm": {50: 0.05}, "ddp_step_times": _AT_20,
    "llm_h100_sweep": _AT_20, "vtrain_single_node": _AT_20, "fsdp_mpt": _AT_20,
}  # fmt: skip
_CALLS: Final = 100  # of a product in a step, so that what a step needs besides is small
_SHORTEST: Final[Seconds] = 20e-6  # of a product: below, issuing it is what a step of them takes
_THIN: Final = 16  # rows of a product: fewer are decoding, not training
_PRODUCTS: Final = 1000  # of a device that are looked at
_LONG: Final = (22, 5)  # rows of a fold that are drawn and tested where a forecast takes a second
_OF_A_JOB: Final = 24  # rows of one job that may be drawn


# Steps of one device: timm and torchvision.


def _published(step: PublishedStep, devices: int = 1) -> Row:
    settings = ",".join(f"{name}={value}" for name, value in sorted(step.settings.items()))
    cluster = f"{devices}x{step.device}"
    plan = Plan(dp=devices, data_parallel="dp") if devices > 1 else Plan()
    return Row(
        key=f"{step.origin}/{cluster}/{step.source}/{settings}", load=partial(published_steps.graph_of, step), plan=plan,
        cluster=Cluster.parse(cluster), seconds=step.seconds, part=step.source.partition("/")[2],
        network=step.source, software=step.software,
    )  # fmt: skip


def _steps(source: str, data: Path) -> list[Setting]:
    """Of one device at a time; the steps of the others are what came before."""
    make, draw = published_steps.SOURCES[source]
    taken = take(public_rows(data, source), partial(make, source))
    steps = draw(taken.items, len(taken.items))
    rows: dict[str, list[Row]] = {}
    for step in steps:
        if _is_offered(step.source):
            rows.setdefault(step.device, []).append(_published(step))
    used = sum(map(len, rows.values()))
    rest = {
        "of a name that its library no longer has": len(steps) - used,
        "of a setting that is there already": len(taken.items) - len(steps),
    }
    return _each(source, rows, {**taken.left_out, **rest})


def _is_offered(source: str) -> bool:
    prefix, _, name = source.partition("/")
    return name in _names(prefix)


@cache
def _names(prefix: str) -> frozenset[str]:
    return frozenset(library(prefix).names())


def _each(source: str, rows: Mapping[str, Iterable[Row]], left_out: Mapping[str, int]) -> list[Setting]:
    folds = {name: halves(those) for name, those in sorted(rows.items())}
    return [
        Setting(
            source=source, name=name, folds=[fold], left_out=left_out,
            others=[row for other, f in folds.items() if other != name for row in (*f.drawn, *f.tested)],
        )
        for name, fold in folds.items()
    ]  # fmt: skip


def _several_devices(data: Path) -> list[Setting]:
    """torchvision on two to four devices that one process drives."""
    source = "cnn_many_gpus"
    make = published_steps.SOURCES[source].make

    def row(public: PublicRow) -> Row:
        if public["gpus"] == 1:
            raise LeftOut("of one device")
        return _published(make(source, {**public, "gpus": 1}), public["gpus"])

    taken = take(public_rows(data, source), row)
    rows: dict[str, list[Row]] = {}
    for item in taken.items:
        rows.setdefault(f"2–4 × {item.cluster.nodes[0].device.name}", []).append(item)
    return _each(source, rows, taken.left_out)


# A product as a step of its own.


def _products(data: Path) -> list[Setting]:
    path = public_file(data, "gemm")
    assert path is not None
    table = read_public(path).table
    names, dtypes = (np.asarray(table[column].to_numpy(), dtype=np.str_) for column in ("device", "dtype"))
    long = (table["m"].to_numpy() >= _THIN) & (table["seconds"].to_numpy() >= _SHORTEST) & (dtypes == "bfloat16")
    rows = {}
    for name in np.unique(names):
        if (device := recognise(str(name))) is not None:
            found = np.flatnonzero(long & (names == name))
            some_of = table.take(found[:: max(1, len(found) // _PRODUCTS)]).to_pylist()
            rows[device.name] = [_product(device.name, row) for row in some_of]
    left_out = {"not bf16, thinner than 16 rows or shorter than 20 µs": int((~long).sum())}
    return _each("gemm", rows, left_out)


def _product(device: str, row: PublicRow) -> Row:
    m, n, k = row["m"], row["n"], row["k"]
    return Row(
        key=f"gemm/{device}/{m}×{n}×{k}", load=partial(product_graph, m, n, k, row["dtype"]), plan=Plan(),
        cluster=Cluster.parse(device), seconds=_CALLS * row["seconds"], part=f"{n}×{k}",
        network="product",
    )  # fmt: skip


def product_graph(m: int, n: int, k: int, dtype: str) -> Graph:
    """A step of nothing but equal products."""
    signature = product(m, n, k, dtype)
    layouts = (*signature.inputs, *signature.outputs)
    op = Op(signature=signature, phase="forward", module="", inputs=(0, 1), outputs=(2,))
    roles = ("input", "parameter", "input")
    return Graph(
        name=f"product {m}×{n}×{k}", ops=(op,) * _CALLS, precision=Precision.parse("bf16"), training=False, gradients={}, samples=m,
        tensors=tuple(Tensor(layout, i) for i, layout in enumerate(layouts)),
        storages=tuple(Storage(x.nbytes, role, -1, _CALLS) for x, role in zip(layouts, roles, strict=True)),
    )  # fmt: skip


# Clusters and trainers: the questions of `foretell bench distributed`.


def _question(source: str, question: Question, part: str = "") -> Row:
    ask = question.ask
    return Row(
        key=f"{source}/{ask.key}", load=partial(graph_of, ask.model), cluster=ask.cluster, plan=ask.plan,
        seconds=question.seconds or 0.0, part=part or question.part,
        network=ask.model.source,
    )  # fmt: skip


def _trainer(source: str, questions: Callable[[Path], Selection[Question]], data: Path) -> list[Setting]:
    """Sizes of a model are left out in turn."""
    taken = questions(data)
    rows = [_question(source, q) for q in taken.items if q.seconds and q.readable]
    device = rows[0].cluster.nodes[0].device.name
    return [
        Setting(
            source=source, name=device, folds=left_out_in_turn(rows, *_LONG), numbers=(20,),
            left_out={**taken.left_out, "without a time, or noisy by the source": len(taken.items) - len(rows)},
        )
    ]  # fmt: skip


def _clusters(data: Path) -> list[Setting]:
    """From nodes of T4 to nodes of 2080 Ti: placements that are tested are not among those drawn.

    The source does not say how large the inputs of its jobs are, so a profile is for one job, or for all of them.
    """
    taken = ddp_step_times.questions(data)
    rows: dict[str, dict[str, list[tuple[bool, Row]]]] = {}
    for q in taken.items:
        nodes = q.ask.cluster.nodes
        row = _question(ddp_step_times.SOURCE, q, "-".join(str(node.count) for node in nodes))
        rows.setdefault(nodes[0].device.name, {}).setdefault(row.network, []).append((q.tested, row))
    folds = {
        job: Fold(
            drawn=some((row for tested, row in those if not tested), _OF_A_JOB),
            tested=some((row for tested, row in those if tested), _OF_A_JOB // 3),
        )
        for job, those in rows["rtx-2080-ti"].items()
    }
    together = Fold(
        drawn=some((row for fold in folds.values() for row in fold.drawn), MOST_DRAWN),
        tested=[row for fold in folds.values() for row in fold.tested],
    )
    others = some((row for those in rows["t4"].values() for _, row in those), 2 * MOST_DRAWN)
    of = {"each job of rtx-2080-ti nodes": list(folds.values()), "all jobs of rtx-2080-ti nodes": [together]}
    return [
        Setting(source=ddp_step_times.SOURCE, name=name, folds=those, others=others, left_out=taken.left_out)
        for name, those in of.items()
    ]


SETTINGS: Final[Mapping[str, Callable[[Path], Sequence[Setting]]]] = MappingProxyType({
    "timm_train": partial(_steps, "timm_train"),
    "timm_infer": partial(_steps, "timm_infer"),
    "cnn_many_gpus": lambda data: [*_steps("cnn_many_gpus", data), *_several_devices(data)],
    "gemm": _products,
    "ddp_step_times": _clusters,
    "llm_h100_sweep": partial(_trainer, "llm_h100_sweep", llm_h100_sweep.questions),
    "vtrain_single_node": partial(_trainer, "vtrain_single_node", vtrain_single_node.questions),
    "fsdp_mpt": partial(_trainer, "fsdp_mpt", fsdp_mpt.questions),
})  # fmt: skip
