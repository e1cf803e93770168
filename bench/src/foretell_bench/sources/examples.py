"""Measured steps as examples that methods are fitted on and validated against: one loader per source.

A source that does not say what was run gives queries without a graph; what a source leaves open and we assume is in the
query's settings under `assumed`. Every row of a source becomes an example or is counted with the reason why not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from foretell.errors import ForetellError, InputError
from foretell.graph import Graph
from foretell.hardware import Cluster, device, recognise
from foretell.methods.examples import dataset_of
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, MEMORY, STEP_TIME, Example, Query
from foretell.plans import Plan
from foretell.store.importers import LeftOut, Row, Selection, public_rows, take
from foretell.units import Seconds
from foretell_bench.graphs import Model, Say, captured, configured, graph_of, named, quiet
from foretell_bench.sources.ddp_step_times import placement_of
from foretell_bench.sources.llm_h100_sweep import LLAMAS
from foretell_bench.sources.question import evenly, filled, nodes_of

T = TypeVar("T")
_SAME_STEP: Final = 1.5  # kernels that take this many steps were not recorded of the steps that were timed
_UNTIMED_STEPS: Final = 11  # that the instrument runs besides its repetitions: warm-up, issuing, traces
STEPS_OF_A_RUN: Final = 50  # where a source does not say how often it repeated a step
_BY_TWO: Final = (2, 4)  # batches of ResNets that are captured


def several(items: Iterable[T], most: int | None, by: Callable[[T], Hashable]) -> list[T]:
    """All of a kind that has more than one, for as many kinds as there is room; kinds are drawn by their names."""
    kinds: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        kinds[by(item)].append(item)
    chosen: list[T] = []
    for kind in sorted(kinds, key=lambda kind: hashlib.sha256(repr(kind).encode()).digest()):
        if len(kinds[kind]) > 1 and (most is None or len(chosen) + len(kinds[kind]) <= most):
            chosen += kinds[kind]
    return chosen


class Graphs:
    """Each graph once: methods remember what they have read of it."""

    def __init__(self, say: Say = quiet) -> None:
        self._say = say
        self._known: dict[object, Graph] = {}

    def of(self, model: Model) -> Graph:
        if model not in self._known:
            self._say(f"reading {model.source} at batch {model.batch}")
            self._known[model] = graph_of(model)
        return self._known[model]

    def captured(self, source: str, settings: dict[str, str]) -> Graph:
        key = (source, *sorted(settings.items()))
        if key not in self._known:
            self._say(f"capturing {source}")
            self._known[key] = captured(source, settings)
        return self._known[key]


# The project's own store: one H200.


def h200_steps(
    path: Path, say: Say = quiet, most: int | None = None, *, only: Collection[str] | None = None, whole: bool = False
) -> Selection[Example]:
    """Steps of a store that ran on one device, of all sources or only some, with the times of ops where a trace has them.

    Of many steps, some of every architecture are taken; or, `whole`, all of some architectures that have several.
    """
    from foretell.learn.dataset import is_recorded_alone
    from foretell.learn.fit import families_of
    from foretell.store.store import Store

    store = Store(path)
    if not store.exists():
        raise InputError(f"there is no store in {path}. Measure into one with: foretell measure SOURCE --store {path}")
    every = list(store.steps("kind = 'step' AND outcome = 'ok' AND world_size = 1"))
    timed = [s for s in every if s.step_seconds and s.graph]
    same = [s for s in timed if (s.device_seconds or 0.0) < _SAME_STEP * (s.step_seconds or 0.0)]
    rows = [s for s in same if only is None or s.source in only]
    chosen = several(rows, most, by=lambda s: s.source) if whole else evenly(rows, most, by=lambda s: s.source)
    say(f"reading {len(chosen)} steps of {path}")
    graphs, families = store.graphs({s.graph for s in chosen if s.graph}), families_of(store)
    times = _op_times(store, [s.id for s in chosen])
    examples = []
    for s in sorted(chosen, key=lambda s: (s.source, s.settings, s.id)):
        graph = graphs[s.graph or ""]
        alone = is_recorded_alone(s)
        settings = {**json.loads(s.settings), "family": families.get(s.source, s.source), "record": s.id}
        measured = {STEP_TIME: s.step_seconds, DEVICE_TIME: None if alone else s.device_seconds,
                    HOST_TIME: s.host_seconds, MEMORY: s.peak_allocated}  # fmt: skip
        query = Query(
            architecture=s.source, plan=Plan(), cluster=Cluster.parse(s.device), graph=graph, dataset=dataset_of(graph),
            batch=float((s.samples or 1) * s.grad_accumulation), settings=settings,
        )  # fmt: skip
        known = {target: float(value) for target, value in measured.items() if value}
        cost = (s.repetitions + _UNTIMED_STEPS) * (s.step_seconds or 0.0)
        examples.append(Example(query=query, measured=known, cost=cost, ops=() if alone else times.get(s.id, ())))
    left_out = {
        "without a step time or a graph": len(every) - len(timed),
        "whose kernels were not recorded of the steps that were timed": len(timed) - len(same),
        "of other sources": len(same) - len(rows),
        "not drawn": len(rows) - len(chosen),
    }
    return Selection(items=tuple(examples), left_out={reason: count for reason, count in left_out.items() if count})


FIVE_NETWORKS: Final = "h200-five"  # the store of their sweeps: foretell_bench.measuring.h200.sweeps


def five_networks(path: Path, say: Say = quiet) -> list[Example]:
    """Batch sweeps of ScaleDL's five networks, of a store that has the times of their ops."""
    return [e for e in h200_steps(path, say).items if len(e.ops)]


def _op_times(store: Any, steps: Sequence[str]) -> dict[str, tuple[Seconds, ...]]:
    """Step → device time of each of its ops, in order."""
    table = store.query("select step, device_seconds from ops where step in (select id from steps where kind = 'step')"
                        " order by step, op")  # fmt: skip
    wanted, found = set(steps), defaultdict[str, list[Seconds]](list)
    for step, seconds in zip(table["step"].to_pylist(), table["device_seconds"].to_pylist(), strict=True):
        if step in wanted:
            found[step].append(seconds)
    return {step: tuple(seconds) for step, seconds in found.items()}


# Single-process steps of torchvision's CNNs on one to four GPUs.

_CNN: Final = "cnn_many_gpus"
_CNN_DEVICES: Final = {"GeForce RTX 2080 Ti": "rtx-2080-ti", "TITAN Xp": "titan-xp"}


def cnn_many_gpus(
    folder: Path, say: Say = quiet, most: int | None = None, *, precisions: Sequence[str] = ("fp16", "fp32")
) -> Selection[Example]:
    """Training in fp32 and fp16: a Workload has no fp64. The source names no optimizer; the graph has plain SGD."""
    graphs = Graphs(say)

    def wanted(row: Row) -> Row:
        if row["mode"] != "train":
            raise LeftOut(f"of {row['mode']}")
        if row["precision"] not in precisions:
            raise LeftOut(f"in {row['precision']}")
        if row["device"] not in _CNN_DEVICES:
            raise LeftOut(f"on {row['device']}")
        return row

    def example(row: Row) -> Example:
        count, batch, seconds = row["gpus"], row["batch_per_gpu"], row["step_seconds"]
        graph = graphs.captured(
            f"torchvision/{row['model']}",
            {"batch": str(batch), "precision": row["precision"], "optimizer": "sgd", "image_size": "224"},
        )
        query = Query(
            architecture=f"torchvision/{row['model']}", plan=Plan(dp=count, data_parallel="dp" if count > 1 else "ddp"),
            cluster=Cluster.parse(f"1x{count}x{_CNN_DEVICES[row['device']]}"), graph=graph, batch=float(batch * count),
            dataset="imagenet", settings={"precision": row["precision"], "assumed": "optimizer=sgd"},
        )  # fmt: skip
        return Example(query=query, measured={STEP_TIME: seconds}, cost=row["repetitions"] * seconds)

    return _drawn(public_rows(folder, _CNN), most, lambda row: row["model"], wanted, example)


def _drawn(
    rows: Iterable[Row],
    most: int | None,
    by: Callable[[Row], Hashable],
    wanted: Callable[[Row], Row],
    example: Callable[[Row], Example],
) -> Selection[Example]:
    """Examples of the rows that are wanted, drawn evenly until there are enough."""
    usable = take(rows, wanted)
    items, left_out = list[Example](), Counter(usable.left_out)
    for row in evenly(usable.items, None, by):
        try:
            if most is not None and len(items) >= most:
                raise LeftOut("not drawn")
            items.append(example(row))
        except LeftOut as reason:
            left_out[str(reason)] += 1
    return Selection(items=tuple(items), left_out=dict(left_out))


# timm's own benchmark: one RTX 3090.

_TIMM: Final = "timm_train"
_NEWEST_TORCH: Final = "pt112"


def timm_train(folder: Path, say: Say = quiet, most: int | None = 100) -> Selection[Example]:
    """AMP in fp16 with SGD, as timm's script trains; rows of the newest torch, one layout of each architecture first."""
    graphs = Graphs(say)

    def wanted(row: Row) -> Row:
        if row["torch"] != _NEWEST_TORCH:
            raise LeftOut(f"of an older torch, {row['torch']}")
        return row

    def example(row: Row) -> Example:
        settings = {"batch": str(row["batch"]), "image_size": str(row["image_size"]), "precision": "amp-fp16",
                    "optimizer": "sgd"}  # fmt: skip
        if row["layout"] == "nhwc":
            settings["channels_last"] = "true"
        try:
            graph = graphs.captured(f"timm/{row['model']}", settings)
        except ForetellError as error:  # names come and go with timm's versions
            raise LeftOut("of a network that today's timm does not build") from error
        query = Query(
            architecture=f"timm/{row['model']}", plan=Plan(), cluster=Cluster.parse("rtx-3090"), graph=graph,
            batch=float(row["batch"]), dataset="imagenet", settings={"layout": row["layout"], "precision": "amp-fp16"},
        )  # fmt: skip
        seconds = row["step_seconds"]
        return Example(query=query, measured={STEP_TIME: seconds}, cost=STEPS_OF_A_RUN * seconds)

    return _drawn(public_rows(folder, _TIMM), most, lambda row: row["model"], wanted, example)


# Data-parallel jobs on two clusters.

_DDP: Final = "ddp_step_times"
_DDP_DEVICES: Final = {"aws": "t4", "rtx": "rtx-2080-ti"}
# Jobs whose network and input follow from their name. The others' inputs are not given, so they have no graph. The ResNet-18
# customary for CIFAR-10 does not shrink its 32 × 32 images in the stem: torchvision's has the same body at 128 × 128.
_DDP_GRAPHS: Final = {
    "cifar10": ("torchvision/resnet18", {"image_size": "128", "classes": "10"}),
    "imagenet": ("torchvision/resnet50", {"image_size": "224"}),
}


def ddp_step_times(
    folder: Path, say: Say = quiet, most: int | None = None, *, graphs: bool = True
) -> Selection[Example]:
    """Steps of six jobs by placement and batch; fp32 and SGD are assumed, where there is a graph at all."""
    made = Graphs(say)

    def wanted(row: Row) -> Row:
        if not row["batch"] or not row["step_seconds"]:
            raise LeftOut("without a batch or a step time")
        return row

    def example(row: Row) -> Example:
        counts, source = placement_of(row), _DDP_GRAPHS.get(row["app"]) if graphs else None
        settings = {"precision": "fp32", "optimizer": "sgd"}
        graph = made.of(named(source[0], {**source[1], **settings}, row["batch"], sizes=_BY_TWO)) if source else None
        query = Query(
            architecture=row["app"], plan=Plan(dp=sum(counts)), cluster=nodes_of(_DDP_DEVICES[row["cluster"]], counts),
            graph=graph, batch=float(row["batch"] * sum(counts)), dataset=row["app"],
            settings={"placement": "-".join(map(str, counts)), "assumed": "precision=fp32,optimizer=sgd"},
        )  # fmt: skip
        seconds = row["step_seconds"]
        return Example(query=query, measured={STEP_TIME: seconds}, cost=STEPS_OF_A_RUN * seconds)

    return _drawn(public_rows(folder, _DDP), most, lambda row: (row["app"], row["cluster"]), wanted, example)


# Language models on nodes of eight H100.

_SWEEP: Final = "llm_h100_sweep"


def llm_h100_sweep(folder: Path, say: Say = quiet, most: int | None = None) -> Selection[Example]:
    """Steps of about a million tokens. A run that crashed has no target."""
    graphs = Graphs(say)

    def wanted(row: Row) -> Row:
        if row["model"] not in LLAMAS:
            raise LeftOut(f"of a model {row['model']!r} whose shape is not known")
        return row

    def example(row: Row) -> Example:
        plan = Plan(
            dp=row["dp"], tp=row["tp"], pp=row["pp"], zero=row["zero"], sequence_parallel=row["tp"] > 1,
            grad_accumulation=row["grad_accumulation"],
        )  # fmt: skip
        tokens = float(row["dp"] * row["micro_batch"] * row["grad_accumulation"] * row["sequence"])
        measured: dict[str, float] = {}
        if row["tokens_per_second"] and row["status"] != "crashed":
            measured = {STEP_TIME: tokens / row["tokens_per_second"], MEMORY: row["memory_bytes"] or 0.0}
        settings = {"seq": str(row["sequence"]), "precision": "bf16"}
        query = Query(
            architecture=f"llama-{row['model'].lower()}", plan=plan, dataset="tokens", batch=tokens / row["sequence"],
            cluster=Cluster.parse(f"{row['nodes']}x8xh100-sxm@efa-400g"),
            graph=graphs.of(configured(LLAMAS[row["model"]], settings, row["micro_batch"])),
            settings={"micro_batch": str(row["micro_batch"]), "precision": "bf16", "status": row["status"]},
        )  # fmt: skip
        cost = STEPS_OF_A_RUN * measured.get(STEP_TIME, 0.0)
        return Example(query=query, measured={k: v for k, v in measured.items() if v}, cost=cost)

    kind = itemgetter("model", "gpus", "status")
    return _drawn(public_rows(folder, _SWEEP), most, kind, wanted, example)


# Audited submissions.

_MLPERF: Final = "mlperf_training"


def mlperf_training(folder: Path, say: Say = quiet, most: int | None = None) -> Selection[Example]:
    """Submissions whose accelerator is in the catalog. ResNet has a graph, in fp16 where the device has it; others none."""
    graphs = Graphs(say)

    def wanted(row: Row) -> Row:
        known = recognise(row["device"]) if row["device"] else None
        if known is None:
            raise LeftOut(f"on {row['device'] or 'an unnamed device'}, which is not in the catalog")
        if not row["devices"] or not row["global_batch"] or not row["step_seconds"]:
            raise LeftOut("without devices, batch or step time")
        return {**row, "device": known.name}

    def example(row: Row) -> Example:
        count, batch, graph = row["devices"], row["global_batch"], None
        if row["benchmark"] == "resnet" and batch >= count:
            half = "fp16" if "fp16" in device(row["device"]).peaks else "bf16"
            settings = {"precision": f"amp-{half}", "optimizer": "sgd", "channels_last": "true"}
            graph = graphs.of(named("torchvision/resnet50", settings, round(batch / count), sizes=_BY_TWO))
        counts = filled(count, row["devices_per_node"] or device(row["device"]).node_size)
        query = Query(
            architecture=row["benchmark"], plan=Plan(dp=count), cluster=nodes_of(row["device"], counts), graph=graph,
            batch=float(batch), dataset=row["benchmark"],
            settings={"round": row["round"], "org": row["organisation"]},
        )  # fmt: skip
        return Example(query=query, measured={STEP_TIME: row["step_seconds"]}, cost=row["run_seconds"] or 0.0)

    return _drawn(public_rows(folder, _MLPERF), most, lambda row: row["benchmark"], wanted, example)
