"""`foretell bench papers`: jobs as their papers describe them, against what those say of them, with nothing fitted.

What a paper leaves open is in the question: a schedule's chunks, what is recomputed, which links.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import foretell
from foretell.errors import ForetellError, InputError
from foretell.units import GIB
from foretell_bench.graphs import Say, captured, quiet
from foretell_bench.tables.figures import Figure

_HOUR: Final = 3600.0
_MEGATRON: Final = {"kernels": "megatron", "seq": "4096"}
_LLAMA_405B: Final = {  # its table 3
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "num_hidden_layers": 126,
    "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
_MAIN: Final = {"precision": "parameters:bf16/gradients:fp32/master:fp32", "optimizer": "adamw-fused"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A job of a paper: the question, and what it says; None: only that it ran."""

    name: str
    source: str  # a name, or the text of a Hugging Face configuration
    settings: Mapping[str, str]
    on: str
    plan: str
    says: Literal["MFU", "device-hours"] | None = None
    value: float = 0.0
    within: float = 0.0  # its bar
    tokens: float = 0.0  # that were trained on, for device-hours
    document: str


def _llama(ranks: int, mfu: float) -> Paper:
    """Table 4 of the paper; interleaved, gradients in fp32 and sharded, and no recomputation by its section 3.3.2."""
    dp = ranks // 128
    return Paper(
        name=f"Llama-3 405B, {ranks:,} H100", source=json.dumps(_LLAMA_405B),
        settings=_MEGATRON | _MAIN | {"seq": "8192", "batch": "1"}, on=f"{ranks // 8}x8xh100-sxm@roce-400g",
        plan=f"dp={dp},tp=8,pp=16,zero=2,sequence_parallel=true,schedule=interleaved,virtual_stages=8,grad_accumulation={2048 // dp}",
        says="MFU", value=mfu, within=0.10, document="arXiv:2407.21783",
    )  # fmt: skip


PAPERS: Final = (
    _llama(8192, 0.43),
    _llama(16384, 0.41),
    Paper(
        name="DeepSeek-V3, 2,048 H800", source="hf/deepseek-v3",
        settings=_MEGATRON | {"precision": "fp8:blockwise", "batch": "1"}, on="256x8xh800-sxm@ib-400g",
        plan="dp=128,pp=16,ep=64,zero=1,grad_accumulation=120,schedule=dualpipe,dispatch=deepep-fp8,"
        "checkpointing=layernorm+mla_up_proj+moe_act",
        says="device-hours", value=2.664e6, within=0.20, tokens=14.8e12, document="arXiv:2412.19437",
    ),
    Paper(
        name="Qwen3-30B-A3B, 16 H100", source="hf/qwen3-30b-a3b", settings=_MEGATRON | {"precision": "bf16", "batch": "1"},
        on="2x8xh100-sxm@ib-400g", plan="dp=16,ep=16,zero=1", document="Megatron-Bridge, performance summary",
    ),
    Paper(
        name="LoRA of Llama-3 8B, one H100", source="hf/llama-3-8b",
        settings=_MEGATRON | {"precision": "bf16", "batch": "1", "lora_rank": "16"}, on="h100-sxm", plan="dp=1",
        document="Megatron-Bridge, recipes",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a forecast says of a paper's job, or why there is none."""

    name: str
    seconds: float = 0.0
    bare: float = 0.0  # without what a trainer adds
    value: float | None = None  # in the paper's measure
    fits: bool = False
    gibibytes: float = 0.0
    why: str = ""


def run(say: Say = quiet, *, workers: int = 1, only: str | None = None) -> list[Answered]:
    """Every job, or those whose name holds `only`."""
    chosen = [paper for paper in PAPERS if only is None or only.lower() in paper.name.lower()]
    if not chosen:
        raise InputError(
            f"no paper's job is called {only!r}. There are: {'; '.join(p.name for p in PAPERS)}. Say a part of one."
        )
    found = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for number, each in enumerate(pool.map(ask, chosen), start=1):
            found.append(each)
            say(f"forecast {number} of {len(chosen)}")
    return found


def ask(paper: Paper) -> Answered:
    try:
        graph = captured(paper.source, paper.settings)
        made = foretell.forecast(graph, paper.on, foretell.Plan.parse(paper.plan))
    except ForetellError as error:
        return Answered(name=paper.name, why=f"{type(error).__name__}: {error}")
    seconds = made.step_time.seconds
    return Answered(
        name=paper.name, seconds=seconds, bare=seconds - made.trainer.seconds, value=_measured(paper, made),
        fits=made.memory.fits, gibibytes=made.memory.total / GIB,
    )  # fmt: skip


def _measured(paper: Paper, made: foretell.Forecast) -> float | None:
    if paper.says == "MFU":
        return made.throughput.mfu
    if paper.says == "device-hours" and made.throughput.tokens_per_second:
        devices = foretell.Plan.parse(paper.plan).devices
        return paper.tokens / made.throughput.tokens_per_second * devices / _HOUR
    return None


def figures(found: Sequence[Answered]) -> list[Figure]:
    """Each job's measure against what its paper says, and whether it fits."""
    known, made = {paper.name: paper for paper in PAPERS}, []
    for each in found:
        paper = known[each.name]
        if paper.says is not None:
            value = abs(each.value / paper.value - 1) if each.value else None
            note = (
                each.why
                or f"{_shown(each.value or 0.0)} forecast, {_shown(paper.value)} published; {each.seconds:.3g} s a step"
            )
            measure = f"{paper.says}, error"
            made.append(Figure(source=paper.name, measure=measure, value=value, bar=paper.within, rows=1, note=note))
        note = each.why or f"{each.gibibytes:.1f} GiB"
        fits = None if each.why else float(each.fits)
        made.append(Figure(source=paper.name, measure="fits", value=fits, bar=1.0, at_least=True, rows=1, note=note))
    return made


def _shown(value: float) -> str:
    return f"{value:.1%}" if value < 1 else f"{value:,.0f}"


def save(found: Sequence[Answered], path: Path) -> None:
    path.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


def read(path: Path) -> list[Answered]:
    try:
        found = [Answered(**each) for each in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} holds no papers' jobs ({error}). Make it: foretell bench papers --save") from error
    if strange := {each.name for each in found} - {paper.name for paper in PAPERS}:
        raise InputError(f"{path} holds jobs that are not asked any more: {', '.join(sorted(strange))}. Make it anew.")
    return found
