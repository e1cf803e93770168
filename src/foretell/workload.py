"""What the user asks about: a `Workload` is one training (or inference) step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from foretell.errors import InputError, WorkloadError, check_choice, check_count, check_number
from foretell.precision import Precision, PrecisionName
from foretell.trainers import TRAINERS

if TYPE_CHECKING:
    import torch

    from foretell.graph import Caveat
    from foretell.plans import PlanTemplate

Attention = Literal["flash1", "flash2", "flash3", "cudnn", "efficient", "math"]
KernelBase = Literal["torch", "megatron", "megatron-compiled-loss", "fused-model"]
_WITHOUT: Final = "-without-"
APART: Final = ("permute", "rope", "wgrad")  # what fused kernels may be left out of
Compile = Literal[False, True, "reduce-overhead", "max-autotune"]
_PARAMETERS = {
    "model": "",
    "batch": "",
    "loss": " model, batch",
    "optimizer": " params",
    "step": " model, optimizer, batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Whose kernels a step runs, and what of them its trainer leaves to torch: `megatron-compiled-loss-without-permute`.

    `permute` moves rows to experts and back, `rope` turns positions, `wgrad` adds products of weight gradients to their sums.
    """

    base: KernelBase = "torch"
    apart: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Kernels:
        base, *apart = text.split(_WITHOUT) if isinstance(text, str) else [text]
        check_choice("kernels", base, get_args(KernelBase), WorkloadError)
        for part in apart:
            check_choice("what kernels leave out", part, APART, WorkloadError)
        if apart and base == "torch":
            raise WorkloadError(f"kernels={text!r} leaves out what torch does not have. Give kernels=torch.")
        return cls(base=base, apart=frozenset(apart))  # type: ignore[arg-type]

    @property
    def of_megatron(self) -> bool:
        return self.base.startswith("megatron")

    @property
    def compiled_loss(self) -> bool:
        """As with --cross-entropy-loss-fusion."""
        return self.base == "megatron-compiled-loss"


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Workload:
    """One training (or inference) step; the callables run only when it is captured or measured.

    Args:
        name: A short text.
        model: Builds the module; `batch` makes what one replica processes in a micro-step.
        loss: Called as `loss(model, batch)`.
        optimizer: Called with the parameters; None: inference.
        precision: fp32, torch-fp32, tf32, bf16, fp16, amp-bf16, amp-fp16, fp8 (fp8:current, …), or parts as `compute:bf16/reduce:fp32`.
        grad_accumulation: Micro-steps of a step; `clip_grad_norm`, `channels_last` and `compile` as in torch.
        attention: The kernel; None: what torch picks. `kernels`: torch's own, or those of a fused trainer.
        samples: Of a batch, and `tokens`; None: they are counted.
        step: Called as `step(model, optimizer, batch)` instead of the usual step.
        caveats: What it stands for and lacks; `plan` and `trainer`: what the file asks for that it is read from, and whose it is.

    Raises:
        InputError: A part that is no function, or an unknown choice.

    Examples:
        >>> import torch
        >>> tiny = foretell.Workload(
        ...     name="tiny", model=lambda: torch.nn.Linear(8, 8), batch=lambda: torch.randn(4, 8),
        ...     loss=lambda model, x: model(x).sum(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        >>> foretell.forecast(tiny, on="h200").memory.fits
        True
    """

    name: str
    model: Callable[[], torch.nn.Module]
    batch: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    precision: PrecisionName | Precision = "fp32"  # or as text: `compute:bf16/reduce:fp32`
    grad_accumulation: int = 1
    clip_grad_norm: float | None = None
    channels_last: bool = False
    compile: Compile = False
    attention: Attention | None = None  # the kernel; None: what torch picks
    kernels: str = "torch"  # or of fused trainers: Megatron's, Apex', or those of their models alone
    samples: int | None = None
    tokens: int | None = None
    step: Callable[[Any, Any, Any], Any] | None = None
    caveats: tuple[Caveat, ...] = ()  # what this stands for and does not have
    plan: PlanTemplate | None = field(default=None, hash=False)  # what the file that it is read from asks for
    trainer: str | None = None  # who runs it, as `megatron`; None: as its kernels say

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise WorkloadError(f"a Workload needs a name, got {self.name!r}. Give it a short text like 'resnet50'.")
        for part in _PARAMETERS:
            given, optional = getattr(self, part), part in ("optimizer", "step")
            if not callable(given) and not (optional and given is None):
                raise WorkloadError(
                    f"{part} of workload {self.name!r} must be a function{' or None' if optional else ''}, got "
                    f"{type(given).__name__}. Wrap it: {part}=lambda{_PARAMETERS[part]}: …"
                )
        self._check_precision()
        check_choice("compile", self.compile, get_args(Compile), WorkloadError)
        check_choice("attention", self.attention, (None, *get_args(Attention)), WorkloadError)
        Kernels.parse(self.kernels)
        check_choice("trainer", self.trainer, (None, *TRAINERS), WorkloadError)
        check_count("grad_accumulation", self.grad_accumulation, WorkloadError)
        for count in ("samples", "tokens"):  # of a batch; None: they are counted
            if getattr(self, count) is not None:
                check_count(count, getattr(self, count), WorkloadError)
        if self.clip_grad_norm is not None:
            check_number("clip_grad_norm", self.clip_grad_norm, "a number of at least 0 or None", WorkloadError)

    def _check_precision(self) -> None:
        try:
            master = self.arithmetic.master
        except InputError as error:
            raise WorkloadError(str(error)) from None
        if master and self.step is not None:
            raise WorkloadError(
                f"precision={self.precision} keeps masters for the update, but workload {self.name!r} has a step of its own. "
                "Keep them in that step, or leave step out."
            )

    @property
    def arithmetic(self) -> Precision:
        """Its precision as a type, however it was written."""
        return Precision.parse(self.precision)
