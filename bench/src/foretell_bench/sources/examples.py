"""Measured steps as examples that methods are fitted on and held against: one loader a source.

A source that does not say what was run gives queries without a graph; what a source leaves open and we assume is in the
query's settings under `assumed`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

from foretell.errors import CaptureError, InputError
from foretell.graph import Graph
from foretell.hardware import Cluster, Link, Node, device, host, link, recognise
from foretell.methods.protocol import DEVICE_TIME, HOST_TIME, MEMORY, STEP_TIME, Example, Query
from foretell.plan import Plan
from foretell.units import Seconds
from foretell_bench.sources.cases import Models
from foretell_bench.sources.rows import Row, Say, number, read_rows

T = TypeVar("T")
_TWO_BATCHES: Final = (2, 4)
_SAME_STEP: Final = 1.5  # kernels that take this many steps were not recorded of the steps that were timed
_UNTIMED_STEPS: Final = 11  # that the instrument runs beside its repetitions: warm-up, issuing, traces
STEPS_OF_A_RUN: Final = 50  # where a source does not say how often it repeated a step


def quiet(text: str) -> None:
    """Says nothing."""


def evenly(items: Iterable[T], most: int | None, by: Callable[[T], Hashable]) -> list[T]:
    """Some of many, as many of each kind where there are enough; items are drawn by what they say, not where they stand."""
    kinds: dict[Hashable, list[T]] = defaultdict(list)
    for item in sorted(items, key=lambda item: hashlib.sha256(repr(item).encode()).digest()):
        kinds[by(item)].append(item)
    turns = zip_longest(*kinds.values())
    return list(islice((item for turn in turns for item in turn if item is not None), most))


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
    """Graphs of named sources; a batch is continued from two captured ones where the step allows it."""

    def __init__(self, say: Say = quiet) -> None:
        self._say = say
        self._known: dict[str, Graph] = {}

    def captured(self, source: str, settings: Mapping[str, str]) -> Graph:
        from foretell.capture import capture

        key = json.dumps([source, sorted(settings.items())])
        if key not in self._known:
            self._known[key] = capture(source, settings, progress=self._say)
        return self._known[key]

    def at(self, source: str, settings: Mapping[str, str], batch: int) -> Graph:
        from foretell.graph.rescale import extend, same_path

        key = json.dumps([source, sorted(settings.items()), batch])
        if key not in self._known:
            first, second = (self.captured(source, {**settings, "batch": str(size)}) for size in _TWO_BATCHES)
            self._known[key] = (
                extend(first, second, sizes=_TWO_BATCHES, to=batch)
                if same_path(first, second)
                else self.captured(source, {**settings, "batch": str(batch)})
            )
        return self._known[key]


# The project's own store: one H200.


def h200_steps(
    path: Path, say: Say = quiet, most: int | None = None, *, only: Collection[str] | None = None, whole: bool = False
) -> list[Example]:
    """Steps of a store that ran on one device, of all sources or only some, with the times of ops where a trace told them.

    Of many steps, some of every architecture are taken; or, `whole`, all of some architectures that have several.
    """
    from foretell.learn.dataset import RECORDED_ALONE
    from foretell.learn.fit import families_of
    from foretell.store.store import Store

    store = Store(path)
    if not store.exists():
        raise InputError(f"there is no store in {path}. Measure into one with: foretell measure SOURCE --store {path}")
    rows = [s for s in store.steps("kind = 'step' AND outcome = 'ok' AND world_size = 1")
            if s.step_seconds and s.graph and (only is None or s.source in only)
            and (s.device_seconds or 0.0) < _SAME_STEP * s.step_seconds]  # fmt: skip
    chosen = several(rows, most, by=lambda s: s.source) if whole else evenly(rows, most, by=lambda s: s.source)
    say(f"reading {len(chosen)} steps of {path}")
    graphs, families = store.graphs({s.graph for s in chosen if s.graph}), families_of(store)
    times = _op_times(store, [s.id for s in chosen])
    examples = []
    for s in sorted(chosen, key=lambda s: (s.source, s.settings, s.id)):
        graph = graphs[s.graph or ""]
        alone = any(mark.startswith(RECORDED_ALONE) for mark in s.marks)
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
    return examples


def _op_times(store: Any, steps: Sequence[str]) -> dict[str, tuple[Seconds, ...]]:
    """Step → device time of each of its ops, in order."""
    table = store.query("select step, device_seconds from ops where step in (select id from steps where kind = 'step')"
                        " order by step, op")  # fmt: skip
    wanted, found = set(steps), defaultdict[str, list[Seconds]](list)
    for step, seconds in zip(table["step"].to_pylist(), table["device_seconds"].to_pylist(), strict=True):
        if step in wanted:
            found[step].append(seconds)
    return {step: tuple(seconds) for step, seconds in found.items()}


def dataset_of(graph: Graph) -> str:
    """The type of data a step reads, by the shape of its inputs."""
    shapes = {t.layout for t in graph.tensors if graph.storages[t.storage].role == "input"}
    if any(len(x.shape) == 4 and x.shape[1] in (1, 3) and x.dtype.startswith(("float", "bfloat")) for x in shapes):
        return "images"
    return "tokens" if any(len(x.shape) == 2 and x.dtype == "int64" for x in shapes) else "other"


# Single-process steps of torchvision's CNNs on one to four GPUs.

_CNN: Final = "cnn_many_gpus"
_CNN_COLUMNS: Final = ("gpu", "n_gpus", "precision", "mode", "model", "n", "ms_median", "batch_per_gpu")
_CNN_DEVICES: Final = {"GeForce RTX 2080 Ti": "rtx-2080-ti", "TITAN Xp": "titan-xp"}


def cnn_many_gpus(
    folder: Path, say: Say = quiet, most: int | None = None, *, precisions: Sequence[str] = ("fp16", "fp32")
) -> list[Example]:
    """Training in fp32 and fp16: a Workload has no fp64. The source names no optimizer; the graph has plain SGD."""
    rows = [r for r in read_rows(folder, _CNN, _CNN_COLUMNS)
            if r["mode"] == "train" and r["precision"] in precisions and r["gpu"] in _CNN_DEVICES]  # fmt: skip
    graphs, examples = Graphs(say), []
    for row in evenly(rows, most, by=lambda r: r["model"]):
        count, batch, seconds = int(row["n_gpus"]), int(row["batch_per_gpu"]), float(row["ms_median"]) / 1e3
        graph = graphs.captured(
            f"torchvision/{row['model']}",
            {"batch": str(batch), "precision": row["precision"], "optimizer": "sgd", "image_size": "224"},
        )
        query = Query(
            architecture=f"torchvision/{row['model']}", plan=Plan(dp=count, data_parallel="dp" if count > 1 else "ddp"),
            cluster=Cluster.parse(f"1x{count}x{_CNN_DEVICES[row['gpu']]}"), graph=graph, batch=float(batch * count),
            dataset="imagenet", settings={"precision": row["precision"], "assumed": "optimizer=sgd"},
        )  # fmt: skip
        examples.append(Example(query=query, measured={STEP_TIME: seconds}, cost=float(row["n"]) * seconds))
    return examples


# timm's own benchmark: one RTX 3090.

_TIMM: Final = "timm_train"
_TIMM_COLUMNS: Final = ("device", "layout", "torch", "model", "train_step_time", "train_batch_size", "train_img_size")
_NEWEST_TORCH: Final = "pt112"


def timm_train(folder: Path, say: Say = quiet, most: int | None = 100) -> list[Example]:
    """AMP in fp16 with SGD, as timm's script trains; rows of the newest torch, one layout of each architecture first."""
    rows = [r for r in read_rows(folder, _TIMM, _TIMM_COLUMNS) if r["torch"] == _NEWEST_TORCH]
    examples: list[Example] = []
    graphs = Graphs(say)
    for row in evenly(rows, None, by=lambda r: r["model"]):
        if most is not None and len(examples) >= most:
            break
        settings = {"batch": str(int(float(row["train_batch_size"]))), "image_size": str(int(float(row["train_img_size"]))),
                    "precision": "amp-fp16", "optimizer": "sgd"}  # fmt: skip
        if row["layout"] == "nhwc":
            settings["channels_last"] = "true"
        try:
            graph = graphs.captured(f"timm/{row['model']}", settings)
        except (CaptureError, InputError) as error:  # names come and go with timm's versions
            say(f"left out {row['model']}: {error}")
            continue
        seconds = float(row["train_step_time"]) / 1e3
        query = Query(
            architecture=f"timm/{row['model']}", plan=Plan(), cluster=Cluster.parse("rtx-3090"), graph=graph,
            batch=float(settings["batch"]), dataset="imagenet",
            settings={"layout": row["layout"], "precision": "amp-fp16"},
        )  # fmt: skip
        examples.append(Example(query=query, measured={STEP_TIME: seconds}, cost=STEPS_OF_A_RUN * seconds))
    return examples


# Data-parallel jobs on two clusters.

_DDP: Final = "ddp_step_times"
_DDP_COLUMNS: Final = ("app", "cluster", "placement", "num_nodes", "num_replicas", "local_bsz", "step_time_s")
_DDP_DEVICES: Final = {"aws": "t4", "rtx": "rtx-2080-ti"}
# Jobs whose network and input follow from their name. The others' inputs are not given, so they have no graph. The ResNet-18
# customary for CIFAR-10 does not shrink its 32 × 32 images in the stem: torchvision's has the same body at 128 × 128.
_DDP_GRAPHS: Final = {
    "cifar10": ("torchvision/resnet18", {"image_size": "128", "classes": "10"}),
    "imagenet": ("torchvision/resnet50", {"image_size": "224"}),
}


def ddp_step_times(folder: Path, say: Say = quiet, most: int | None = None, *, graphs: bool = True) -> list[Example]:
    """Steps of six jobs by placement and batch; fp32 and SGD are assumed, where there is a graph at all."""
    rows = [r for r in read_rows(folder, _DDP, _DDP_COLUMNS) if number(r, "local_bsz") and number(r, "step_time_s")]
    made, examples = Graphs(say), []
    for row in evenly(rows, most, by=lambda r: (r["app"], r["cluster"])):
        local, seconds, counts = float(row["local_bsz"]), float(row["step_time_s"]), placement_of(row)
        source = _DDP_GRAPHS.get(row["app"]) if graphs else None
        graph = (
            made.at(source[0], {**source[1], "precision": "fp32", "optimizer": "sgd"}, int(local)) if source else None
        )
        query = Query(
            architecture=row["app"], plan=Plan(dp=sum(counts)), cluster=_placed(_DDP_DEVICES[row["cluster"]], counts),
            graph=graph, batch=local * sum(counts), dataset=row["app"],
            settings={"placement": "-".join(map(str, counts)), "assumed": "precision=fp32,optimizer=sgd"},
        )  # fmt: skip
        examples.append(Example(query=query, measured={STEP_TIME: seconds}, cost=STEPS_OF_A_RUN * seconds))
    return examples


def placement_of(row: Mapping[str, str]) -> tuple[int, ...]:
    """`44` is 4 + 4 replicas; without a placement they are spread evenly."""
    placement = number(dict(row), "placement")
    if placement is not None:
        return tuple(sorted((int(digit) for digit in str(int(placement))), reverse=True))
    nodes, replicas = int(row["num_nodes"]), int(row["num_replicas"])
    return tuple(replicas // nodes + (i < replicas % nodes) for i in range(nodes))


def _placed(name: str, counts: Sequence[int]) -> Cluster:
    made = device(name)
    nodes = {n: Node(device=made, count=n, host=host(made.host), inside=link(made.inside)) for n in set(counts)}
    return Cluster(nodes=tuple(nodes[n] for n in counts), between=link(made.between) if len(counts) > 1 else None)


# Language models on nodes of eight H100.


_SWEEP: Final = "llm_h100_sweep"
_SWEEP_COLUMNS: Final = ("model", "nodes", "gpus", "micro_batch", "grad_accum", "dp", "pp", "tp", "zero", "seq_len",
                         "tokens_per_s", "memory_gb", "status")  # fmt: skip
_LLAMA: Final = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 131072,
                 "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096}  # fmt: skip
_LLAMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "tie_word_embeddings": False},
}


def llm_h100_sweep(folder: Path, say: Say = quiet, most: int | None = None) -> list[Example]:
    """Steps of about a million tokens. A run that crashed has no target."""
    rows = [row for row in read_rows(folder, _SWEEP, _SWEEP_COLUMNS) if row["model"] in _LLAMAS]
    models, examples = Models(say), []
    for row in evenly(rows, most, by=lambda r: (r["model"], r["gpus"], r["status"])):
        throughput, tp, tokens = number(row, "tokens_per_s"), int(row["tp"]), _tokens(row)
        plan = Plan(dp=int(row["dp"]), tp=tp, pp=int(row["pp"]), zero=int(row["zero"]), sequence_parallel=tp > 1,
                    grad_accumulation=int(row["grad_accum"]))  # fmt: skip
        measured: dict[str, float] = {}
        if throughput and row["status"] != "crashed":
            measured = {STEP_TIME: tokens / throughput, MEMORY: (number(row, "memory_gb") or 0.0) * 1e9}
        settings = {"seq": row["seq_len"], "precision": "bf16"}
        query = Query(
            architecture=f"llama-{row['model'].lower()}", plan=plan, dataset="tokens", batch=tokens / int(row["seq_len"]),
            cluster=Cluster.parse(f"{row['nodes']}x8xh100-sxm@efa-400g"),
            graph=models.graph(_LLAMA | dict(_LLAMAS[row["model"]]), settings, int(row["micro_batch"])),
            settings={"micro_batch": row["micro_batch"], "precision": "bf16", "status": row["status"]},
        )  # fmt: skip
        cost = STEPS_OF_A_RUN * measured.get(STEP_TIME, 0.0)
        examples.append(Example(query=query, measured={k: v for k, v in measured.items() if v}, cost=cost))
    return examples


def _tokens(row: Row) -> float:
    return float(int(row["dp"]) * int(row["micro_batch"]) * int(row["grad_accum"]) * int(row["seq_len"]))


# Audited submissions.

_MLPERF: Final = "mlperf_training"
_MLPERF_COLUMNS: Final = ("round", "org", "benchmark", "accelerator", "acc_per_node", "num_acc", "global_batch_size",
                          "step_time_s", "run_time_median_s")  # fmt: skip


def mlperf_training(folder: Path, say: Say = quiet, most: int | None = None) -> list[Example]:
    """Submissions whose accelerator is in the catalogue. ResNet has a graph, in fp16 where the device has it; others none."""
    rows = []
    for row in read_rows(folder, _MLPERF, _MLPERF_COLUMNS):
        known = recognise(row["accelerator"]) if row["accelerator"] else None
        if known and number(row, "num_acc") and number(row, "global_batch_size") and number(row, "step_time_s"):
            rows.append({**row, "device": known.name})
    graphs, examples = Graphs(say), []
    for row in evenly(rows, most, by=lambda r: r["benchmark"]):
        count, batch, seconds = int(float(row["num_acc"])), float(row["global_batch_size"]), float(row["step_time_s"])
        graph = None
        if row["benchmark"] == "resnet" and batch >= count:
            half = "fp16" if "fp16" in device(row["device"]).peaks else "bf16"
            settings = {"precision": f"amp-{half}", "optimizer": "sgd", "channels_last": "true"}
            graph = graphs.at("torchvision/resnet50", settings, round(batch / count))
        query = Query(
            architecture=row["benchmark"], plan=Plan(dp=count), cluster=_submitted(row, count), graph=graph, batch=batch,
            dataset=row["benchmark"], settings={"round": row["round"], "org": row["org"]},
        )  # fmt: skip
        cost = number(row, "run_time_median_s") or 0.0
        examples.append(Example(query=query, measured={STEP_TIME: seconds}, cost=cost))
    return examples


def _submitted(row: Row, count: int) -> Cluster:
    size = min(int(number(row, "acc_per_node") or device(row["device"]).node_size), count)
    full, rest = divmod(count, size)
    return _placed(row["device"], [size] * full + [rest] * (rest > 0))


# Hosts in a box: gloo over links of a limited rate. `bench/box.py` reads the runs.


def box_cluster(hosts: int, bytes_per_second: float) -> Cluster:
    """Hosts of one CPU each, joined by links of this rate."""
    cpu, usual = device("cpu"), link("eth-1g")
    wire = Link(name="wire", title="a limited link", bandwidth=bytes_per_second or usual.bandwidth, latency=usual.latency,
                kind="between", source="tc", fabric="tcp")  # fmt: skip
    node = Node(device=cpu, count=1, host=host(cpu.host), inside=link(cpu.inside))
    return Cluster(nodes=(node,) * hosts, between=wire if hosts > 1 else None)
