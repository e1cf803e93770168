"""Makes a CPU capture take the path a GPU would: the same casts, kernels and optimizer forms.

Some composite operators look at the device before they choose what to run. In the capturing process, and nowhere
else, those choices are replaced by the GPU's: attention goes to a fused kernel, batch norm and RNNs to cuDNN,
autocast follows the CUDA lists, optimizers default to their foreach form. The process ends after the capture, so
nothing is put back.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import meta_table
from torch._subclasses.fake_impls import op_implementations_dict

from foretell.capture.as_gpu import attention, autocast, ctc, norms, patches, rnn, sampling
from foretell.capture.as_gpu.patches import let_fake_tensors_pass_as_real
from foretell.capture.opaque import use_declarations
from foretell.errors import CaptureError

__all__ = ["behave_as_gpu", "let_fake_tensors_pass_as_real"]

_OVERRIDES: list[torch.library.Library] = []  # a library unregisters its kernels when it is collected


def behave_as_gpu() -> None:
    """Replace the device-dependent choices of this process by a GPU's, once; what a capture before has counted is void."""
    attention.CALLS.clear()
    attention.AROUND_MATH.clear()
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
        composites = attention.COMPOSITES | norms.COMPOSITES | rnn.COMPOSITES | sampling.COMPOSITES | ctc.COMPOSITES
        for name, kernel in composites.items():
            library.impl(name, kernel, "CompositeImplicitAutograd", allow_override=True)
        for name, kernel in (norms.SHAPES | rnn.SHAPES | sampling.SHAPES | patches.SHAPES).items():
            if hasattr(torch.ops.aten, name):
                library.impl(name, kernel, "Meta", allow_override=True)
                _replace_shapes_in_python(getattr(torch.ops.aten, name).default, kernel)
        for name, kernel in norms.KERNELS.items():
            library.impl(name, kernel, "CompositeExplicitAutograd", allow_override=True)
        autocast.follow_cuda(library)
    patches.apply()
    use_declarations()


def _replace_shapes_in_python(op: Any, kernel: Callable[..., Any]) -> None:
    """Where torch has shapes or a decomposition in Python, it asks those before it asks a library."""
    meta_table[op] = kernel
    op_implementations_dict.pop(op, None)
    if torch._C.DispatchKey.Meta in op.py_kernels:
        op.py_kernels[torch._C.DispatchKey.Meta] = kernel
        op._dispatch_cache.clear()
