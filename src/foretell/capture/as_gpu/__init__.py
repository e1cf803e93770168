"""Makes a CPU capture take the path a GPU would: the same casts, kernels and optimizer forms.

Some composite operators look at the device before they choose what to run. In the capturing process, and nowhere
else, those choices are replaced by the GPU's: attention goes to a fused kernel, batch norm and RNNs to cuDNN,
autocast follows the CUDA lists, optimizers default to their foreach form. The process ends after the capture, so
nothing is put back.
"""

from __future__ import annotations

import inspect
import warnings

import torch

from foretell.capture.as_gpu import attention, autocast, norms, patches, rnn
from foretell.capture.as_gpu.patches import let_fake_tensors_pass_as_real
from foretell.errors import CaptureError

__all__ = ["behave_as_gpu", "let_fake_tensors_pass_as_real"]

_OVERRIDES: list[torch.library.Library] = []  # a library unregisters its kernels when it is collected


def behave_as_gpu() -> None:
    """Replace the device-dependent choices of this process by a GPU's, once."""
    if _OVERRIDES:
        return
    if "allow_override" not in inspect.signature(torch.library.Library.impl).parameters:
        raise CaptureError(
            f"torch {torch.__version__} is too old to capture with. Upgrade with: pip install 'torch>=2.8'"
        )
    library = torch.library.Library("aten", "IMPL")
    _OVERRIDES.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that we override kernels is the point
        for name, kernel in (attention.COMPOSITES | norms.COMPOSITES | rnn.COMPOSITES).items():
            library.impl(name, kernel, "CompositeImplicitAutograd", allow_override=True)
        for name, kernel in (rnn.SHAPES | patches.SHAPES).items():
            if hasattr(torch.ops.aten, name):
                library.impl(name, kernel, "Meta", allow_override=True)
        for name, kernel in norms.KERNELS.items():
            library.impl(name, kernel, "CompositeExplicitAutograd", allow_override=True)
        autocast.follow_cuda(library)
    patches.apply()
