"""What is measured: training steps across architectures, precisions and optimizers, as SOURCE and settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from foretell.sources.former_names import stored_source

Configuration = dict[str, Any]  # source, settings and, of a limit, the batch to start with


def key(configuration: Configuration) -> str:
    """The name of its files, which holds the source as data files know it."""
    settings = "_".join(f"{k}-{v}" for k, v in sorted(configuration["settings"].items()))
    source = Path(stored_source(configuration["source"])).name
    return re.sub(r"[^A-Za-z0-9_.-]+", ".", f"{source}__{settings}")


def _c(source: str, **settings: Any) -> Configuration:
    return {"source": source, "settings": {name: str(value) for name, value in settings.items()}}


def _own(function: str, **settings: Any) -> Configuration:
    return _c(f"foretell_bench.measuring.memory.workloads:{function}", **settings)


STEPS: Final = [
    _c("timm/resnet50", batch=64, precision="amp-bf16"),
    _c("timm/resnet50", batch=64, precision="fp32", optimizer="sgd-momentum"),
    _c("timm/resnet50", batch=128, precision="tf32", optimizer="sgd"),
    _c("timm/resnet50", batch=256, precision="amp-fp16", channels_last=True, optimizer="adamw-fused"),
    _c("timm/resnet50", batch=128, precision="bf16", channels_last=True, optimizer="adam"),
    _c("timm/resnet50", batch=128, precision="fp16", optimizer="none"),
    _c("timm/resnet50", batch=32, precision="amp-bf16", grad_accumulation=4, clip_grad_norm=1.0),
    _c("timm/resnet18", batch=512, precision="amp-bf16", optimizer="adamw-forloop"),
    _c("timm/resnet18", batch=16, precision="fp32", optimizer="adam-fused"),
    _c("timm/resnet152", batch=64, precision="amp-fp16", optimizer="sgd-momentum"),
    _c("timm/resnext50_32x4d", batch=64, precision="amp-bf16"),
    _c("timm/wide_resnet50_2", batch=64, precision="tf32"),
    _c("torchvision/vgg16", batch=64, precision="amp-bf16", optimizer="sgd-momentum"),
    _c("torchvision/vgg16", batch=32, precision="fp32"),
    _c("torchvision/alexnet", batch=256, precision="fp32", optimizer="sgd"),
    _c("timm/densenet121", batch=64, precision="amp-bf16"),
    _c("timm/densenet121", batch=64, precision="fp32", optimizer="sgd"),
    _c("torchvision/mobilenet_v3_large", batch=256, precision="amp-bf16", optimizer="adamw-fused"),
    _c("timm/mobilenetv2_100", batch=128, precision="fp32", channels_last=True),
    _c("timm/efficientnet_b0", batch=128, precision="amp-fp16", optimizer="adam-foreach"),
    _c("timm/efficientnet_b4", batch=32, precision="amp-bf16", channels_last=True),
    _c("timm/regnety_032", batch=64, precision="bf16"),
    _c("torchvision/inception_v3", batch=64, precision="amp-bf16"),
    _c("torchvision/googlenet", batch=64, precision="fp32", optimizer="adam"),
    _c("torchvision/squeezenet1_1", batch=128, precision="tf32", optimizer="sgd"),
    _c("torchvision/shufflenet_v2_x1_0", batch=256, precision="amp-bf16"),
    _c("timm/convnext_tiny", batch=64, precision="amp-bf16"),
    _c("timm/convnext_base", batch=32, precision="bf16", channels_last=True, optimizer="adamw-fused"),
    _c("timm/convnext_base", batch=64, precision="bf16", optimizer="none"),
    _c("timm/vit_base_patch16_224", batch=64, precision="amp-bf16"),
    _c("timm/vit_base_patch16_224", batch=64, precision="fp32", optimizer="adamw-forloop"),
    _c("timm/vit_base_patch16_224", batch=128, precision="bf16", optimizer="adamw-fused"),
    _c("timm/vit_base_patch16_224", batch=128, precision="amp-bf16", checkpointing=True),
    _c("timm/vit_large_patch16_224", batch=32, precision="amp-fp16", optimizer="adamw-fused"),
    _c("timm/vit_tiny_patch16_224", batch=512, precision="tf32"),
    _c("timm/deit3_small_patch16_224", batch=128, precision="amp-bf16"),
    _c("timm/swin_tiny_patch4_window7_224", batch=64, precision="amp-bf16"),
    _c("timm/swin_base_patch4_window7_224", batch=32, precision="fp32"),
    _c("timm/swinv2_tiny_window8_256", batch=32, precision="amp-fp16"),
    _c("timm/beit_base_patch16_224", batch=32, precision="amp-bf16"),
    _c("timm/cait_s24_224", batch=32, precision="amp-bf16"),
    _c("timm/mixer_b16_224", batch=64, precision="bf16", optimizer="sgd-momentum"),
    _c("timm/coatnet_0_rw_224", batch=32, precision="amp-bf16"),
    _c("timm/maxvit_tiny_rw_224", batch=32, precision="tf32"),
    _c("timm/mobilevit_s", batch=64, precision="amp-bf16"),
    _c("timm/poolformer_s12", batch=64, precision="amp-bf16"),
    _c("timm/nfnet_l0", batch=32, precision="amp-bf16"),
    _c("timm/eva02_base_patch14_224", batch=16, precision="bf16"),
    _c("torchvision/deeplabv3_resnet50", batch=8, precision="amp-bf16", optimizer="sgd-momentum"),
    _c("torchvision/fcn_resnet50", batch=8, precision="fp32"),
    _c("torchvision/lraspp_mobilenet_v3_large", batch=16, precision="amp-bf16"),
    _c("torchvision/r3d_18", batch=8, precision="amp-bf16"),
    _c("torchvision/mvit_v2_s", batch=4, precision="amp-bf16"),
    _c("hf/gpt2", batch=8, seq=1024, precision="amp-bf16"),
    _c("hf/gpt2", batch=4, seq=512, precision="fp32", optimizer="adamw-fused"),
    _c("hf/gpt2", batch=16, seq=1024, precision="bf16", optimizer="none"),
    _c("hf/gpt2-medium", batch=4, seq=1024, precision="bf16", optimizer="adamw-fused", checkpointing=True),
    _c("hf/llama-small", batch=8, seq=1024, precision="bf16"),
    _c("hf/llama-small", batch=4, seq=2048, precision="amp-bf16", grad_accumulation=8, clip_grad_norm=1.0),
    _c("hf/tinyllama-1.1b", batch=2, seq=2048, precision="bf16", optimizer="adamw-fused"),
    _c("hf/tinyllama-1.1b", batch=4, seq=2048, precision="bf16", optimizer="adamw", checkpointing=True),
    _c("hf/qwen2-0.5b", batch=2, seq=1024, precision="amp-bf16"),
    _c("hf/opt-125m", batch=4, seq=1024, precision="amp-fp16"),
    _c("hf/pythia-160m", batch=4, seq=1024, precision="bf16", optimizer="sgd-momentum"),
    _c("hf/bloom-560m", batch=2, seq=512, precision="bf16"),
    _c("hf/bert-base", batch=32, seq=128, precision="fp32"),
    _c("hf/bert-base", batch=32, seq=512, precision="amp-bf16", optimizer="adamw-fused"),
    _c("hf/bert-large", batch=8, seq=512, precision="amp-fp16"),
    _c("hf/roberta-base", batch=16, seq=256, precision="tf32", optimizer="adam"),
    _c("hf/distilbert-base", batch=64, seq=128, precision="amp-bf16"),
    _c("hf/deberta-v3-base", batch=8, seq=256, precision="amp-bf16"),
    _c("hf/modernbert-base", batch=8, seq=512, precision="bf16"),
    _c("hf/electra-small", batch=16, seq=256, precision="amp-bf16"),
    _c("hf/albert-base-v2", batch=16, seq=256, precision="fp32"),
    _c("hf/t5-small", batch=16, seq=256, precision="bf16"),
    _c("hf/t5-base", batch=8, seq=256, precision="fp32", optimizer="adamw-fused"),
    _c("hf/bart-base", batch=16, seq=256, precision="amp-bf16"),
    _c("hf/whisper-small", batch=4, precision="amp-bf16"),
    _c("hf/wav2vec2-base", batch=8, precision="amp-bf16"),
    _c("hf/vit-base", batch=64, precision="amp-bf16"),
    _c("hf/dinov2-base", batch=32, precision="bf16"),
    _c("hf/segformer-b0", batch=8, precision="amp-bf16"),
    _c("hf/clip-vit-base-patch32", batch=64, precision="amp-bf16"),
    _c("hf/mamba-130m", batch=2, seq=256, precision="bf16"),
    _own("lstm", batch=64, precision="fp32"),
    _own("lstm", batch=128, precision="amp-fp16", optimizer="sgd"),
    _own("gru", batch=64, precision="bf16"),
    _own("mlp", batch=4096, precision="tf32"),
    _own("mlp", batch=1024, precision="fp32", optimizer="sgd"),
    _own("lora_llama", batch=4, precision="bf16"),
    _own("frozen_backbone", batch=128, precision="amp-bf16"),
    _own("unet", batch=8, precision="amp-bf16"),
    _own("unet", batch=4, precision="fp32", channels_last=True),
    _own("moe", batch=8, precision="bf16"),
    _own("transformer_lm", batch=32, precision="amp-bf16"),
    _own("transformer_lm", batch=16, precision="fp32", optimizer="adam-forloop"),
    _own("two_optimizers", batch=64),
    _own("autoencoder", batch=64, precision="amp-bf16"),
    _own("tcn", batch=64, precision="fp32"),
    _own("dlrm", batch=8192, precision="fp32", optimizer="sgd"),
]  # fmt: skip

# Architectures and sizes that no formula was derived from: measured once, to see how far the predictions are off.
UNSEEN: Final = [
    _c("timm/resnet101", batch=96, precision="amp-fp16", optimizer="adamw-fused"),
    _c("timm/resnetv2_50", batch=48, precision="amp-bf16"),
    _c("timm/seresnet50", batch=64, precision="fp32", optimizer="sgd-momentum"),
    _c("timm/ecaresnet50d", batch=64, precision="tf32"),
    _c("timm/hrnet_w18", batch=32, precision="amp-bf16"),
    _c("timm/dla60", batch=64, precision="amp-bf16", channels_last=True),
    _c("timm/vgg13_bn", batch=48, precision="amp-fp16", optimizer="sgd"),
    _c("timm/mobilenetv4_conv_medium", batch=128, precision="amp-bf16"),
    _c("timm/efficientnetv2_rw_s", batch=32, precision="amp-bf16"),
    _c("timm/ghostnet_100", batch=128, precision="fp32"),
    _c("timm/convnextv2_tiny", batch=48, precision="amp-bf16"),
    _c("timm/repvgg_b0", batch=64, precision="bf16"),
    _c("timm/xception41", batch=24, precision="amp-bf16"),
    _c("timm/inception_v4", batch=32, precision="tf32", optimizer="sgd"),
    _c("timm/regnetx_064", batch=48, precision="amp-fp16"),
    _c("timm/vit_small_patch16_384", batch=24, precision="amp-bf16"),
    _c("timm/vit_base_patch32_224", batch=256, precision="fp32", optimizer="adamw-fused"),
    _c("timm/deit_base_distilled_patch16_224", batch=48, precision="bf16"),
    _c("timm/crossvit_9_240", batch=64, precision="amp-bf16"),
    _c("timm/pit_b_224", batch=32, precision="amp-fp16"),
    _c("timm/twins_svt_small", batch=48, precision="amp-bf16"),
    _c("timm/xcit_small_12_p16_224", batch=32, precision="amp-bf16"),
    _c("timm/gmlp_s16_224", batch=64, precision="tf32"),
    _c("timm/volo_d1_224", batch=32, precision="amp-bf16"),
    _c("timm/davit_tiny", batch=48, precision="bf16", optimizer="sgd-momentum"),
    _c("timm/edgenext_small", batch=64, precision="amp-bf16"),
    _c("timm/levit_256", batch=256, precision="fp32"),
    _c("timm/fastvit_t8", batch=64, precision="amp-bf16"),
    _c("torchvision/efficientnet_v2_s", batch=24, precision="amp-bf16", optimizer="none"),
    _c("torchvision/mnasnet1_0", batch=128, precision="fp32", optimizer="adam"),
    _c("torchvision/deeplabv3_mobilenet_v3_large", batch=12, precision="amp-bf16"),
    _c("torchvision/mc3_18", batch=6, precision="fp32"),
    _c("torchvision/swin_v2_t", batch=32, precision="amp-bf16"),
    _c("hf/qwen3-0.6b", batch=2, seq=1024, precision="bf16", optimizer="adamw-fused"),
    _c("hf/llama-3.2-1b", batch=1, seq=2048, precision="bf16"),
    _c("hf/smollm2-135m", batch=8, seq=1024, precision="amp-bf16"),
    _c("hf/gemma-3-1b", batch=1, seq=1024, precision="bf16"),
    _c("hf/gpt2-large", batch=2, seq=1024, precision="amp-fp16", optimizer="adamw-fused"),
    _c("hf/gpt-neo-1.3b", batch=1, seq=512, precision="bf16"),
    _c("hf/olmo-1b", batch=1, seq=1024, precision="bf16", checkpointing=True),
    _c("hf/phi-1.5", batch=1, seq=1024, precision="bf16", optimizer="sgd"),
    _c("hf/granite-3-1b-a400m", batch=1, seq=512, precision="bf16"),
    _c("hf/roberta-large", batch=8, seq=256, precision="amp-bf16"),
    _c("hf/xlm-roberta-base", batch=16, seq=128, precision="fp32"),
    _c("hf/mpnet-base", batch=32, seq=128, precision="amp-bf16"),
    _c("hf/bart-large", batch=4, seq=256, precision="amp-bf16"),
    _c("hf/mt5-small", batch=8, seq=256, precision="bf16"),
    _c("hf/m2m100-418m", batch=4, seq=128, precision="fp32"),
    _c("hf/whisper-base", batch=8, precision="bf16"),
    _c("hf/hubert-base", batch=8, precision="amp-bf16"),
    _c("hf/swin-tiny", batch=64, precision="amp-bf16"),
    _c("hf/siglip-base-patch16-224", batch=32, precision="amp-bf16"),
    _c("hf/videomae-base", batch=4, precision="amp-bf16"),
    _c("hf/dpt-large", batch=4, precision="amp-bf16"),
    _c("hf/mamba2-130m", batch=2, seq=256, precision="bf16"),
]  # fmt: skip


def _limit(source: str, start: int, **settings: Any) -> Configuration:
    return {**_c(source, **settings), "start": start}


LIMITS: Final = [
    _limit("timm/resnet50", 256, precision="amp-bf16"),
    _limit("timm/resnet50", 128, precision="fp32", channels_last=True, optimizer="sgd-momentum"),
    _limit("timm/vit_base_patch16_224", 256, precision="amp-bf16"),
    _limit("timm/convnext_base", 128, precision="bf16"),
    _limit("timm/swin_tiny_patch4_window7_224", 128, precision="amp-bf16"),
    _limit("timm/efficientnet_b4", 64, precision="amp-bf16"),
    _limit("timm/densenet121", 128, precision="fp32"),
    _limit("torchvision/vgg16", 128, precision="tf32", optimizer="sgd"),
    _limit("torchvision/deeplabv3_resnet50", 16, precision="amp-bf16"),
    _limit("hf/gpt2", 16, seq=1024, precision="amp-bf16"),
    _limit("hf/llama-small", 16, seq=2048, precision="bf16"),
    _limit("hf/tinyllama-1.1b", 8, seq=2048, precision="bf16", optimizer="adamw-fused"),
    _limit("hf/bert-base", 64, seq=512, precision="fp32"),
    _limit("hf/t5-base", 64, seq=512, precision="bf16"),
    _limit("hf/whisper-small", 16, precision="amp-bf16"),
    _own("lstm", precision="fp32") | {"start": 512},
    _own("unet", precision="amp-bf16") | {"start": 16},
]  # fmt: skip
