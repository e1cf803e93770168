"""The instrument with its libraries loaded beforehand: from a cold disk that takes longer than a point may."""

import timm  # noqa: F401
import torchvision  # noqa: F401
import transformers  # noqa: F401
from transformers import BertForMaskedLM, LlamaForCausalLM  # noqa: F401

from foretell.measure.instrument import measure

__all__ = ["measure"]
