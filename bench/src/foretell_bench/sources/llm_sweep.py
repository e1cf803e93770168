"""`llm_h100_sweep`: pre-training throughput and memory under mixes of data, tensor and pipeline parallelism.

What a layer and the rest take a micro-batch is forecast; stages are those of its trainer. Numbers of its software and
network are fitted on one model size and tested on the other, both ways. Memory is in `llm_memory.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.hardware import Cluster, device
from foretell.learn.adapt.factors import Refusal
from foretell.plan import Plan
from foretell.units import Seconds
from foretell_bench.sources import nanotron
from foretell_bench.sources.cases import Models, sample
from foretell_bench.sources.layers import (
    Layers,
    Pace,
    Parts,
    Stage,
    one_forward_one_backward,
    sync_seconds,
    update_seconds,
)
from foretell_bench.sources.llm_memory import Held, held, memory_figures
from foretell_bench.sources.nanotron import Llama
from foretell_bench.sources.rows import Row, Say, number, read_rows
from foretell_bench.sources.trainers import trainer
from foretell_bench.tables.figures import Figure, rank_correlation, relative_errors
from foretell_bench.tables.fitting import foretold_by_others

SOURCE = "llm_h100_sweep"
_PLAN_COLUMNS = ("model", "nodes", "micro_batch", "grad_accum", "dp", "pp", "tp", "zero")
_COLUMNS = (*_PLAN_COLUMNS, "gpus", "seq_len", "mfu", "tokens_per_s", "memory_gb", "status")
_MODELS = {
    "1B": Llama(layers=16, width=2048, mlp=8192, heads=32, vocabulary=131072, tied=True),
    "8B": Llama(layers=32, width=4096, mlp=14336, heads=32, vocabulary=131072, tied=False),
}
_DEVICE, _NODE, _NETWORK = "h100-sxm", 8, "efa-400g"
_GRADIENT, _WEIGHT = 4, 2  # bytes that replicas exchange a parameter
_READABLE = 0.10  # MFU; many rows below it are the shared cluster's trouble
# Where the fit starts: factors for device, host, waiting and synchronising; seconds of the host a layer where stages on
# several nodes hand over, for two tensor-parallel ranks, and with which power of them it grows; seconds of a hop of
# tensor parallelism between nodes; seconds a step beside.
_START = (1.0, 2.0, 1.0, 1.0, 2e-3, 1.0, 5e-5, 0.02)


@dataclass(frozen=True, slots=True)
class _Case:
    model: str
    plan: Plan
    nodes: int
    parts: Parts
    stages: tuple[Stage, ...]
    sync: Seconds
    measured: Seconds
    tokens: int
    mfu: float

    def seconds(self, numbers: Sequence[float]) -> Seconds:
        on_device, host, waiting, sync, crowd, power, hop, beside = numbers
        plan = self.plan
        crowded = plan.pp > 1 and plan.tp > 1 and self.nodes > 1
        hops = trainer("nanotron")["layer"]["collectives"] * (plan.tp - 1) if plan.tp > _NODE else 0
        pace = Pace(
            on_device, host, waiting, layer_host=crowd * (plan.tp / 2) ** power if crowded else 0.0, layer_waiting=hop * hops
        )  # fmt: skip
        piped = one_forward_one_backward(pace, self.parts, self.stages, plan.grad_accumulation or 1)
        return piped + sync * self.sync + on_device * update_seconds(self.parts, self.stages) + beside


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    rows = [row for row in read_rows(data, SOURCE, _COLUMNS) if row["model"] in _MODELS]
    layers, cases, refused = Layers(Models(say)), [], Counter[str]()
    kept = []
    chosen = sample(rows, most, by=("model", "status"))
    for row in chosen:
        say(f"{SOURCE}: {row['model']} on {row['gpus']}")
        kept.append(_held(row))
        if row["status"] == "crashed":
            continue
        case = _case(layers, row)
        if isinstance(case, _Case):
            cases.append(case)
        else:
            refused[case.why[:60]] += 1
    note = f"{len(chosen)} of {len(rows)} rows asked" + "".join(
        f"; {count} not run: {why}" for why, count in refused.items()
    )
    return _speed(cases, note) + memory_figures(SOURCE, kept)


def all_held(data: Path) -> list[Held]:
    """What became of every plan of the file, for growing trees on."""
    return [_held(row) for row in read_rows(data, SOURCE, _COLUMNS) if row["model"] in _MODELS]


def _plan(row: Row) -> Plan:
    tp = int(row["tp"])
    return Plan(dp=int(row["dp"]), tp=tp, pp=int(row["pp"]), zero=int(row["zero"]), sequence_parallel=tp > 1,
                grad_accumulation=int(row["grad_accum"]))  # fmt: skip


def _config(model: Llama) -> dict[str, Any]:
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": model.vocabulary,
        "hidden_size": model.width, "intermediate_size": model.mlp, "num_attention_heads": model.heads,
        "num_key_value_heads": model.heads, "max_position_embeddings": 4096, "tie_word_embeddings": model.tied,
    }  # fmt: skip


def _case(layers: Layers, row: Row) -> _Case | Refusal:
    model, plan, micro_batch = _MODELS[row["model"]], _plan(row), int(row["micro_batch"])
    layout = nanotron.stages(model, plan.pp)
    if layout is None:
        return Refusal(why=f"{plan.pp} stages leave some without parameters", impossible=True)
    group = f"{-(-plan.tp // _NODE)}x{min(plan.tp, _NODE)}x{_DEVICE}@{_NETWORK}"
    settings = {"seq": row["seq_len"], "precision": "bf16"}
    split = Plan(tp=plan.tp, sequence_parallel=plan.tp > 1)
    parts = layers.parts(_config(model), settings, micro_batch, split, group)
    if isinstance(parts, Refusal):
        return parts
    largest = round(max(nanotron.parameters(model, stage, plan) for stage in layout))
    cluster = Cluster.parse(f"{row['nodes']}x{_NODE}x{_DEVICE}@{_NETWORK}")
    tokens = plan.dp * micro_batch * (plan.grad_accumulation or 1) * int(row["seq_len"])
    return _Case(
        row["model"], plan, int(row["nodes"]), parts, tuple(layout),
        sync_seconds(cluster, plan, _GRADIENT * largest, _WEIGHT * largest), tokens / (number(row, "tokens_per_s") or 1.0),
        tokens, number(row, "mfu") or 0.0,
    )  # fmt: skip


def _held(row: Row) -> Held:
    gigabytes = None if row["status"] == "crashed" else number(row, "memory_gb")
    return held(
        "|".join(row[column] for column in _PLAN_COLUMNS), _MODELS[row["model"]], _plan(row), int(row["micro_batch"]),
        int(row["seq_len"]), device(_DEVICE), None if gigabytes is None else round(gigabytes * 1e9),
    )  # fmt: skip


def _speed(cases: Sequence[_Case], note: str) -> list[Figure]:
    foretold = foretold_by_others(cases, _START, kind=lambda case: case.model)
    tested, predicted = [case for case, _ in foretold], [seconds for _, seconds in foretold]
    few = f"{_READABLE:.0%} MFU and more"
    if not tested:
        return [
            Figure(source=SOURCE, measure="tokens/s", value=None, bar=0.12, note=f"too few rows to calibrate; {note}")
        ]
    errors = relative_errors([c.measured for c in tested], predicted)  # of tokens a second, which is one over a step
    readable = errors[np.array([c.mfu for c in tested]) >= _READABLE]
    rates = [[c.tokens / s for c, s in zip(tested, seconds, strict=True)]
             for seconds in (predicted, [c.measured for c in tested])]  # fmt: skip
    return [
        Figure(source=SOURCE, measure=f"tokens/s, other size, {few}, median error", value=float(np.median(readable)), bar=0.12,
               rows=len(readable), note=note),
        Figure(source=SOURCE, measure=f"tokens/s, other size, {few}, mean error", value=float(readable.mean()), bar=0.18,
               rows=len(readable)),
        Figure(source=SOURCE, measure="tokens/s, other size, all rows, median error", value=float(np.median(errors)), bar=0.25,
               rows=len(errors)),
        Figure(source=SOURCE, measure="tokens/s, rank correlation", value=rank_correlation(*rates), bar=0.95, at_least=True,
               rows=len(errors)),
    ]  # fmt: skip
