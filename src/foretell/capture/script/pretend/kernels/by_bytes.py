"""Kernels of which only the tensors are known: a launch reads and writes them, and is priced by their bytes alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor

from foretell.capture.opaque import launch
from foretell.capture.script.pretend.kernels.notes import note


def launch_by_bytes(name: str, tensors: Sequence[Tensor], described: str) -> None:
    """Record the launch, with a caveat in which the kernel is `described`."""
    note(f"{described} is priced by the bytes of its tensors alone; foretell.opaque declares what it computes")
    moved = float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    launch(re.sub(r"\W", "_", name), tensors, tensors, 0.0, moved)
