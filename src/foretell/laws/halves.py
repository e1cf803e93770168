"""What one half precision has to itself: ops that scale its loss, and kernels that torch gives to no other type."""

from __future__ import annotations

from typing import Final

from foretell.forecasting.snapshot import RankStep
from foretell.graph import Signature
from foretell.graph.operators import operator_of
from foretell.hardware import Device
from foretell.units import Seconds

_SCALING: Final = ("aten._amp_foreach_non_finite_check_and_unscale_", "aten._amp_update_scale_")


def seconds_of_one_half(rank: RankStep) -> Seconds:
    """Device seconds of ops that differ between fp16 and bf16 by what is run, not by how fast it is."""
    ops = zip(rank.role.graph.ops, rank.seconds, strict=True)
    return sum(seconds * op.times for op, seconds in ops if _of_one_half(op.signature, rank.device))


def _of_one_half(signature: Signature, device: Device) -> bool:
    """Whether it scales the loss of fp16, or torch has cuDNN run it for fp16 alone and kernels of its own for bf16.

    Those are batch norms (`_batch_norm_impl_index` in ATen's Normalization.cpp) and depthwise convolutions (`use_cudnn_depthwise`
    in its Convolution.cpp); a library of another maker runs depthwise convolutions of both, and on what is no board batch norms
    too.
    """
    operator = operator_of(signature.name)
    if signature.name in _SCALING:
        return True
    if operator.kind == "batch" and operator.family in ("norm", "norm_backward"):
        return device.kind == "gpu"
    grouped = operator.family.startswith("convolution") and signature.argument("groups", 1) != 1
    return grouped and device.vendor == "NVIDIA"
