"""Who runs a step: trainers by the names that people give them, and of which kind each is.

What a trainer adds to its steps goes by its kind, of which there are few: no trainer but some has enough published jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

from foretell.errors import InputError, did_you_mean

# recipe: as a board's maker tuned and published it for that board. tuned: fused kernels and communication behind compute, by
# whoever runs Megatron-LM.
# loop: PyTorch's own sharding around a model's own operators, eager or compiled. engine: one that moves parameters and
# gradients by itself, as DeepSpeed's. plain: a script's loop around DDP, or around one device.
Kind = Literal["recipe", "tuned", "loop", "engine", "plain"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
UNKNOWN: Final = "unknown"
FUSING: Final = ("megatron", "nemo", "megatron-bridge")  # that run Megatron's kernels

TRAINERS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "megatron": "tuned",
        "nemo": "recipe",
        "megatron-bridge": "recipe",
        "maxtext": "recipe",
        "torchtitan": "loop",
        "composer": "loop",
        "nanotron": "loop",
        "litgpt": "loop",
        "torchtune": "loop",
        "lightning": "loop",
        "accelerate": "loop",
        "huggingface": "loop",
        "axolotl": "loop",
        "llamafactory": "loop",
        "deepspeed": "engine",
        "megatron-deepspeed": "engine",
        "internevo": "engine",
        "colossalai": "engine",
        "plain": "plain",
    }
)
_OTHER_NAMES: Final = MappingProxyType(
    {
        "megatron-lm": "megatron",
        "megatron-core": "megatron",
        "llm-foundry": "composer",
        "pytorch-lightning": "lightning",
        "hugging-face": "huggingface",
        "hugging-face's-trainer": "huggingface",
        "transformers": "huggingface",
        "llama-factory": "llamafactory",
        "colossal-ai": "colossalai",
    }
)


def trainer_named(text: str) -> str:
    """The trainer of a name as people write it, `Megatron-LM` as `megatron`; `unknown` is one too."""
    plain = text.strip().lower().replace("_", "-").replace(" ", "-")
    name = _OTHER_NAMES.get(plain, plain)
    if name not in TRAINERS and name != UNKNOWN:
        raise InputError(
            f"no trainer {text[:100]!r} is known. {did_you_mean(name, TRAINERS)}Known are {', '.join(TRAINERS)} and {UNKNOWN}; "
            "a number like 0.1 is what one adds to its steps, as a part of them."
        )
    return name
