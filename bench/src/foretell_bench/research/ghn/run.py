"""A sampled network with given weights, run on images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.methods.predictddl.ghn.architecture import Architecture, Node

_HEADS = 2


def run(architecture: Architecture, weights: Mapping[int, Tensor], images: Tensor) -> Tensor:
    """Scores of the classes for images of shape (n, 1, height, width)."""
    values: list[Tensor] = []
    for number, node in enumerate(architecture):
        if node.kind == "input":
            values.append(images)
            continue
        inputs = [values[i] for i in node.inputs]
        first = F.relu(inputs[0]) if node.activate else inputs[0]
        values.append(_apply(node, first, inputs, weights.get(number)))
    return values[-1].flatten(1)


def random_weights(architecture: Architecture, seed: int) -> dict[int, Tensor]:
    """As training from scratch begins: Kaiming's normal kernels, gains of one, biases of none."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for number, node in enumerate(architecture):
        if node.kind == "input" or not node.shape:
            continue
        if len(node.shape) == 1:
            weights[number] = torch.full(node.shape, 1.0 if node.kind in ("bn", "ln") else 0.0)
        else:
            into = node.shape[1] * node.shape[2] * node.shape[3]
            weights[number] = torch.randn(node.shape, generator=generator) * (2 / into) ** 0.5
    return weights


def _apply(node: Node, x: Tensor, inputs: list[Tensor], weight: Tensor | None) -> Tensor:
    match node.kind:
        case "sum":
            return torch.stack(inputs).sum(dim=0)
        case "concat":
            return torch.cat(inputs, dim=1)
        case "max_pool":
            return F.max_pool2d(x, 3, stride=node.stride, padding=1)
        case "avg_pool":
            return F.avg_pool2d(x, 3, stride=node.stride, padding=1)
        case "glob_avg":
            return x.mean(dim=(2, 3), keepdim=True)
    assert weight is not None, f"a {node.kind} needs a weight"
    match node.kind:
        case "conv" | "sep_conv" | "dil_conv":
            dilation = 2 if node.kind == "dil_conv" else 1
            kernel = node.shape[-1]
            padding = dilation * (kernel // 2) if kernel > node.stride else 0
            groups = x.shape[1] if node.kind == "sep_conv" else 1
            return F.conv2d(x, weight, stride=node.stride, padding=padding, dilation=dilation, groups=groups)
        case "bias":
            return x + weight[:, None, None]
        case "bn":  # by the statistics of the batch, in evaluation too: generated networks have no others
            return F.batch_norm(x, None, None, weight, training=x.numel() > x.shape[1])
        case "ln":
            return F.group_norm(x, 1, weight)
        case "pos_enc":
            return x + weight
        case "cse":
            return x * torch.sigmoid(F.conv2d(x.mean(dim=(2, 3), keepdim=True), weight))
        case "msa":
            return _attend(F.conv2d(x, weight))
    raise AssertionError(f"no operator {node.kind}")


def _attend(qkv: Tensor) -> Tensor:
    count, width, height, side = qkv.shape
    split = qkv.flatten(2).view(count, 3, _HEADS, width // (3 * _HEADS), height * side).transpose(-1, -2)
    attended = F.scaled_dot_product_attention(split[:, 0], split[:, 1], split[:, 2])
    return attended.transpose(-1, -2).reshape(count, width // 3, height, side)
