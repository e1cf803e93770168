"""Lets torchvision be imported, and its detectors be captured, beside a torch it was not built for.

A torchvision wheel built for CUDA cannot load its compiled operators beside a CPU-only torch, and then fails to
import because it describes two operators that do not exist. Where that is so, the operators that its models call are
declared here instead: shapes and gradients for the ones on images, a plain kernel for suppressing boxes. Where the
compiled operators load, as beside a CUDA build of torch, nothing is declared.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from foretell.sources.named.torchvision_regions import declare_regions

_SUPPRESS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_ALIGN = (
    "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor"
)
_ALIGN_BACKWARD = (
    "(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor"
)
_declared: list[bool] = []


def make_torchvision_importable() -> None:
    """Declare what torchvision needs, if its own operators do not load. Imports torch alone; a few milliseconds."""
    if hasattr(torch.ops.torchvision, "nms") or _own_operators_load():
        return
    _declared.append(True)
    torch.library.define("torchvision::nms", _SUPPRESS)
    torch.library.define("torchvision::qnms", _SUPPRESS)
    torch.library.impl("torchvision::nms", "CPU", _suppress_overlapping)
    torch.library.define("torchvision::roi_align", _ALIGN)
    torch.library.define("torchvision::_roi_align_backward", _ALIGN_BACKWARD)
    torch.library.register_fake("torchvision::roi_align", _aligned)
    torch.library.register_fake("torchvision::_roi_align_backward", _aligned_backward)
    torch.library.register_autograd("torchvision::roi_align", _align_gradient, setup_context=_keep_for_gradient)
    declare_regions()


def use_declared_operators() -> None:
    """Tell an imported torchvision that operators are there, if it was we who declared them."""
    if _declared and "torchvision" in sys.modules:
        for module in ("torchvision.extension", "torchvision.ops.roi_align"):
            vars(sys.modules[module])["_has_ops"] = lambda: True


def _own_operators_load() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    compiled = [path for kind in ("so", "pyd", "dylib") for path in Path(found.origin).parent.glob(f"_C*.{kind}")]
    try:
        for path in compiled:
            torch.ops.load_library(path)
    except (ImportError, OSError):
        return False
    return hasattr(torch.ops.torchvision, "nms")


def _suppress_overlapping(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The best box, then the best of those that do not overlap it too much, and so on."""
    left, top, right, bottom = dets.unbind(1)
    areas = (right - left) * (bottom - top)
    order = scores.argsort(descending=True)
    kept = []
    while order.numel():
        best, rest = order[0], order[1:]
        kept.append(best)
        width = (right[rest].minimum(right[best]) - left[rest].maximum(left[best])).clamp(min=0)
        height = (bottom[rest].minimum(bottom[best]) - top[rest].maximum(top[best])).clamp(min=0)
        shared = width * height
        order = rest[shared <= iou_threshold * (areas[rest] + areas[best] - shared)]
    return torch.stack(kept) if kept else order


def _aligned(input: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, *how: Any) -> torch.Tensor:
    return input.new_empty((rois.shape[0], input.shape[1], height, width))


def _aligned_backward(grad: torch.Tensor, rois: torch.Tensor, *how: Any) -> torch.Tensor:
    image = how[3:7]  # samples, channels, height, width
    return grad.new_empty(image)


def _keep_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    image, rois, *how = inputs
    ctx.save_for_backward(rois)
    ctx.shape, ctx.how = image.shape, how


def _align_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    (rois,) = ctx.saved_tensors
    scale, height, width, sampling_ratio, aligned = ctx.how
    image = torch.ops.torchvision._roi_align_backward(
        grad, rois, scale, height, width, *ctx.shape, sampling_ratio, aligned
    )
    return (image, *[None] * 6)
