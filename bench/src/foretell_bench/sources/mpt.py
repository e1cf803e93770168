"""`fsdp_mpt`: pre-training throughput of MPT under FSDP, 8 to 128 A100.

Models are captured shallow: a step is linear in its layers, so two depths give any. The same holds for batch and
sequence, so few captures serve all rows. Factors are fitted on all model sizes but the one that is tested; attention has
one of its own, since trainers bring their own kernels for it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell.cost.model import DEFAULT as DEFAULT_MODEL
from foretell.cost.model import load_model
from foretell.graph import Graph
from foretell.hardware import Cluster
from foretell.learn.adapt.factors import Refusal, ask
from foretell.plan import Plan
from foretell.units import Seconds
from foretell_bench.sources.cases import Models, sample
from foretell_bench.sources.layers import side_by_side
from foretell_bench.sources.rows import Row, Say, read_rows
from foretell_bench.tables.figures import Figure, relative_errors
from foretell_bench.tables.fitting import foretold_by_others

SOURCE = "fsdp_mpt"
_COLUMNS = ("Model", "SeqLen (T)", "# GPUs", "GPU", "MicroBatchSize", "GradAccum", "GlobalBatchSize (T)", "Throughput (T/s)",
            "Sharding Strategy", "Activation Checkpointing")  # fmt: skip
_MEASURE = "throughput of other model sizes, mean error"
# Width, layers, heads, as the parameter counts of the source confirm.
_SHAPES = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64),
}  # fmt: skip
_DEVICES = {"a100_80gb": "a100-80g-sxm", "a100_40gb": "a100-40g-sxm"}
_VOCABULARY = 50368
_START = (1.0, 1.0, 1.0, 1.0)  # attention, the rest of the device's time, host, waiting
_PULL = 0.3  # steps are off by a tenth or so, factors by a third: one that the steps do not show stays near one
_DEPTHS, _SEQUENCES = (2, 4), (512, 1024)


@dataclass(frozen=True, slots=True)
class _Parts:
    attention: Seconds
    rest: Seconds  # of the device's time
    host: Seconds
    waiting: Seconds  # for communication that does not hide


@dataclass(frozen=True, slots=True)
class _Case:
    shape: str
    parts: _Parts
    measured: Seconds

    def seconds(self, factors: Sequence[float]) -> Seconds:
        attention, rest, host, waiting = factors
        parts = self.parts
        busy = attention * parts.attention + rest * parts.rest + waiting * parts.waiting
        return side_by_side(busy, host * parts.host)


def figures(data: Path, say: Say, most: int) -> list[Figure]:
    rows = [row for row in read_rows(data, SOURCE, _COLUMNS) if row["Model"] in _SHAPES and row["GPU"] in _DEVICES]
    models, cases, refused = Models(say), [], Counter[str]()
    chosen = sample(rows, most, by=("Model",))
    for row in sorted(chosen, key=lambda row: row["Model"]):
        say(f"{SOURCE}: {row['Model']} on {row['# GPUs']}")
        parts = _ask(models, row)
        if isinstance(parts, Refusal):
            refused[parts.why[:80]] += 1
        else:
            seconds = float(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
            cases.append(_Case(row["Model"], parts, seconds))
    note = f"{len(chosen)} of {len(rows)} rows asked"
    note += "".join(f"; {count} not run: {why}" for why, count in refused.items())
    foretold = foretold_by_others(cases, _START, kind=lambda case: case.shape, pull=_PULL)
    if not foretold:
        return [
            Figure(source=SOURCE, measure=_MEASURE, value=None, bar=0.08, note=f"too few rows to calibrate; {note}")
        ]
    # Of throughput, which is one over a step.
    errors = relative_errors([case.measured for case, _ in foretold], [seconds for _, seconds in foretold])
    return [Figure(source=SOURCE, measure=_MEASURE, value=float(errors.mean()), bar=0.08, rows=len(errors), note=note)]


def _ask(models: Models, row: Row) -> _Parts | Refusal:
    devices = int(row["# GPUs"])
    cluster = Cluster.parse(f"{-(-devices // 8)}x{min(devices, 8)}x{_DEVICES[row['GPU']]}@roce-200g")
    plan = Plan(dp=devices, zero=3, grad_accumulation=int(row["GradAccum"]))
    found = []
    for depth in _DEPTHS:
        graph = _graph(models, row, depth)
        answer = ask(graph, cluster, plan)
        if isinstance(answer, Refusal):
            return answer
        attention = int(row["GradAccum"]) * _attention(graph, cluster)
        found.append(_Parts(attention, answer.device - attention, answer.host, answer.waiting))
    shallow, deep = found
    return _at_depth(shallow, deep, _SHAPES[row["Model"]][1])


def _attention(graph: Graph, cluster: Cluster) -> Seconds:
    """What its kernels take in a micro-step."""
    prices = load_model(DEFAULT_MODEL).price(graph, cluster.nodes[0].device).prices
    return sum(p.seconds for op, p in zip(graph.ops, prices, strict=True) if "scaled_dot_product" in op.target)


def _graph(models: Models, row: Row, depth: int) -> Graph:
    """By batch at two lengths, then by length."""
    from foretell.graph.rescale import extend

    width, _, heads = _SHAPES[row["Model"]]
    config = {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": _VOCABULARY, "hidden_size": width,
        "word_embed_proj_dim": width, "ffn_dim": 4 * width, "num_hidden_layers": depth, "num_attention_heads": heads,
        "max_position_embeddings": 2048, "activation_function": "gelu", "dropout": 0.0, "enable_bias": False,
    }  # fmt: skip
    checkpointing = str(row["Activation Checkpointing"] == "True").lower()
    settings = {"precision": "bf16", "checkpointing": checkpointing}
    batch, length = int(row["MicroBatchSize"]), int(row["SeqLen (T)"])
    two = [models.graph(config, {**settings, "seq": str(seq)}, batch) for seq in _SEQUENCES]
    return extend(two[0], two[1], sizes=_SEQUENCES, to=length)


def _at_depth(shallow: _Parts, deep: _Parts, layers: int) -> _Parts:
    """Every part continued along the line through two depths."""
    far = (layers - _DEPTHS[0]) / (_DEPTHS[1] - _DEPTHS[0])
    pairs = zip(dataclasses.astuple(shallow), dataclasses.astuple(deep), strict=True)
    return _Parts(*(max(a + (b - a) * far, 0.0) for a, b in pairs))
