"""What the user asks about: a `Workload` is one training (or inference) step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from foretell.errors import WorkloadError, check_count, did_you_mean

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
        check_count("grad_accumulation", self.grad_accumulation, WorkloadError)
