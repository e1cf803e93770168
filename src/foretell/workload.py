"""What the user asks about: a `Workload` is one training step, a `Plan` is how it is spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from foretell.errors import PlanError, WorkloadError, did_you_mean

if TYPE_CHECKING:
    import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
Batch = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training (or inference) step; the callables run only when it is captured or measured."""

    name: str
    model: Callable[[], torch.nn.Module]
    batch: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    precision: Precision = "fp32"
    grad_accumulation: int = 1
    clip_grad_norm: float | None = None
    channels_last: bool = False
    compile: bool = False
    samples: int | None = None
    tokens: int | None = None
    step: Callable[[Any, Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise WorkloadError(f"a Workload needs a name, got {self.name!r}. Give it a short text like 'resnet50'.")
        for part in ("model", "batch", "loss"):
            if not callable(getattr(self, part)):
                raise WorkloadError(
                    f"{part} of workload {self.name!r} must be a function, got {type(getattr(self, part)).__name__}. "
                    f"Wrap it: {part}=lambda{' model, batch' if part == 'loss' else ''}: …"
                )
        for part in ("optimizer", "step"):
            if getattr(self, part) is not None and not callable(getattr(self, part)):
                raise WorkloadError(
                    f"{part} of workload {self.name!r} must be a function or None, got {type(getattr(self, part)).__name__}."
                )
        if self.precision not in PRECISIONS:
            raise WorkloadError(
                f"unknown precision {self.precision!r} in workload {self.name!r}. "
                f"{did_you_mean(str(self.precision), PRECISIONS)}Allowed: {', '.join(PRECISIONS)}."
            )
        _check_count("grad_accumulation", self.grad_accumulation, WorkloadError)


Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
_CHOICES: dict[str, tuple[Any, ...]] = {
    "zero": (0, 1, 2, 3),
    "schedule": get_args(Schedule),
    "data_parallel": ("ddp", "dp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a step is spread over devices: devices = dp × tp × pp × cp; tp innermost, pp outermost."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    hybrid_shard: int | None = None
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1
    checkpointing: str | float = "none"
    grad_accumulation: int | None = None
    bucket_bytes: int = 25 * 2**20
    overlap: bool = True
    servers: int = 0
    asynchronous: bool = False
    data_parallel: str = "ddp"

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "virtual_stages", "bucket_bytes"):
            _check_count(name, getattr(self, name), PlanError)
        for name in ("hybrid_shard", "grad_accumulation"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), PlanError)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise PlanError(
                    f"{name}={getattr(self, name)!r} is not possible. Allowed: {', '.join(map(str, allowed))}."
                )
        if (self.dp * self.cp) % self.ep:
            raise PlanError(
                f"ep={self.ep} must divide dp × cp = {self.dp} × {self.cp} = {self.dp * self.cp}. "
                "Choose an ep that divides it, or change dp."
            )

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    def check_devices(self, devices: int) -> None:
        if self.devices != devices:
            raise PlanError(
                f"plan {self} needs dp × tp × pp × cp = {self.dp} × {self.tp} × {self.pp} × {self.cp} = {self.devices} "
                f"devices, but the cluster has {devices}. Change the plan or the cluster so that they agree."
            )

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read `dp=4,tp=2,zero=1`."""
        kinds = {f.name: f.default for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, equals, value = part.partition("=")
            if name not in kinds or not equals:
                raise PlanError(
                    f"plan {text!r}: {part!r} is not a setting. {did_you_mean(name, kinds)}Write it like 'dp=4,tp=2,zero=1'; "
                    f"settings: {', '.join(kinds)}."
                )
            values[name] = _read_setting(name, value, kinds[name])
        return cls(**values)

    def __str__(self) -> str:
        """The shortest text that `parse` reads back: dp, then whatever is not the default."""
        shown = [f"dp={self.dp}"]
        for f in dataclasses.fields(self)[1:]:
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={str(value).lower() if isinstance(value, bool) else value}")
        return ",".join(shown)


def _read_setting(name: str, value: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(default, int) or name in ("hybrid_shard", "grad_accumulation"):
            return int(value)
        if name == "checkpointing" and value not in ("none", "full", "selective"):
            return float(value)
        return value
    except (KeyError, ValueError):
        wanted = "true or false" if isinstance(default, bool) else "a number"
        raise PlanError(f"plan setting {name}={value!r} must be {wanted}.") from None


def _check_count(name: str, value: Any, error: type[Exception]) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise error(f"{name} must be a whole number of at least 1, got {value!r}.")
