"""timm: image classification with every model name it registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from foretell.errors import WorkloadError
from foretell.sources.named.recipe import Recipe, takes_step_settings
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell.workload import Workload

make_torchvision_importable()
import timm  # noqa: E402

_LAYERS: Any = timm.layers  # which says nothing of types


@cache
def names() -> Sequence[str]:
    return tuple(timm.list_models())


def workload_function(name: str) -> Callable[..., Workload]:
    published = _published(name)
    channels, height, _ = published.input_size
    return partial(classification, name, channels=channels, image_size=height, classes=published.num_classes or 1000)


@takes_step_settings
def classification(
    name: str, *, batch: int = 32, image_size: int, channels: int = 3, classes: int = 1000, checkpointing: bool = False,
    fast_norm: bool = False,
) -> Recipe:  # fmt: skip
    """Cross-entropy over one label an image; with `fast_norm`, timm's norms stay in half precision under autocast."""

    return Recipe(
        name=name,
        model=lambda: _build(name, image_size, channels, classes, checkpointing, fast_norm),
        inputs=lambda: {"x": torch.randn(batch, channels, image_size, image_size)},
        targets=lambda: {"y": torch.randint(classes, (batch,))},
        forward=lambda model, b: model(b["x"]),
        loss=lambda model, b: torch.nn.functional.cross_entropy(_logits(model(b["x"])), b["y"]),
    )


def _build(
    name: str, image_size: int, channels: int, classes: int, checkpointing: bool, fast_norm: bool
) -> torch.nn.Module:
    published = _published(name)
    settings: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    if image_size != published.input_size[1]:
        settings["img_size"] = image_size
    before = _LAYERS.is_fast_norm()
    _LAYERS.set_fast_norm(fast_norm or before)  # modules ask for it when they are made
    try:
        model: Any = timm.create_model(name, **settings)
    except TypeError:  # convolutional models take any size and no img_size
        settings.pop("img_size", None)
        model = timm.create_model(name, **settings)
    finally:
        _LAYERS.set_fast_norm(before)
    if checkpointing:
        try:
            model.set_grad_checkpointing(True)
        except (AttributeError, AssertionError) as error:
            raise WorkloadError(
                f"timm/{name} has no activation checkpointing of its own. Leave out checkpointing."
            ) from error
    built: torch.nn.Module = model
    return built


def _published(name: str) -> Any:
    return timm.get_pretrained_cfg(name, allow_unregistered=False)


def _logits(out: Any) -> torch.Tensor:
    """One row of logits a sample: several heads are averaged, as are the places of an encoder's feature map."""
    if isinstance(out, tuple | list):
        return torch.stack(list(out)).mean(0)
    logits: torch.Tensor = out
    if logits.dim() == 3:  # (batch, tokens, features)
        return logits.mean(1)
    return logits.flatten(2).mean(2) if logits.dim() == 4 else logits
