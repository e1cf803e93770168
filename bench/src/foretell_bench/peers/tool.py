"""A tool that is asked about a job: what comes back, and what must be written to ask."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from foretell.units import Bytes, Seconds
from foretell_bench.sources.published_steps import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    """What a tool says of a job, or why it says nothing."""

    seconds: Seconds | None = None
    memory: Bytes | None = None
    took: Seconds | None = None  # to the answer; None: it was given by others
    why: str = ""


class Tool(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def written(self) -> str:
        """What its user writes, beside a configuration of the model that all of them need."""
        ...

    def answer(self, job: Job) -> PeerAnswer: ...


def effort(tool: Tool) -> int:
    """Lines of code or of a command, without those that say nothing to the tool."""
    lines = (line.strip() for line in tool.written.splitlines())
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in lines)


def question_of(job: Job) -> dict[str, Any]:
    """A job as plain values, for tools that run in a process of their own."""
    model, plan = job.ask.model, job.ask.plan
    settings = dict(model.settings)
    is_config = model.source.startswith("{")
    return {
        "config": json.loads(model.source) if is_config else None,
        "name": "" if is_config else Path(model.source).name,
        "batch": model.batch,
        "seq": int(settings.get("seq", 0)),
        "image_size": int(settings.get("image_size", 224)),
        "precision": settings.get("precision", "fp32").partition("/")[0].removeprefix("parameters:"),
        "checkpointing": plan.checkpointing == "full",
        "selective": plan.checkpointing == "selective",
        "grad_accumulation": plan.grad_accumulation or 1,
        "device": job.device,
        "devices": job.devices,
        **{name: getattr(plan, name) for name in ("dp", "tp", "pp", "cp", "ep", "zero")},
    }
