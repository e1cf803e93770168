"""What networks of the kinds have in common: how each is listed to be measured, and how its step is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell.sources.named.optimizers import optimizer_named

Kind = Literal[
    "dilated", "vgg", "grouped", "recurrent", "letters", "capsule", "fourier", "lookup", "policy", "decoder", "modulated",
    "interaction", "recurrence", "volume",
]  # fmt: skip
Batch = dict[str, Tensor]
Make = TypeVar("Make", bound=Callable[..., Workload])
PRECISIONS: Final = ("fp32", "torch-fp32", "tf32", "amp-bf16", "bf16", "amp-fp16")
FULL: Final = ("fp32", "torch-fp32", "tf32")  # for operators that have no half precision
OPTIMIZERS: Final = ("adamw", "adam", "sgd-momentum", "adamw-fused", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A function that makes steps of a network, and which steps of it are worth measuring."""

    source: str
    kind: Kind
    batches: tuple[int, int]  # from few samples, which the host bounds, to as many as keep the device busy
    precisions: Sequence[str]
    optimizers: Sequence[str]
    images: bool  # takes channels_last


NETWORKS: Final[dict[str, Network]] = {}


def network(
    kind: Kind,
    batches: tuple[int, int],
    *,
    precisions: Sequence[str] = PRECISIONS,
    optimizers: Sequence[str] = OPTIMIZERS,
) -> Callable[[Make], Make]:
    """Lists a function whose settings are batch, precision, optimizer and, of images, channels_last."""

    def listed(make: Make) -> Make:
        source = f"{make.__module__}:{make.__name__}"
        NETWORKS[source] = Network(
            source=source, kind=kind, batches=batches, precisions=precisions, optimizers=optimizers,
            images="channels_last" in inspect.signature(make).parameters,
        )  # fmt: skip
        return make

    return listed


def step(
    name: str,
    model: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    loss: Callable[[Any, Batch], Tensor],
    *,
    precision: PrecisionName,
    optimizer: str,
    channels_last: bool = False,
    forward: Callable[[Any, Batch], Any] | None = None,
) -> Workload:
    """`loss` takes the model; without an optimizer the step is inference, by `forward` or of `x`."""
    made = optimizer_named(optimizer)
    inference = forward or (lambda m, b: m(b["x"]))
    return Workload(
        name=name, model=model, batch=batch, loss=loss if made else inference, optimizer=made, precision=precision,
        channels_last=channels_last,
    )  # fmt: skip


def classify(model: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(model(b["x"]), b["y"])


def label_places(model: nn.Module, b: Batch) -> Tensor:
    """A class at every place of a text: the classes are the last side."""
    return F.cross_entropy(model(b["x"]).flatten(0, -2), b["y"].flatten())


def reconstruct(model: nn.Module, b: Batch) -> Tensor:
    return F.mse_loss(model(b["x"]).float(), b["y"].float())
