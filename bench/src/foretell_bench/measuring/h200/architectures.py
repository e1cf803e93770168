"""The architectures of the H200 dataset by family, each with the batch that keeps the device busy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from foretell.sources.former_names import stored_source

# Family → SOURCE=base, see Architecture. A name without a slash is a function of
# measuring/memory/workloads.py.
_TABLE: Final[dict[str, str]] = {
    "cnn": (
        "timm/resnet18=640 timm/resnet50=420 timm/resnet101=250 timm/resnet50_gn=420 timm/resnetrs50=640 "
        "timm/seresnet50=380 timm/resnext50_32x4d=360 timm/wide_resnet50_2=200 timm/resnetv2_50=450 "
        "timm/resnetv2_50x1_bit=290 timm/resnetv2_50d_evos=230 timm/skresnet34=530 timm/resnest26d=450 "
        "timm/res2net50_26w_4s=370 timm/dpn68b=530 timm/densenet121=400 timm/vgg11_bn=290 timm/inception_v4=170 "
        "timm/inception_resnet_v2=150 timm/nasnetalarge=53 timm/hrnet_w18_small_v2=570 timm/hrnet_w32=200 "
        "timm/cspresnet50=350 timm/darknet53=230 timm/repvgg_a2=450 timm/gernet_m=640 timm/regnetx_016=640 "
        "timm/regnety_032=440 timm/regnetz_040=190 timm/nf_resnet50=250 timm/nfnet_l0=280 timm/dm_nfnet_f0=170 "
        "timm/hgnetv2_b4=540 timm/ese_vovnet19b_dw=640 timm/xception71=80 timm/resnet50_clip=290 "
        "timm/fasternet_t2=640 timm/rdnet_tiny=290 torchvision/alexnet=580 torchvision/vgg16=110 "
        "torchvision/googlenet=640 torchvision/inception_v3=330 torchvision/squeezenet1_1=640 "
        "torchvision/regnet_y_800mf=640 hf/resnet-50=420"
    ),
    "depthwise-cnn": (
        "timm/mobilenetv1_100=630 timm/mobilenetv2_100=540 timm/mobilenetv3_large_100=640 "
        "timm/mobilenetv4_conv_medium=530 timm/mobilenetv4_conv_small=640 timm/efficientnet_b0=480 "
        "timm/efficientnet_b3=140 timm/tf_efficientnetv2_b0=640 timm/efficientnetv2_rw_s=120 timm/mixnet_m=480 "
        "timm/fbnetv3_b=490 timm/tinynet_a=590 timm/ghostnet_100=640 timm/rexnet_100=460 timm/mobileone_s1=550 "
        "timm/convnext_tiny=170 timm/convnext_base=62 timm/convnextv2_nano=290 timm/convmixer_768_32=53 "
        "timm/inception_next_tiny=220 timm/starnet_s3=640 timm/mambaout_tiny=160 timm/repvit_m1_1=390 "
        "timm/focalnet_tiny_srf=200 torchvision/shufflenet_v2_x1_0=640 torchvision/mnasnet1_0=640 "
        "hf/efficientnet-b7=71 hf/convnextv2-tiny=140 hf/mobilenet-v2=530"
    ),
    "vit": (
        "timm/vit_tiny_patch16_224=640 timm/vit_base_patch16_224=190 timm/vit_large_patch16_224=59 "
        "timm/vit_small_patch16_384=150 timm/vit_base_patch32_224=560 timm/vit_base_patch16_siglip_256=140 "
        "timm/vit_relpos_small_patch16_224=500 timm/deit3_small_patch16_224=530 timm/beit_base_patch16_224=180 "
        "timm/eva02_small_patch14_224=390 timm/cait_xxs24_224=480 timm/tnt_s_patch16_224=340 "
        "timm/xcit_small_12_p16_224=410 timm/crossvit_15_240=390 hf/dinov2-base=130 hf/vit-mae-base=290 "
        "torchvision/vit_b_32=560"
    ),
    "windowed-vit": (
        "timm/swin_tiny_patch4_window7_224=450 timm/swin_base_patch4_window7_224=160 "
        "timm/swinv2_tiny_window8_256=280 timm/swinv2_cr_tiny_224=290 timm/twins_svt_small=620 timm/pvt_v2_b1=640 "
        "timm/nest_tiny=340 timm/gcvit_xtiny=450 timm/davit_tiny=440 timm/mvitv2_tiny=380 timm/hiera_tiny_224=420 "
        "timm/maxvit_tiny_rw_224=230 timm/volo_d1_224=310 torchvision/swin_v2_t=280 hf/pvt-tiny=640"
    ),
    "hybrid-vision": (
        "timm/coatnet_0_rw_224=300 timm/maxxvit_rmlp_nano_rw_256=250 timm/mobilevit_s=270 "
        "timm/mobilevitv2_100=310 timm/edgenext_small=640 timm/efficientformer_l1=640 timm/efficientvit_b1=256 "
        "timm/levit_256=640 timm/convit_small=270 timm/pit_s_224=550 timm/visformer_small=560 "
        "timm/nextvit_small=400 timm/fastvit_sa12=470 timm/tiny_vit_11m_224=420 timm/swiftformer_s=640 "
        "timm/caformer_s18=270 timm/botnet26t_256=500 timm/mobilenetv4_hybrid_medium=640 "
        "timm/vit_small_r26_s32_224=360 timm/shvit_s3=640 torchvision/maxvit_t=150 hf/cvt-13=330"
    ),
    "mlp-vision": (
        "timm/mixer_b16_224=250 timm/mixer_l32_224=210 timm/gmixer_24_224=400 timm/gmlp_s16_224=380 "
        "timm/resmlp_24_224=400 timm/poolformer_s12=640 timm/poolformerv2_s24=540"
    ),
    "recurrent-vision": (
        "timm/sequencer2d_s=260"
    ),
    "segmentation": (
        "torchvision/deeplabv3_resnet50=14 torchvision/fcn_resnet50=16 torchvision/lraspp_mobilenet_v3_large=200 "
        "torchvision/deeplabv3_mobilenet_v3_large=120 hf/segformer-b0=100 hf/upernet-convnext-tiny=11 "
        "hf/dpt-large=9"
    ),
    "video": (
        "torchvision/r3d_18=74 torchvision/mc3_18=64 torchvision/r2plus1d_18=56 torchvision/s3d=88 "
        "torchvision/mvit_v2_s=26 torchvision/swin3d_t=33 hf/videomae-base=12 hf/timesformer-base=12"
    ),
    "detection": (
        "torchvision/retinanet_resnet50_fpn=8 torchvision/ssd300_vgg16=48 "
        "torchvision/ssdlite320_mobilenet_v3_large=96 torchvision/fcos_resnet50_fpn=8 "
        "torchvision/fasterrcnn_mobilenet_v3_large_320_fpn=24"
    ),
    "optical-flow": (
        "torchvision/raft_small=6"
    ),
    "encoder": (
        "hf/bert-base=32768 hf/bert-large=12288 hf/xlm-roberta-base=12288 hf/albert-base-v2=24576 "
        "hf/electra-small=49152 hf/distilbert-base=49152 hf/deberta-v3-base=12288 hf/modernbert-base=20480 "
        "hf/squeezebert=24576 hf/fnet-base=24576 hf/nystromformer-512=16384 hf/xlnet-base=12288 "
        "hf/esm2-150m=10240 hf/longformer-base-4096=8192"
    ),
    "decoder": (
        "hf/gpt2=20480 hf/gpt2-medium=10240 hf/pythia-160m=20480 hf/opt-125m=20480 hf/bloom-560m=8192 "
        "hf/codegen-350m=10240 hf/llama-small=20480 hf/tinyllama-1.1b=6144 hf/smollm2-135m=16384 "
        "hf/llama-3.2-1b=6144 hf/qwen2-0.5b=8192 hf/qwen3-0.6b=8192 hf/gemma-3-1b=5120 hf/olmo-1b=6144 "
        "hf/biogpt=10240 hf/llama-2-7b=10240 hf/mistral-7b=10240 hf/qwen2.5-7b=6144 hf/falcon-7b=8192 "
        "hf/mpt-7b=8192 hf/gpt-j-6b=8192 hf/gemma-2-2b=6144 hf/phi-2=10240 hf/stablelm-3b=10240 "
        "transformer_lm=24576"
    ),
    "encoder-decoder": (
        "hf/t5-small=32768 hf/t5-base=12288 hf/mt5-small=8192 hf/bart-base=20480 hf/bart-large=8192 "
        "hf/marian-en-de=20480 hf/m2m100-418m=6144 hf/long-t5-local-base=8192"
    ),
    "moe": (
        "hf/granite-3-1b-a400m=4096 hf/olmoe-1b-7b=6144 hf/mixtral-8x7b=6144 hf/deepseek-v2-lite=6144 "
        "hf/switch-base-8=4096 hf/qwen3-30b-a3b=6144 moe=16384"
    ),
    "ssm": (
        "hf/mamba-130m=2048 hf/mamba2-130m=2048 hf/falcon-mamba-7b=2048"
    ),
    "speech": (
        "hf/whisper-tiny=40 hf/whisper-small=12 hf/wav2vec2-base=24 hf/hubert-base=24 hf/wavlm-base=16 hf/sew=40 "
        "hf/ast-base=21 hf/speech-to-text-small=120 hf/moonshine-tiny=32"
    ),
    "multimodal": (
        "hf/clip-vit-base-patch32=360 hf/siglip-base-patch16-224=140 hf/align-base=48 hf/blip-base=55"
    ),
    "time-series": (
        "hf/patchtst-ett=2000 hf/patchtsmixer-ett=2000 hf/decision-transformer-hopper=2000"
    ),
    "rnn": (
        "lstm=35840 gru=35840"
    ),
    "mlp": (
        "mlp=32768"
    ),
    "recommender": (
        "dlrm=32768"
    ),
    "lora": (
        "lora_llama=10240"
    ),
    "frozen-backbone": (
        "frozen_backbone=512"
    ),
    "diffusion": (
        "unet=12"
    ),
    "autoencoder": (
        "autoencoder=512"
    ),
    "tcn": (
        "tcn=384"
    ),
    "gan": (
        "two_optimizers=1024"
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A SOURCE, its family, and the batch that keeps the device busy."""

    source: str
    family: str
    base: int  # samples, or tokens of a text, that keep the device busy for about a fifth of a second with amp-bf16


# Families that had too few members; drawn by themselves, so that the others stay as they were.
_LATER_TABLE: Final = {
    "rnn": "tagger=131072 letters=65536 translator=24576 listener=32768 forecaster=524288",
}


def own_source(function: str) -> str:
    return f"foretell_bench.measuring.memory.workloads:{function}"


def _architectures(table: Mapping[str, str]) -> list[Architecture]:
    found = []
    for family, words in table.items():
        for word in words.split():
            name, _, base = word.rpartition("=")
            source = own_source(name) if "/" not in name else name
            found.append(Architecture(source=source, family=family, base=int(base)))
    return found


ARCHITECTURES: Final = _architectures(_TABLE)
LATER_ARCHITECTURES: Final = _architectures(_LATER_TABLE)
FAMILY: Final = {stored_source(a.source): a.family for a in (*ARCHITECTURES, *LATER_ARCHITECTURES)}
