"""`vtrain_single_node`: iteration times of GPT steps on a node of A100, every layer checkpointed.

Numbers of the trainer's software are fitted on all model shapes but the one that is tested, each shape once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell.hardware import Cluster
from foretell.learn.adapt.factors import Refusal
from foretell.plan import Plan
from foretell.units import Seconds
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
from foretell_bench.sources.rows import Row, Say, read_rows
from foretell_bench.tables.figures import Figure, relative_errors
from foretell_bench.tables.fitting import foretold_by_others

SOURCE = "vtrain_single_node"
_COLUMNS = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length",
            "tensor parallelism", "data parallelism", "pipeline parallelism", "iteration time (ms)")  # fmt: skip
_DEVICE = "a100-40g-sxm"
_VOCABULARY = 51200  # GPT-2's, padded as Megatron does for every split up to 8
_MEASURE = "iteration time of other model shapes, mean error"
_BYTES = 2  # of a gradient, as it is sent
# Where the fit starts: factors for device, host, waiting and synchronising; seconds of the host a layer for two
# tensor-parallel ranks, and with which power of them it grows; seconds a step beside.
_START = (1.0, 1.0, 1.0, 1.0, 1e-4, 1.0, 0.01)


@dataclass(frozen=True, slots=True)
class _Case:
    shape: str
    tp: int
    parts: Parts
    stages: tuple[Stage, ...]
    micro_steps: int
    sync: Seconds
    measured: Seconds

    def seconds(self, numbers: Sequence[float]) -> Seconds:
        device, host, waiting, sync, crowd, power, beside = numbers
        pace = Pace(device, host, waiting, layer_host=crowd * (self.tp / 2) ** power if self.tp > 1 else 0.0)
        piped = one_forward_one_backward(pace, self.parts, self.stages, self.micro_steps)
        return piped + sync * self.sync + device * update_seconds(self.parts, self.stages) + beside


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    rows = read_rows(data, SOURCE, _COLUMNS)
    layers, cases, refused = Layers(Models(say)), [], Counter[str]()
    chosen = sample(rows, most, by=("hidden size", "# layers"))
    for row in chosen:
        say(f"{SOURCE}: {_shape(row)} on {row['# GPUs']}")
        case = _case(layers, row)
        if isinstance(case, _Case):
            cases.append(case)
        else:
            refused[case.why[:80]] += 1
    note = "".join(f"; {count} not run: {why}" for why, count in refused.items())
    foretold = foretold_by_others(cases, _START, kind=lambda case: case.shape)
    if not foretold:
        return [Figure(source=SOURCE, measure=_MEASURE, value=None, bar=0.08, note=f"too few rows to calibrate{note}")]
    errors = relative_errors([seconds for _, seconds in foretold], [case.measured for case, _ in foretold])
    return [
        Figure(source=SOURCE, measure=_MEASURE, value=float(errors.mean()), bar=0.08, rows=len(errors),
               note=f"{len(chosen)} of {len(rows)} rows asked{note}")
    ]  # fmt: skip


def _shape(row: Row) -> str:
    return f"{row['hidden size']} × {row['# layers']}"


def _case(layers: Layers, row: Row) -> _Case | Refusal:
    hidden, depth = int(row["hidden size"]), int(row["# layers"])
    dp, tp, pp = (int(row[f"{kind} parallelism"]) for kind in ("data", "tensor", "pipeline"))
    if depth % pp:
        return Refusal(why=f"{depth} layers do not divide into {pp} stages", impossible=True)
    config = {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": _VOCABULARY, "hidden_size": hidden,
        "word_embed_proj_dim": hidden, "ffn_dim": 4 * hidden, "num_attention_heads": int(row["attention heads"]),
        "max_position_embeddings": int(row["sequence length"]), "activation_function": "gelu", "dropout": 0.0,
    }  # fmt: skip
    settings = {"seq": row["sequence length"], "precision": "fp16", "checkpointing": "true"}
    parts = layers.parts(config, settings, int(row["micro batch"]), Plan(tp=tp), f"{tp}x{_DEVICE}")
    if isinstance(parts, Refusal):
        return parts
    each, last = depth // pp, pp - 1
    stages = tuple(Stage(each, embedding=number == 0, head=number == last) for number in range(pp))
    parameters = (12 * hidden**2 * each + _VOCABULARY * hidden) // tp
    sync = sync_seconds(
        Cluster.parse(f"{row['# GPUs']}x{_DEVICE}"), Plan(dp=dp, tp=tp, pp=pp), _BYTES * parameters, _BYTES * parameters
    )
    micro_steps = max(int(row["global batch"]) // (int(row["micro batch"]) * dp), 1)
    return _Case(_shape(row), tp, parts, stages, micro_steps, sync, float(row["iteration time (ms)"]) / 1e3)
