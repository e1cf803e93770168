"""Lets torchvision be imported beside a torch it was not built for.

A torchvision wheel built for CUDA cannot load its compiled operators beside a CPU-only torch, and then fails to
import because it describes two operators that do not exist. Declaring those two first is enough: no
classification, segmentation or video model calls them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_MISSED = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def make_torchvision_importable() -> None:
    """Declare what torchvision's import needs, if its own operators do not load. Costs a few milliseconds."""
    if hasattr(torch.ops.torchvision, "nms") or _own_operators_load():
        return
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", _MISSED)


def _own_operators_load() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    compiled = [path for kind in ("so", "pyd", "dylib") for path in Path(found.origin).parent.glob(f"_C*.{kind}")]
    try:
        for path in compiled:
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except (ImportError, OSError):
        return False
    return hasattr(torch.ops.torchvision, "nms")
