"""The tools that are compared: Foretell, torch's own, llm-analysis, and formulas of memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from foretell.store.importers import public_lines
from foretell.units import GIB
from foretell_bench.asking import answer as forecast
from foretell_bench.graphs import graph_of
from foretell_bench.peers.tool import PeerAnswer, Tool, question_of
from foretell_bench.sources.published_steps import Job

STORED: Final = "peers"  # answers of tools that others ran
_WRITTEN: Final = Path(__file__).parent / "written"
_PATIENCE: Final = 120.0  # seconds that a tool has for a job
# torch's libraries may lie beside a torch that they were not built for: they are made importable, as for Foretell.
_START: Final = (
    "import runpy, sys; from foretell.sources.named.torchvision_ops import make_torchvision_importable as ready; ready(); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretell:
    """As a user asks it, with the graph of the configuration captured anew or found again."""

    name: str = "Foretell"
    written: str = (
        "foretell predict config.json --set batch=2 --on 8xa100-80g-sxm --plan dp=8,zero=1 --trainer internevo"
    )

    def answer(self, job: Job) -> PeerAnswer:
        began = time.monotonic()
        found = forecast(job.ask, None)
        took = time.monotonic() - began
        if found.why:
            return PeerAnswer(took=took, why=found.why)
        sizes = {"allocated": max(found.allocated, default=0), "reserved": found.reserved, "smi": found.total}
        return PeerAnswer(seconds=found.seconds, memory=sizes[job.memory_kind or "smi"], took=took)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenScript:
    """A script of some lines, in a process of its own; what it cannot do it says."""

    name: str
    file: str
    start: tuple[str, ...] = (sys.executable, "-c", _START)
    by_board: bool = True  # whether its answer depends on it
    refuses: Callable[[Mapping[str, Any]], str] = field(default=lambda question: "", compare=False)

    @property
    def written(self) -> str:
        return (_WRITTEN / self.file).read_text()

    def answer(self, job: Job) -> PeerAnswer:
        question = question_of(job)
        if why := self.refuses(question):
            return PeerAnswer(why=why)
        if not self.by_board:  # it answers for any board alike
            question = question | {"device": ""} | ({} if question["zero"] else {"devices": 1, "dp": 1})
        return _ran(json.dumps(question), (*self.start, str(_WRITTEN / self.file)))


@lru_cache(maxsize=256)
def _ran(question: str, command: tuple[str, ...]) -> PeerAnswer:
    began = time.monotonic()
    try:
        ran = subprocess.run(
            command,
            input=question, capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return PeerAnswer(took=time.monotonic() - began, why=type(error).__name__)
    took = time.monotonic() - began
    if ran.returncode:
        return PeerAnswer(took=took, why=(ran.stderr.strip().splitlines() or ["no answer"])[-1][:200])
    return PeerAnswer(**json.loads(ran.stdout.strip().splitlines()[-1]), took=took)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroFormula:
    """Rajbhandari et al., "ZeRO" (SC 2020): 2 bytes of weights, 2 of gradients and 12 of Adam's state, each shared by stage."""

    name: str = "ZeRO formula"
    written: str = "estimate_zero3_model_states_mem_needs_all_cold(total_params, largest_layer_params, gpus, nodes)"

    def answer(self, job: Job) -> PeerAnswer:
        plan, parameters = job.ask.plan, _parameters(job)
        began, share = time.monotonic(), parameters / (plan.tp * plan.pp)
        stages = zip((12, 2, 2), (1, 2, 3), strict=True)
        each = sum(nbytes / (plan.dp if plan.zero >= stage else 1) for nbytes, stage in stages)
        return PeerAnswer(memory=round(share * each), took=time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateEstimate:
    """What `accelerate estimate-memory` says of training with Adam; it knows no sharding."""

    name: str = "accelerate estimate-memory"
    written: str = "accelerate estimate-memory MODEL --dtypes float32"

    def answer(self, job: Job) -> PeerAnswer:
        from foretell.sources.named.torchvision_ops import make_torchvision_importable

        make_torchvision_importable()
        parameters, began = _parameters(job), time.monotonic()
        try:
            from accelerate.commands.estimate import estimate_training_usage
        except ImportError as error:
            return PeerAnswer(why=str(error)[:200])
        usage = estimate_training_usage(4 * parameters, "float32")
        return PeerAnswer(memory=round(max(usage.values())), took=time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tool that is not here, as others ran it: how far it was off is what they kept."""

    name: str
    found: Mapping[str, Mapping[str, Any]]
    written: str = ""

    def answer(self, job: Job) -> PeerAnswer:
        kept = self.found.get(job.id)
        if kept is None:
            return PeerAnswer(why="was not run on it")
        error, reserved = kept.get("error_of_seconds"), kept.get("reserved_gib")
        seconds = job.seconds * (1 + error) if error is not None and job.seconds else None
        return PeerAnswer(seconds=seconds, memory=None if reserved is None else round(reserved * GIB))


def tools(data: Path, llm_analysis: str | None = None) -> Sequence[Tool]:
    """All of them; llm-analysis by an interpreter that has it, else as others ran it."""
    named = Foretell(), MEM_TRACKER, RUNTIME_ESTIMATOR, ZeroFormula(), AccelerateEstimate()
    if llm_analysis is not None:
        here = WrittenScript(name="llm-analysis", file="llm_analysis_train.py", start=(llm_analysis,))
        return [*named, here, *(tool for tool in stored(data) if tool.name != here.name)]
    return [*named, *stored(data)]


def stored(data: Path) -> list[Stored]:
    by_tool: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for line in public_lines(data, STORED) if any(data.glob(f"{STORED}.jsonl*")) else ():
        by_tool[line["tool"]][line["id"]] = line
    return [Stored(name=tool, found=found) for tool, found in sorted(by_tool.items())]


def _parameters(job: Job) -> int:
    return graph_of(job.ask.model).facts.parameters or 0


def _mem_tracker_refuses(question: Mapping[str, Any]) -> str:
    if max(question["tp"], question["pp"], question["cp"], question["ep"]) > 1 or question["zero"] in (1, 2):
        return "the plan needs the trainer's own wrappers"
    return "" if question["config"] is None or question["config"]["model_type"] != "bert" else "another script for BERT"


def _estimator_refuses(question: Mapping[str, Any]) -> str:
    import torch

    if question["devices"] > 1:
        return "it prices one device, without communication"
    return "" if torch.cuda.is_available() else "it prices kernels by the GPU of this machine, and there is none"


MEM_TRACKER: Final = WrittenScript(
    name="torch MemTracker", file="mem_tracker.py", by_board=False, refuses=_mem_tracker_refuses
)
RUNTIME_ESTIMATOR: Final = WrittenScript(
    name="torch RuntimeEstimator",
    file="runtime_estimator.py",
    refuses=_estimator_refuses,
)
