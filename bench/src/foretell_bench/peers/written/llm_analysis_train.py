"""What a user of llm-analysis writes: the shapes as its own file, and a fraction of the peak that nobody knows beforehand."""

# mypy: ignore-errors
import json
import sys
import tempfile

from llm_analysis.analysis import train

question = json.load(sys.stdin)
config = question["config"]
boards = {
    "a100-80g-sxm": "a100-sxm-80gb", "a800-80g-sxm": "a100-sxm-80gb", "a100-40g-sxm": "a100-sxm-40gb",
    "h100-sxm": "h100-sxm-80gb", "h800-sxm": "h100-sxm-80gb", "v100-16g-sxm": "v100-sxm-16gb",
}  # fmt: skip
if not config or question["device"] not in boards:
    raise SystemExit("it knows decoders on some boards alone")
if question["cp"] > 1:
    raise SystemExit("it knows no context parallelism")
heads, width = config["num_attention_heads"], config["hidden_size"]
inner = config.get("moe_intermediate_size") or config.get("intermediate_size") or config.get("ffn_dim")
experts = config.get("num_local_experts") or config.get("num_experts") or 1
shapes = {
    "name": "job", "num_layers": config["num_hidden_layers"], "n_head": heads, "hidden_dim": width,
    "vocab_size": config["vocab_size"], "max_seq_len": question["seq"], "ffn_embed_dim": inner, "expansion_ratio": inner / width,
    "num_key_value_groups": heads // config.get("num_key_value_heads", heads),
    "num_key_value_heads": config.get("num_key_value_heads", heads), "model_type": config["model_type"],
    "moe_num_experts": experts, "moe_top_k": config.get("num_experts_per_tok", 1),
}  # fmt: skip
with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump(shapes, file)
    file.flush()
    found = train(
        model_name=file.name, gpu_name=boards[question["device"]], batch_size_per_gpu=question["batch"], seq_len=question["seq"],
        gradient_accumulation_steps=question["grad_accumulation"], ds_zero=question["zero"], dp_size=question["dp"], tp_size=question["tp"],
        pp_size=question["pp"], ep_size=question["ep"], flops_efficiency=0.5, mlp_gated_linear_units=config["model_type"] != "opt",
        activation_recomputation=2 if question["checkpointing"] else int(question["selective"]), log_level="ERROR",
    )  # fmt: skip
memory = found["(weight+op_state+grad+act)_memory_per_gpu"]
print(json.dumps({"seconds": found["latency_per_iter"], "memory": int(memory)}))
