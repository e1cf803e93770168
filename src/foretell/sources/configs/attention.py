"""Which attention kernel a trainer picks: by who implements the layer, and the word it is given.

What a device runs of it follows from its architecture (`cost/attention_kernels.py`): what is left open is cuDNN's kernel on Hopper
and datacentre Blackwell and FlashAttention 2 on other boards, which is the order of Transformer Engine and of torch.
"""

from __future__ import annotations

from typing import Any, Final

from foretell.sources.configs.keys import Keys

_EAGER: Final = "eager"  # products and a softmax, written out
_OPEN: Final = None
# Transformer Engine takes no notice of `--use-flash-attn`: that is an option of Megatron's own layers.
_KERNELS: Final[dict[str, dict[str, str | None]]] = {
    "transformer_engine": {"auto": _OPEN, "flash": "flash2", "fused": "cudnn", "unfused": _EAGER, "local": _EAGER},
    "local": {"auto": _EAGER, "flash": "flash2", "fused": "cudnn", "unfused": _EAGER, "local": _EAGER},
    "megatron-deepspeed": {"auto": _EAGER, "flash": "flash1", "flash v2": "flash2", "flash triton": "flash1"},
}
_FLAGS: Final = {"use_flash_attn_v2": "flash v2", "use_flash_attn_triton": "flash triton", "use_flash_attn_v1": "flash",
                 "use_flash_attn": "flash"}  # fmt: skip
_OF_DEEPSPEED: Final = (
    "deepspeed",
    "use_flash_attn_v1",
    "use_flash_attn_v2",
    "use_flash_attn_triton",
    "ds_sequence_parallel_size",
)


def megatron_attention(keys: Keys) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings, and entries of the model: attention that is not fused is written out, as Megatron's own layers have it."""
    forked = any(name in keys for name in _OF_DEEPSPEED) and "transformer_impl" not in keys
    given = keys.text("transformer_impl", "megatron-deepspeed" if forked else "transformer_engine")
    words = [word for name, word in _FLAGS.items() if keys.flag(name)]
    kernels = _KERNELS.get(given, _KERNELS["transformer_engine"])
    usual = words[0] if words and kernels is not _KERNELS["transformer_engine"] else "auto"
    backend = keys.text("attention_backend", usual)
    if backend not in kernels:
        raise keys.wrong("attention_backend", backend, f"one of {', '.join(kernels)}")
    keys.free("deterministic_mode")
    kernel = kernels[backend]
    if kernel == _EAGER:
        return {}, {"attn_implementation": "eager"}
    return {"attention": kernel} if kernel else {}, {}
