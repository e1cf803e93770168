"""Optimizers by name: `adamw`, in a chosen form as `adamw-fused`, on fp32 copies as `adamw-master`; `none` is inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from foretell.errors import SourceError, did_you_mean
from foretell.sources.master_weights import OnMasters
from foretell.sources.named.eight_bit import BlockwiseOptimizer
from foretell.sources.named.low_rank import AdamMini, LowRankAdam, MuonAndAdam

_RANKS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # of gradients that are projected
MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


_FORMS: dict[str, dict[str, bool]] = {
    "": {},  # what torch picks by itself
    "-foreach": {"foreach": True},
    "-forloop": {"foreach": False},
    "-fused": {"fused": True},
}
_ALGORITHMS: dict[str, tuple[Callable[..., torch.optim.Optimizer], tuple[str, ...]]] = {
    "sgd": (partial(torch.optim.SGD, lr=0.1), tuple(_FORMS)),
    "sgd-momentum": (partial(torch.optim.SGD, lr=0.1, momentum=0.9), tuple(_FORMS)),
    "adam": (torch.optim.Adam, tuple(_FORMS)),
    "adamw": (torch.optim.AdamW, tuple(_FORMS)),
    "adagrad": (torch.optim.Adagrad, tuple(_FORMS)),
    "rmsprop": (torch.optim.RMSprop, ("", "-foreach", "-forloop")),
    "adafactor": (torch.optim.Adafactor, ("", "-foreach", "-forloop")),
}
OPTIMIZERS: dict[str, MakeOptimizer | None] = {"none": None} | {
    name + form: partial(algorithm, **_FORMS[form])
    for name, (algorithm, forms) in _ALGORITHMS.items()
    for form in forms
}
OPTIMIZERS |= {  # of bitsandbytes; AdamW and Adam run one kernel
    f"{name}{form}{pages}": partial(BlockwiseOptimizer, algorithm=algorithm, bits=bits, paged=bool(pages))
    for name, algorithm in (("adamw", "adam"), ("lion", "lion"))
    for form, bits in (("", 32), ("-8bit", 8))
    for pages in ("", "-paged")
    if name + form + pages != "adamw"  # torch's
}
OPTIMIZERS |= {"muon": MuonAndAdam, "adam-mini": AdamMini}
OPTIMIZERS |= {
    f"{name}-r{rank}": partial(LowRankAdam, rank=rank, name=name) for name in ("galore", "apollo") for rank in _RANKS
}
OPTIMIZERS["adamw-master"] = partial(OnMasters, make=partial(torch.optim.AdamW, fused=True))


def optimizer_named(name: str) -> MakeOptimizer | None:
    """What makes the optimizer from parameters; None for `none`, which means inference."""
    if name not in OPTIMIZERS:
        raise SourceError(
            f"unknown optimizer {name!r}. {did_you_mean(name, OPTIMIZERS)}Allowed: {', '.join(OPTIMIZERS)}."
        )
    return OPTIMIZERS[name]
