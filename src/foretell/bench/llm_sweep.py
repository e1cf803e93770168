"""`llm_h100_sweep`: pre-training throughput and memory under mixes of data, tensor and pipeline parallelism.

Factors are fitted on one model size and tested on the other, both ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.bench.cases import ENOUGH, Answer, Models, Refusal, ask, calibrate, sample
from foretell.bench.figures import Figure, rank_correlation, relative_errors
from foretell.bench.rows import Row, Say, number, read_rows
from foretell.graph import Graph
from foretell.hardware import Cluster, device
from foretell.units import Bytes, Seconds
from foretell.workload import Plan

SOURCE = "llm_h100_sweep"
_COLUMNS = ("model", "nodes", "gpus", "micro_batch", "grad_accum", "global_batch", "dp", "pp", "tp", "zero", "seq_len",
            "mfu", "tokens_per_s", "memory_gb", "status")  # fmt: skip
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 131072,
          "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096}  # fmt: skip
_MODELS: dict[str, dict[str, Any]] = {
    "1B": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
    },
    "8B": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "tie_word_embeddings": False,
    },
}
_CLUSTER = "{nodes}x8xh100-sxm@efa-400g"
# What the trainer holds a bf16 parameter, in bytes: itself, its gradient, an fp32 sum of gradients; a master copy and
# two moments, which ZeRO 1 splits.
_HELD, _SPLIT = 2 + 2 + 4, 4 + 8
_GATHERED = 2  # tensors a layer that sequence parallelism gathers, and this trainer gathers again rather than keep
_READABLE = 0.10  # MFU; rows below it are mostly the shared cluster's trouble, and are tested but not fitted on


@dataclass(frozen=True, slots=True)
class _Case:
    model: str
    plan: Plan
    micro_batch: int
    seq: int
    answer: Answer
    seconds: Seconds | None  # None: crashed
    memory: Bytes
    mfu: float

    @property
    def predicted_memory(self) -> float:
        memory = self.answer.memory
        parameters = memory["parameters"] / 2
        states = parameters * (_HELD + _SPLIT / (self.plan.dp if self.plan.zero else 1))
        others = memory["allocated"] - memory["parameters"] - memory["gradients"] - memory["optimizer"]
        return others + states - self._gathered_again

    @property
    def needs(self) -> float:
        """With what the allocator keeps beside it, the context and the communicators."""
        return self.predicted_memory + self.answer.memory["total"] - self.answer.memory["allocated"]

    @property
    def _gathered_again(self) -> float:
        """What our tensor parallelism keeps of gathered activations, as PyTorch's does."""
        shape, plan = _MODELS[self.model], self.plan
        each = 2 * self.micro_batch * self.seq * shape["hidden_size"] * (1 - 1 / plan.tp)
        in_flight = min(plan.pp, plan.grad_accumulation or 1)
        return float(_GATHERED * each * shape["num_hidden_layers"] / plan.pp * in_flight)


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    rows = rows_of(data)
    chosen = sample(rows, most, by=("model", "status"))
    models, cases, refused, impossible_crashes = Models(say), [], Counter[str](), [0, 0]
    for row in chosen:
        say(f"{SOURCE}: {row['model']} on {row['gpus']}")
        answer = ask(graph_of(models, row), cluster_of(row), plan_of(row))
        if isinstance(answer, Answer):
            cases.append(_case(row, answer))
        elif answer.impossible:
            impossible_crashes[row["status"] == "crashed"] += 1
        else:
            refused[_reason(answer)] += 1
    return _figures(cases, impossible_crashes, refused, f"{len(chosen)} of {len(rows)} rows asked")


def rows_of(data: Path) -> list[Row]:
    return [row for row in read_rows(data, SOURCE, _COLUMNS) if row["model"] in _MODELS]


def graph_of(models: Models, row: Row) -> Graph:
    return models.graph(_MODELS[row["model"]], {"seq": row["seq_len"], "precision": "bf16"}, int(row["micro_batch"]))


def cluster_of(row: Row) -> Cluster:
    return Cluster.parse(_CLUSTER.format(**row))


def plan_of(row: Row) -> Plan:
    tp = int(row["tp"])
    return Plan(dp=int(row["dp"]), tp=tp, pp=int(row["pp"]), zero=int(row["zero"]), sequence_parallel=tp > 1,
                grad_accumulation=int(row["grad_accum"]))  # fmt: skip


def _reason(refusal: Refusal) -> str:
    return refusal.why.partition(" asks for ")[2].partition(",")[0] or refusal.why[:60]


def _case(row: Row, answer: Answer) -> _Case:
    throughput = number(row, "tokens_per_s")
    tokens = int(row["dp"]) * int(row["micro_batch"]) * int(row["grad_accum"]) * int(row["seq_len"])
    return _Case(
        row["model"], plan_of(row), int(row["micro_batch"]), int(row["seq_len"]), answer,
        tokens / throughput if throughput else None, round((number(row, "memory_gb") or 0) * 1e9), number(row, "mfu") or 0.0,
    )  # fmt: skip


def _figures(
    cases: Sequence[_Case], impossible: Sequence[int], refused: Counter[str], asked: str
) -> list[Figure]:  # fmt: skip
    ran = [case for case in cases if case.seconds]
    note = asked + "".join(f"; {count} not run, plan not modelled yet: {why}" for why, count in refused.items())
    predicted, measured, mfu = _across(ran)
    if not predicted:
        return [
            Figure(source=SOURCE, measure="tokens/s", value=None, bar=0.12, note=f"too few rows to calibrate; {note}")
        ]
    errors = relative_errors(measured, predicted)  # of tokens a second, which is one over a step
    readable = errors[np.array(mfu) >= _READABLE]
    memory = relative_errors([c.predicted_memory for c in ran], [c.memory for c in ran])
    capacity = device("h100-sxm").usable_bytes
    right = [(c.needs > capacity) == (c.seconds is None) for c in cases]
    right += [False] * impossible[0] + [True] * impossible[1]
    few = f"{_READABLE:.0%} MFU and more"
    return [
        Figure(source=SOURCE, measure=f"tokens/s, other size, {few}, median error", value=float(np.median(readable)), bar=0.12,
               rows=len(readable), note=note),
        Figure(source=SOURCE, measure=f"tokens/s, other size, {few}, mean error", value=float(readable.mean()), bar=0.18,
               rows=len(readable)),
        Figure(source=SOURCE, measure="tokens/s, other size, all rows, median error", value=float(np.median(errors)), bar=0.25,
               rows=len(errors)),
        Figure(source=SOURCE, measure="tokens/s, rank correlation", value=rank_correlation(predicted, measured), bar=0.95,
               at_least=True, rows=len(errors)),
        Figure(source=SOURCE, measure="memory, mean error", value=float(memory.mean()), bar=0.08, rows=len(memory)),
        Figure(source=SOURCE, measure="crashed or not, called right", value=float(np.mean(right)), bar=0.95, at_least=True,
               rows=len(right)),
    ]  # fmt: skip


def _across(ran: Sequence[_Case]) -> tuple[list[Seconds], list[Seconds], list[float]]:
    """Each size predicted with the factors of the other: predicted, measured, MFU."""
    predicted: list[Seconds] = []
    measured: list[Seconds] = []
    mfu: list[float] = []
    for size in _MODELS:
        known = [case for case in ran if case.model != size and case.mfu >= _READABLE]
        if len(known) < ENOUGH:
            continue
        factors = calibrate([c.answer for c in known], [c.seconds or 0.0 for c in known])
        for case in (case for case in ran if case.model == size):
            predicted.append(case.answer.seconds(factors))
            measured.append(case.seconds or 0.0)
            mfu.append(case.mfu)
    return predicted, measured, mfu
