"""What torchvision pools by regions and convolves with offsets, where its own compiled operators do not load: shapes and gradients."""

from __future__ import annotations

from typing import Any, Final

import torch

_SIZES: Final = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_IMAGE: Final = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_NUMBERS: Final = "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dil_h, SymInt dil_w"
_POOLS: Final = {"roi_pool": "", "ps_roi_pool": "", "ps_roi_align": ", int sampling_ratio"}


def declare_regions() -> None:
    """Beside the operators of regions that torchvision's own detectors call, those that only others do."""
    for name, more in _POOLS.items():
        _declare_pool(name, more)
    torch.library.define(
        "torchvision::_deform_columns",
        f"(Tensor input, Tensor offset, Tensor mask, SymInt kernel, {_NUMBERS}) -> Tensor",
    )
    torch.library.define(
        "torchvision::_deform_columns_backward",
        "(Tensor grad, Tensor input, Tensor offset, Tensor mask) -> (Tensor, Tensor, Tensor)",
    )
    torch.library.define(
        "torchvision::deform_conv2d",
        f"(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_NUMBERS}, SymInt groups, "
        "SymInt offset_groups, bool use_mask) -> Tensor",
    )
    torch.library.register_fake("torchvision::_deform_columns", _columns)
    torch.library.register_fake("torchvision::_deform_columns_backward", lambda grad, *given: _alike(given))
    torch.library.register_autograd(
        "torchvision::_deform_columns", _columns_gradient, setup_context=_keep_what_columns_are_of
    )
    torch.library.impl("torchvision::deform_conv2d", "CompositeImplicitAutograd", _deformed)


def _declare_pool(name: str, more: str) -> None:
    """A value for each region, with what it was taken from, which its gradient needs."""
    back = f"torchvision::_{name}_backward"
    torch.library.define(f"torchvision::{name}", f"(Tensor input, Tensor rois, {_SIZES}{more}) -> (Tensor, Tensor)")
    torch.library.define(back, f"(Tensor grad, Tensor rois, Tensor chosen, {_SIZES}{more}, {_IMAGE}) -> Tensor")
    by_position = name.startswith("ps_")

    def pooled(input: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, *how: Any) -> Any:
        channels = input.shape[1] // (height * width if by_position else 1)
        shape = (rois.shape[0], channels, height, width)
        return input.new_empty(shape), rois.new_empty(shape, dtype=torch.int32)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        image, rois, *how = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(rois, output[1])
        ctx.shape, ctx.how = image.shape, how

    def gradient(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
        image = getattr(torch.ops.torchvision, f"_{name}_backward")(grad, *ctx.saved_tensors, *ctx.how, *ctx.shape)
        return (image, *[None] * (1 + len(ctx.how)))

    torch.library.register_fake(f"torchvision::{name}", pooled)
    torch.library.register_fake(back, lambda grad, rois, chosen, *how: grad.new_empty(how[-4:]))
    torch.library.register_autograd(f"torchvision::{name}", gradient, setup_context=keep)


def _deformed(
    input: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor, *how: Any
) -> torch.Tensor:
    """As its kernels do it: numbers under the moved kernel are gathered, and multiplied with the weights group by group."""
    numbers, groups = how[:6], how[6]
    samples, (height, width) = input.shape[0], offset.shape[-2:]
    gathered = torch.ops.torchvision._deform_columns(input, offset, mask, weight[0, 0].numel(), *numbers)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    made = rows @ gathered.reshape(samples, groups, -1, height * width)
    out: torch.Tensor = made.reshape(samples, weight.shape[0], height, width) + bias.reshape(1, -1, 1, 1)
    return out


def _columns(input: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor, kernel: int, *numbers: int) -> torch.Tensor:
    return input.new_empty((input.shape[0], input.shape[1] * kernel, offset.shape[-2] * offset.shape[-1]))


def _alike(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.empty_like, tensors))


def _keep_what_columns_are_of(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = len(inputs) - 3


def _columns_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    own = torch.ops.torchvision._deform_columns_backward(grad, *ctx.saved_tensors)
    return (*own, *[None] * ctx.rest)
