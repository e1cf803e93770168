"""What a configuration comes to: a model with settings, a plan for as many devices as there are, and caveats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from foretell.errors import SourceError
from foretell.graph import Caveat
from foretell.plans import PlanTemplate
from foretell.sources.configs.keys import Keys
from foretell.sources.settings import texts_of
from foretell.units import whole_number


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

    def template(self, settings: Mapping[str, Any] | None = None) -> PlanTemplate:
        """Its plan; settings of the user's go before those of the file."""
        given = texts_of(settings)
        batch = given.get("batch") or self.settings.get("batch") or 1
        if (samples := whole_number(str(batch))) is None:
            raise SourceError(f"batch={batch} of {self.file} must be a whole number. Write it like batch=8.")
        return PlanTemplate(
            source=self.file,
            by="configuration",
            settings=self.plan,
            copies=self.replicas,
            global_batch=None if "grad_accumulation" in given else self.global_batch,
            batch=samples,
            devices=self.devices,
        )

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
