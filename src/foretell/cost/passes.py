"""How often kernels move what an op reads and writes: its traffic counts every tensor once.

A norm in training first sums what it then reads again, so where no cache has it, it comes from memory twice. What that costs
follows a device's memory, not its clocks.
"""

from __future__ import annotations

from typing import Final

from foretell.graph import Signature
from foretell.graph.operators import operator_of

# Of an operator's family and kind: moved over counted, of tensors that are all as large.
_NORMS: Final = {
    ("norm", "batch"): 3 / 2,  # read for its mean and variance, read, written
    ("norm", "group"): 3 / 2,
    ("norm_backward", "batch"): 5 / 3,  # image and gradient read for two sums, both read again, written
    ("norm_backward", "group"): 5 / 3,
    ("norm_backward", "layer"): 5 / 3,  # the weight's gradient is a kernel by itself
    ("norm_backward", "rms"): 5 / 3,
}
# The product of gradient and output is written and read again (it is what `cost.workspace` counts).
_BY_NAME: Final = {"aten._softmax_backward_data": 6 / 3}


def passes(signature: Signature) -> float:
    """Bytes that an op's kernels move over those of its tensors."""
    operator = operator_of(signature.name)
    if operator.kind == "batch" and signature.argument("training", signature.argument("train", True)) is False:
        return 1.0  # statistics are known: one pass
    return _NORMS.get((operator.family, operator.kind)) or _BY_NAME.get(signature.name, 1.0)
