"""torchvision: classification, segmentation, video, detection and optical flow by model name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional as F

from foretell.sources.named.recipe import Recipe, takes_step_settings
from foretell.sources.named.torchvision_ops import make_torchvision_importable, use_declared_operators
from foretell.workload import Workload

make_torchvision_importable()
from torchvision import models  # noqa: E402

use_declared_operators()

_BOXES_PER_IMAGE = 8  # about what COCO has
_RAFT_UPDATES = 12
_RAFT_DECAY = 0.8  # of the weight of earlier updates in RAFT's sequence loss


@cache
def names() -> Sequence[str]:
    return tuple(models.list_models())


def workload_function(name: str) -> Callable[..., Workload]:
    for module, task in _TASKS.items():
        if name in models.list_models(module=module):
            return partial(task, name, **_published_sizes(name, task))
    raise AssertionError(f"torchvision model {name} belongs to no module it lists")


@takes_step_settings
def classification(name: str, *, batch: int = 32, image_size: int = 224, classes: int = 1000) -> Recipe:
    """Cross-entropy over one label an image, with the auxiliary heads that Inception models train with."""
    shape = (batch, 3, image_size, image_size)
    return _labelled(name, partial(_build_for_size, name, classes, image_size), shape, (batch,), classes, _with_heads)


@takes_step_settings
def video(name: str, *, batch: int = 8, image_size: int = 112, frames: int = 16, classes: int = 400) -> Recipe:
    """Cross-entropy over one label a clip."""
    shape = (batch, 3, frames, image_size, image_size)
    return _labelled(name, partial(_build, name, classes), shape, (batch,), classes, F.cross_entropy)


@takes_step_settings
def segmentation(
    name: str, *, batch: int = 8, image_size: int = 520, classes: int = 21, auxiliary: bool = True
) -> Recipe:
    """Cross-entropy over one label a pixel, plus half of the auxiliary head's where the model has one."""
    has_auxiliary = auxiliary and not name.startswith("lraspp")
    model = partial(_build, name, classes, **({"aux_loss": True} if has_auxiliary else {}))

    def criterion(out: Any, labels: torch.Tensor) -> torch.Tensor:
        total = F.cross_entropy(out["out"], labels, ignore_index=255)
        return total + 0.5 * F.cross_entropy(out["aux"], labels, ignore_index=255) if "aux" in out else total

    pixels = (batch, image_size, image_size)
    return _labelled(name, model, (batch, 3, image_size, image_size), pixels, classes, criterion)


@takes_step_settings
def detection(
    name: str, *, batch: int = 4, image_size: int = 800, image_width: int | None = None, classes: int = 91
) -> Recipe:
    """The sum of the model's own losses, on images of one size with a few random boxes each; wider than high with a width."""
    height, width = image_size, image_width or image_size

    def target() -> dict[str, torch.Tensor]:
        sides = torch.tensor([float(width), float(height)])
        corner = torch.rand(_BOXES_PER_IMAGE, 2) * (sides * 0.6)
        extent = torch.rand(_BOXES_PER_IMAGE, 2) * (sides * 0.3) + 8
        found = {
            "boxes": torch.cat([corner, corner + extent], 1),
            "labels": torch.randint(1, classes, (_BOXES_PER_IMAGE,)),
        }
        if name.startswith("maskrcnn"):
            found["masks"] = torch.randint(2, (_BOXES_PER_IMAGE, height, width), dtype=torch.uint8)
        if name.startswith("keypointrcnn"):
            found["keypoints"] = torch.rand(_BOXES_PER_IMAGE, 17, 3) * height
        return found

    return Recipe(
        name=name,
        model=lambda: models.get_model(name, weights=None, weights_backbone=None, num_classes=classes),
        inputs=lambda: {"images": [torch.rand(3, height, width) for _ in range(batch)]},
        targets=lambda: {"targets": [target() for _ in range(batch)]},
        forward=lambda model, b: model(b["images"]),
        loss=lambda model, b: sum(model(b["images"], b["targets"]).values()),
        samples=batch,
    )


@takes_step_settings
def optical_flow(name: str, *, batch: int = 2, image_size: int = 368) -> Recipe:
    """RAFT's loss: the error of every refinement of the flow, later ones weighing more."""
    images = (batch, 3, image_size, image_size)

    def flows(model: Any, b: Any) -> Any:
        return model(b["first"], b["second"], num_flow_updates=_RAFT_UPDATES)

    def loss(model: Any, b: Any) -> torch.Tensor:
        found = flows(model, b)
        errors = [(flow - b["flow"]).abs().mean() * _RAFT_DECAY ** (len(found) - i - 1) for i, flow in enumerate(found)]
        return torch.stack(errors).sum()

    return Recipe(
        name=name,
        model=lambda: models.get_model(name, weights=None),
        inputs=lambda: {"first": torch.randn(images), "second": torch.randn(images)},
        targets=lambda: {"flow": torch.randn(batch, 2, image_size, image_size)},
        forward=flows,
        loss=loss,
    )


_TASKS: dict[Any, Callable[..., Workload]] = {
    models: classification,
    models.quantization: classification,  # in floating point, as they are trained before being quantized
    models.segmentation: segmentation,
    models.video: video,
    models.detection: detection,
    models.optical_flow: optical_flow,
}


def _published_sizes(name: str, task: Callable[..., Workload]) -> dict[str, int]:
    """Image size and classes that the published weights were trained with, where the task has such settings."""
    if task not in (classification, video):
        return {}
    weights = models.get_model_weights(name).DEFAULT
    size = weights.transforms.keywords["crop_size"]
    return {"image_size": size if isinstance(size, int) else size[0], "classes": len(weights.meta["categories"])}


def _labelled(
    name: str,
    model: Callable[[], Any],
    images: tuple[int, ...],
    labels: tuple[int, ...],
    classes: int,
    criterion: Callable[..., Any],
) -> Recipe:
    return Recipe(
        name=name,
        model=model,
        inputs=lambda: {"x": torch.randn(images)},
        targets=lambda: {"y": torch.randint(classes, labels)},
        forward=lambda model, b: model(b["x"]),
        loss=lambda model, b: criterion(model(b["x"]), b["y"]),
    )


def _build(name: str, classes: int, **settings: Any) -> torch.nn.Module:
    weightless = {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
    model: torch.nn.Module = models.get_model(name, weights=None, num_classes=classes, **weightless, **settings)
    return model


def _build_for_size(name: str, classes: int, image_size: int) -> torch.nn.Module:
    """Transformers are built for one size of image, under one of two names; convolutional models take any."""
    for size in ({"image_size": image_size}, {"input_size": (image_size, image_size)}):
        try:
            return _build(name, classes, **size)
        except TypeError:  # no such setting
            continue
    return _build(name, classes)


def _with_heads(out: Any, labels: torch.Tensor) -> torch.Tensor:
    if isinstance(out, torch.Tensor):
        return F.cross_entropy(out, labels)
    auxiliary = [o for o in out[1:] if o is not None]
    weight = 0.4 if len(auxiliary) == 1 else 0.3  # as the papers of Inception-v3 and GoogLeNet weigh them
    return F.cross_entropy(out[0], labels) + weight * torch.stack([F.cross_entropy(o, labels) for o in auxiliary]).sum()
