"""Networks nobody named: `generated/SEED` is a random but sensible step over the whole space of operators.

The seed decides everything: the kind of data, the blocks and their widths, precision, optimizer and batch. What a seed
gives never changes: stores hold measurements of it. `--set` overrides batch, precision and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from foretell.design.generated import images, points, recurrent, signals, tables, tokens, volumes
from foretell.design.generated.draw import Draw, Network
from foretell.precision import PrecisionName
from foretell.sources.named.optimizers import optimizer_named
from foretell.workload import Workload

COUNT = 100_000
KINDS: dict[str, tuple[float, Callable[[Draw], Network]]] = {
    "images": (4, images.network),
    "signals": (3, signals.network),
    "volumes": (2, volumes.network),
    "tokens": (5, tokens.network),
    "tables": (3, tables.network),
    "points": (3, points.network),
    "recurrent": (2, recurrent.network),
}
_PRECISIONS: dict[PrecisionName, float] = {"amp-bf16": 5, "fp32": 4, "tf32": 4, "bf16": 3, "amp-fp16": 2, "fp16": 1}
_OPTIMIZERS = {
    "adamw": 5,
    "adam": 3,
    "sgd-momentum": 2,
    "adamw-fused": 2,
    "sgd": 1,
    "rmsprop": 1,
    "adagrad": 1,
    "none": 4,
}


@cache
def names() -> Sequence[str]:
    return tuple(map(str, range(COUNT)))


def kind_of(seed: int) -> str:
    """What kind of data the network of a seed works on."""
    return Draw(seed, "kind").weighted({kind: weight for kind, (weight, _) in KINDS.items()})


def workload_function(name: str) -> Callable[..., Workload]:
    seed = int(name)
    step = Draw(seed, "step")
    drawn_precision: PrecisionName = step.weighted(_PRECISIONS)
    drawn_optimizer = step.weighted(_OPTIMIZERS)

    def generated(
        *,
        batch: int = 0,
        precision: PrecisionName = drawn_precision,
        optimizer: str = drawn_optimizer,
        grad_accumulation: int = 1,
        clip_grad_norm: float | None = None,
        compile: bool = False,
    ) -> Workload:
        """`batch` 0 is the one that was drawn."""
        kind = kind_of(seed)
        made = KINDS[kind][1](Draw(seed, kind))
        size = batch or made.batch_size
        make_optimizer = optimizer_named(optimizer)
        return Workload(
            name=f"generated-{kind}-{seed}",
            model=made.model,
            batch=lambda: made.batch(size),
            loss=made.loss if make_optimizer else made.forward,
            optimizer=make_optimizer,
            precision=precision,
            grad_accumulation=grad_accumulation,
            clip_grad_norm=clip_grad_norm,
            compile=compile,
            samples=size,
        )

    return generated
