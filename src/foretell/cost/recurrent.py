"""Which kernels cuDNN runs a recurrent layer with: time and memory both go by it."""

from __future__ import annotations

from typing import Final

from foretell.graph import Signature
from foretell.graph.operators import operator_of

_GATED: Final = 2  # modes of cuDNN from here on are LSTM and GRU; those before have one product a place
# Hidden numbers up to which torch asks for weights that stay on the device's units from one place of a sequence to the next
# (`use_rnn_persist_small_h` in aten/src/ATen/native/cudnn/RNN.cpp), with gates and without. For bf16 cuDNN has no such kernel.
_MOST_HIDDEN: Final = {"forward": (384, 192), "backward": (256, 128)}


def keeps_weights_on_chip(signature: Signature) -> bool:
    """Whether one kernel walks the whole sequence, instead of some for each of its places."""
    hidden, mode = (int(str(signature.argument(*named))) for named in (("hidden_size", 1), ("mode", _GATED)))
    most = _MOST_HIDDEN[operator_of(signature.name).kind][mode >= _GATED]
    return hidden <= most and signature.inputs[0].dtype != "bfloat16"
