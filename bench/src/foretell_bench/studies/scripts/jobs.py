"""The jobs that are measured on a device and forecast: our example scripts, each with its arguments."""

from __future__ import annotations

from typing import Final

# Name → script and its arguments.
JOBS: Final[dict[str, tuple[str, list[str]]]] = {
    "gpt, amp-bf16": ("gpt.py", ["--gradient_accumulation_steps=2", "--eval_iters=1", "--compile=False"]),
    "gpt, amp-fp16": (
        "gpt.py",
        ["--gradient_accumulation_steps=1", "--batch_size=8", "--eval_iters=1", "--compile=False", "--dtype=float16"],
    ),
    "imagenet resnet18": ("imagenet.py", ["--data-path=imagenet", "--batch-size=64", "--workers=12"]),
    "imagenet resnet50 amp ema": (
        "imagenet.py",
        ["--data-path=imagenet", "--model=resnet50", "--batch-size=96", "--workers=12", "--amp", "--model-ema"],
    ),
    "gan": ("gan.py", ["--batch=256", "--width=128"]),
    "hf trainer, bf16": (
        "hf_trainer.py",
        ["--output_dir=out", "--bf16", "--per_device_train_batch_size=32", "--report_to=none", "--save_strategy=no"],
    ),
    "hf trainer, fp32 accumulated": (
        "hf_trainer.py",
        ["--output_dir=out", "--per_device_train_batch_size=16", "--gradient_accumulation_steps=2", "--report_to=none",
         "--save_strategy=no"],
    ),
    "accelerate vit": ("accelerate_vit.py", ["--batch=64"]),
    "lightning mlp mixer": ("lightning_mixer.py", ["--batch=64"]),
    "diffusion unet": ("diffusion.py", ["--batch=32"]),
    "seq2seq transformer": ("seq2seq.py", ["--batch=64"]),
    "timm convnext": ("timm_finetune.py", ["--batch-size=64"]),
    "causal lm": ("causal_lm.py", []),
    "causal lm, checkpointing": ("causal_lm.py", ["--batch=16", "--checkpointing"]),
    "segmentation": ("segmentation.py", ["--batch-size=16"]),
    "word language model": ("word_language_model.py", []),
    "clip": ("clip.py", []),
    "distillation": ("distill.py", []),
}  # fmt: skip
