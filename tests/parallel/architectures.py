"""Small language, vision and encoder models of Transformers as workloads: the shapes of blocks that people train."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from foretell.capture import capture
from foretell.graph import Graph
from foretell.sources.named.torchvision_ops import make_torchvision_importable
from foretell.workload import Workload

make_torchvision_importable()
import transformers  # noqa: E402

_TOKENS = 128
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 256,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 16}
_NO_TEXT = {name: size for name, size in _SIZES.items() if name != "vocab_size"}
_GPT = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256, "n_positions": 512}
_LATENT = {
    "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "qk_nope_head_dim": 16, "n_shared_experts": 1,
}  # fmt: skip
# By Transformers' model type: what is said of its configuration.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _GROUPED, "mistral": _GROUPED, "qwen2": _GROUPED, "qwen3": _HEADS, "gemma": _HEADS, "gemma2": _HEADS,
    "phi": _SIZES, "phi3": _GROUPED, "gpt_neox": _SIZES, "mixtral": {**_GROUPED, "num_local_experts": 4},
    "deepseek_v3": {**_SIZES, **_LATENT}, "olmo": _GROUPED, "olmo2": _GROUPED, "stablelm": _GROUPED, "starcoder2": _GROUPED,
    "cohere": _GROUPED, "granite": _GROUPED, "bert": _SIZES, "roberta": _SIZES, "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 16},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 512, "vocab_size": 256},
    "opt": {**_SIZES, "ffn_dim": 256, "word_embed_proj_dim": 64},
    "bloom": {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 4, "num_heads": 4, "vocab_size": 256, "decoder_start_token_id": 0},
    "vit": {**_NO_TEXT, "image_size": 64, "patch_size": 4},
}  # fmt: skip
_TASKS = {"bert": "MaskedLM", "roberta": "MaskedLM", "t5": "Seq2SeqLM", "vit": "ImageClassification"}


def _batch(name: str) -> dict[str, torch.Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(2, (4,))}
    tokens = torch.randint(3, 256, (4, _TOKENS))
    return {"input_ids": tokens, "labels": tokens}


@cache
def architecture(name: str, **settings: Any) -> Graph:
    config = transformers.AutoConfig.for_model(name, **ARCHITECTURES[name])
    config.use_cache = False
    build = getattr(transformers, f"AutoModelFor{_TASKS.get(name, 'CausalLM')}").from_config
    return capture(
        Workload(
            name=name,
            model=lambda: build(config),
            batch=lambda: _batch(name),
            loss=lambda model, b: model(**b).loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters),
            precision="bf16",
            **settings,
        )
    )
