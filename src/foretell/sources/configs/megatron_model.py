"""The model that Megatron's arguments describe, as a configuration with the same shapes."""

from __future__ import annotations

import re
from typing import Any, Final

from foretell.errors import SourceError
from foretell.sources.configs.keys import Keys
from foretell.units import whole_number

# Where the vocabulary is its tokenizer's and no number says it.
_VOCABULARIES: Final = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
}
_USUAL: Final = "GPT2BPETokenizer"


def architecture(keys: Keys, layers: int, *, tp: int) -> dict[str, Any]:
    """Entries of a Hugging Face configuration."""
    width, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    if width is None or heads is None:
        raise SourceError(
            f"{keys.file} does not say --hidden-size and --num-attention-heads. Give all of Megatron's arguments."
        )
    script = _known_script(keys)
    if keys.text("hybrid_override_pattern") or keys.number("hybrid_attention_ratio"):
        raise SourceError(
            f"{keys.file} describes a hybrid of Mamba and attention, which is not built from arguments yet."
        )
    swiglu = keys.flag("swiglu")
    mlp = keys.count("ffn_hidden_size") or (64 * (8 * width // 192) if swiglu else 4 * width)
    groups = (
        keys.count("num_query_groups", heads) if keys.flag("group_query_attention") or "deepspeed" in keys else heads
    )
    keys.free("num_query_groups")
    seq = keys.count("seq_length") or keys.count("encoder_seq_length") or 1024
    shared = {
        "vocab_size": _vocabulary(keys, tp, script), "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "max_position_embeddings": max(keys.count("max_position_embeddings", seq), seq),
        "tie_word_embeddings": not keys.flag("untie_embeddings_and_output_weights"),
    }  # fmt: skip
    heads_of = {"num_key_value_heads": groups, "head_dim": keys.count("kv_channels", width // heads)}
    rotary = keys.text("position_embedding_type", "learned_absolute") in ("rope", "yarn", "mrope")
    rotary = rotary or keys.flag("use_rotary_position_embeddings")
    drop = keys.number("hidden_dropout", 0.1) or 0.0
    attention_drop = keys.number("attention_dropout", 0.1) or 0.0
    _named_details(keys)
    if script == "pretrain_t5.py":
        return _two_stacks(keys, shared, mlp, layers)
    if script == "pretrain_bert.py":
        name = "BertForMaskedLM" if keys.flag("bert_no_binary_head") else "BertForPreTraining"
        return {"model_type": "bert", "architectures": [name], "intermediate_size": mlp, **shared,
                "hidden_dropout_prob": drop, "attention_probs_dropout_prob": attention_drop}  # fmt: skip
    if keys.flag("multi_latent_attention"):
        return _latent(keys, shared, mlp)
    if _number_of_experts(keys) > 1:
        return _experts(keys, {**shared, **heads_of}, mlp, swiglu)
    if swiglu or (rotary and not keys.flag("squared_relu")):
        if not swiglu:
            keys.say("swiglu", "not set: the MLP is taken to be gated, of the same bytes")
            mlp = 2 * mlp // 3
        name, class_name = ("qwen3", "Qwen3ForCausalLM") if keys.flag("qk_layernorm") else ("llama", "LlamaForCausalLM")
        return {"model_type": name, "architectures": [class_name], "intermediate_size": mlp, **shared, **heads_of,
                "attention_dropout": attention_drop}  # fmt: skip
    if keys.flag("qk_layernorm"):
        keys.say("qk_layernorm", "the norms of queries and keys are left out")
    if keys.flag("squared_relu"):
        return {"model_type": "nemotron", "architectures": ["NemotronForCausalLM"], "intermediate_size": mlp, **shared, **heads_of,
                "attention_dropout": attention_drop, "partial_rotary_factor": keys.number("rotary_percent", 1.0)}  # fmt: skip
    if groups != heads:
        keys.say("num_query_groups", "with learned positions, taken for a key and value per head")
    return {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "word_embed_proj_dim": width, "ffn_dim": mlp,
        "activation_function": "gelu", **shared, "dropout": drop, "attention_dropout": attention_drop,
        "enable_bias": not keys.flag("disable_bias_linear"),
    }  # fmt: skip


def _known_script(keys: Keys) -> str:
    """GPT's, BERT's or T5's; a fork's own script that pretrains a decoder goes as GPT's."""
    script = keys.text("script", "pretrain_gpt.py")
    if re.fullmatch(
        r"(pretrain_(gpt|llama\w*|qwen\w*|mistral|mixtral|deepseek\w*|helper)|gpt_\w+|.*gpt.*)(\.py)?", script
    ):
        return "pretrain_gpt.py"
    if script not in ("pretrain_bert.py", "pretrain_t5.py"):
        raise SourceError(
            f"{keys.file} starts {script}, whose model is not built from arguments yet. Known: GPT, BERT and T5. Give the model with "
            "--set model=hf/NAME (foretell models hf), the path of a config.json, or file.py:function."
        )
    return script


def _two_stacks(keys: Keys, shared: dict[str, Any], mlp: int, layers: int) -> dict[str, Any]:
    """An encoder and a decoder, with positions counted relative to each other in place of Megatron's table of them."""
    keys.say("script", "T5's positions are taken to be relative, and its parts to lie on one stage each")
    return {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": shared["vocab_size"],
        "d_model": shared["hidden_size"], "d_ff": mlp,
        "d_kv": keys.count("kv_channels", shared["hidden_size"] // shared["num_attention_heads"]),
        "num_heads": shared["num_attention_heads"], "num_layers": layers,
        "num_decoder_layers": keys.count("decoder_num_layers", layers), "decoder_start_token_id": 0,
    }  # fmt: skip


def _vocabulary(keys: Keys, tp: int, script: str) -> int:
    """Padded so that ranks of tensor parallelism share it evenly."""
    given = keys.count("padded_vocab_size")
    if given:
        return given
    size = keys.count("vocab_size")
    if size is None:
        name = keys.text("tokenizer_type", "BertWordPieceLowerCase" if script == "pretrain_bert.py" else _USUAL)
        size = _VOCABULARIES.get(name)
        if size is None:
            size = _VOCABULARIES[_USUAL]
            keys.say("tokenizer_type", f"{name}, whose vocabulary is taken for GPT-2's; give --vocab-size")
    multiple = keys.count("make_vocab_size_divisible_by", 128) * tp
    return -(-size // multiple) * multiple


def _number_of_experts(keys: Keys) -> int:
    """Megatron-DeepSpeed may give a number for each layer with experts."""
    given = keys.text("num_experts", "0").split()
    if len(set(given)) > 1:
        keys.say("num_experts", f"{' '.join(given)}: each layer is taken to have {given[0]}")
    if any(whole_number(word) is None for word in given):
        raise keys.wrong("num_experts", " ".join(given), "a whole number")
    return int(given[0]) if given else 0


def _experts(keys: Keys, shared: dict[str, Any], mlp: int, swiglu: bool) -> dict[str, Any]:
    experts, top, each = (
        _number_of_experts(keys),
        keys.count("moe_router_topk", 2),
        keys.count("moe_ffn_hidden_size", mlp),
    )
    if not swiglu:  # two products of the same bytes as a gated MLP's three
        keys.say("num_experts", "experts without a gate are taken for gated ones of the same bytes")
        each = 2 * each // 3
    if "deepspeed" in keys:  # its experts are in every other layer, and a token goes to one
        interval, top = keys.count("expert_interval", 2), keys.count("topk", 1)
        keys.say("num_experts", "positions are taken to be rotary, and MLPs gated ones of the same bytes")
        return {
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": experts, "num_experts_per_tok": top,
            "moe_intermediate_size": each, "intermediate_size": each, "decoder_sparse_step": interval, **shared,
        }  # fmt: skip
    if extra := keys.count("moe_shared_expert_intermediate_size"):
        return {
            "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "num_experts": experts, "num_experts_per_tok": top,
            "moe_intermediate_size": each, "shared_expert_intermediate_size": extra, "intermediate_size": mlp, **shared,
        }  # fmt: skip
    if keys.flag("qk_layernorm"):
        return {
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": experts, "num_experts_per_tok": top,
            "moe_intermediate_size": each, "intermediate_size": mlp, **shared,
        }  # fmt: skip
    return {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": experts,
        "num_experts_per_tok": top, "intermediate_size": each, **shared,
    }  # fmt: skip


def _latent(keys: Keys, shared: dict[str, Any], mlp: int) -> dict[str, Any]:
    """Multi-head latent attention, dense or with experts, as DeepSeek-V3 has it."""
    keys.free("qk_layernorm")  # norms of latents are part of them
    experts = _number_of_experts(keys)
    dense = _dense_layers(keys, shared["num_hidden_layers"]) if experts else shared["num_hidden_layers"]
    each = keys.count("moe_ffn_hidden_size", mlp)
    extra = keys.count("moe_shared_expert_intermediate_size", 0, least=0)
    keys.free("qk_layernorm")  # latents always have norms here
    return {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], **shared, "intermediate_size": mlp,
        "num_key_value_heads": shared["num_attention_heads"], "q_lora_rank": keys.count("q_lora_rank"),
        "kv_lora_rank": keys.count("kv_lora_rank", 32), "qk_nope_head_dim": keys.count("qk_head_dim", 128),
        "qk_rope_head_dim": keys.count("qk_pos_emb_head_dim", 64), "v_head_dim": keys.count("v_head_dim", 128),
        "first_k_dense_replace": dense, "n_routed_experts": experts or 8, "num_experts_per_tok": keys.count("moe_router_topk", 2),
        "moe_intermediate_size": each, "n_shared_experts": max(extra // each, 0), "n_group": keys.count("moe_router_num_groups", 1),
        "topk_group": keys.count("moe_router_group_topk", 1),
    }  # fmt: skip


def _dense_layers(keys: Keys, layers: int) -> int:
    """Of those before the first with experts; `--moe-layer-freq` is a number or a list like `([0]*3+[1]*24)`."""
    given = keys.text("moe_layer_freq", "1")
    if given.strip("()[] ").split("]", 1)[0] == "0" and "*" in given:
        number = whole_number(given.split("*", 1)[1].split("+", 1)[0].strip(" ()[]"))
        if number is not None:
            return min(number, layers)
    if given != "1":
        keys.say("moe_layer_freq", f"{given}: all layers are taken to have experts")
    return 0


def _named_details(keys: Keys) -> None:
    """What changes little, or is not built."""
    keys.free(
        "normalization", "disable_bias_linear", "add_qkv_bias", "apply_layernorm_1p", "rotary_percent", "rotary_base",
        "rotary_interleaved", "rotary_seq_len_interpolation_factor", "norm_epsilon", "layernorm_epsilon", "openai_gelu", "rope_type",
        "rotary_scaling_factor", "mscale", "mscale_all_dim", "use_rope_scaling", "rope_scaling_factor", "no_position_embedding",
    )  # fmt: skip
