"""Names in torchvision's modules that newer versions do not have: scripts import them, and libraries that are not kept up."""

from __future__ import annotations

import functools
import os
import re
import types
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_MODELS: Final = (
    "alexnet densenet googlenet inception mobilenet mobilenetv2 resnet squeezenet vgg shufflenetv2 mnasnet".split()
)


def install(session: Session) -> None:
    for name in _MODELS:
        once_imported(f"torchvision.models.{name}", functools.partial(_add, _FROM_URLS))
    for name, names in _NAMES.items():
        once_imported(f"torchvision.{name}", functools.partial(_add, names))


def _add(names: Mapping[str, Any], module: Any) -> None:
    for name, value in names.items():
        if not hasattr(module, name):
            setattr(module, name, value)


def _convolution(
    inputs: int, outputs: int, kernel_size: int = 3, stride: int = 1, groups: int = 1, *others: Any, **how: Any
) -> nn.Sequential:
    """`ConvBNReLU`, of which the first MobileNets were made."""
    place = (kernel_size - 1) // 2
    convolution = nn.Conv2d(inputs, outputs, kernel_size, stride, place, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


def _is_named(*endings: str) -> Any:
    return lambda filename: str(filename).endswith(endings)


def _size_of(dim: int, tensor: torch.Tensor, size: Any, scale_factor: Any) -> list[int]:
    """`_output_size`, of a picture that is made larger or smaller."""
    if size is not None:
        return [size] * dim if isinstance(size, int) else list(size)
    factors = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * dim
    return [int(tensor.size(i + 2) * factors[i]) for i in range(dim)]


# Weights are stood in for where torch's own function is called, so it is looked up then.
def _from_url(*args: Any, **how: Any) -> Any:
    return torch.hub.load_state_dict_from_url(*args, **how)


_FROM_URLS: Final = {
    "load_state_dict_from_url": _from_url, "model_zoo": types.SimpleNamespace(load_url=_from_url),
}  # fmt: skip
_EMPTY: Final = {"_new_empty_tensor": lambda tensor, shape: tensor.new_empty(shape)}
_BLOCK: Final = {"ConvBNReLU": _convolution}
_NAMES: Final[Mapping[str, Mapping[str, Any]]] = {
    "datasets.utils": {
        "_get_confirm_token": lambda response: None, "_quota_exceeded": lambda *response: False,
        "_save_response_content": lambda *response: None, "gen_bar_updater": lambda: lambda *progress: None,
        "makedir_exist_ok": lambda path: os.makedirs(path, exist_ok=True), "_is_zip": _is_named(".zip"),
        "_is_tar": _is_named(".tar"), "_is_targz": _is_named(".tar.gz"), "_is_tgz": _is_named(".tgz"),
        "_is_tarxz": _is_named(".tar.xz"), "_is_gzip": lambda name: bool(re.search(r"(?<!\.tar)\.gz$", str(name))),
    },
    "models.mobilenet": _BLOCK, "models.mobilenetv2": _BLOCK, "ops": _EMPTY,
    "ops.misc": {**_EMPTY, "_output_size": _size_of, "Conv2d": nn.Conv2d, "ConvTranspose2d": nn.ConvTranspose2d,
                 "BatchNorm2d": nn.BatchNorm2d},
    "transforms.functional": {"_is_tensor_image": lambda image: torch.is_tensor(image) and image.ndim == 3},
    "transforms.transforms": {"_pil_interpolation_to_str": {
        0: "PIL.Image.NEAREST", 2: "PIL.Image.BILINEAR", 3: "PIL.Image.BICUBIC", 1: "PIL.Image.LANCZOS", 5: "PIL.Image.HAMMING",
        4: "PIL.Image.BOX"}},
}  # fmt: skip
