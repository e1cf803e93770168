"""What a configuration comes to: a model with settings, a plan for as many devices as there are, and caveats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from foretell.errors import PlanError, SourceError
from foretell.graph import Caveat
from foretell.plans import Plan
from foretell.sources.configs.keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A trainer's file as Foretell understands it."""

    file: str
    trainer: str  # DeepSpeed, accelerate, …
    model: str | Mapping[str, Any] | None = (
        None  # a SOURCE, or entries of a Hugging Face config.json; None: not in the file
    )
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the model's source
    plan: Mapping[str, Any] = field(default_factory=dict)  # fields of Plan, but for dp
    replicas: int | Literal["nodes"] = 1  # copies of a sharded model
    global_batch: int | None = None  # samples of a step, of all replicas
    devices: int | None = None  # that the file is written for
    caveats: tuple[Caveat, ...] = ()

    @property
    def replica(self) -> Plan:
        """One model's share of devices, without data parallelism."""
        return Plan(**{name: self.plan[name] for name in ("tp", "pp", "cp") if name in self.plan})

    def plan_for(self, devices: int, nodes: int = 1, settings: Mapping[str, str] | None = None) -> Plan:
        """The plan on so many devices: data parallelism takes what tensor, pipeline and context parallelism leave."""
        shape = self.replica
        if devices % shape.devices:
            raise PlanError(
                f"{self.file} has tp × pp × cp = {shape.tp} × {shape.pp} × {shape.cp} = {shape.devices}, which does not divide "
                f"{devices} devices. Choose a cluster with a multiple of {shape.devices} devices."
            )
        dp = devices // shape.devices
        made = dict(self.plan, dp=dp)
        if (copies := nodes if self.replicas == "nodes" else self.replicas) > 1:
            if dp * shape.cp % copies:
                raise PlanError(
                    f"{self.file} keeps {copies} copies of a sharded model, which does not divide the {dp * shape.cp} "
                    f"data-parallel ranks. Choose another number of devices."
                )
            made["hybrid_shard"] = dp * shape.cp // copies
        if (accumulation := self._accumulation(dp, settings or {})) is not None:
            made["grad_accumulation"] = accumulation
        return Plan(**made)

    def _accumulation(self, dp: int, settings: Mapping[str, str]) -> int | None:
        """Micro-steps, where the file says the samples of a whole step."""
        if "grad_accumulation" in settings or self.global_batch is None:
            return None
        batch = int(settings.get("batch") or self.settings.get("batch") or 1)
        if self.global_batch % (batch * dp):
            raise PlanError(
                f"{self.file} has {self.global_batch} samples in a step, which {dp} replicas with {batch} samples at a time "
                "do not divide. Change the cluster, or --set batch=…"
            )
        return self.global_batch // (batch * dp)

    def another_size(self, devices: int) -> str:
        """What to tell where the file is written for more or fewer devices than are asked about; else nothing."""
        if self.devices in (None, devices):
            return ""
        return f"{self.file} is written for {self.devices} devices; this is the forecast for {devices}."

    def require_model(self) -> str | Mapping[str, Any]:
        if self.model is None:
            raise SourceError(
                f"{self.file} ({self.trainer}) does not say which model is trained. Give it with --set model=hf/llama-3-8b, "
                "the path of a config.json, or file.py:function."
            )
        return self.model


class Reader(Protocol):
    """A module of this folder: one format."""

    TRAINER: str

    def recognises(self, entries: Mapping[str, Any]) -> bool: ...

    def read(self, keys: Keys, folder: Path) -> Configuration: ...
