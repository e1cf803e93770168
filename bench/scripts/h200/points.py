"""The training and inference steps to measure on one H200: architectures × precisions × batches × optimizers.

`STEPS` is a seeded design, not a grid. Every architecture comes two to four times, from host-bound batches to ones that
keep the device busy, and the order is such that stopping early still leaves a good spread: first every architecture
once, families interleaved, then every one again, then some a third time, with the steps that nearly fill the memory in
between. `REPEATS` is a tenth of them to measure again on another occasion.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.measure.record import Point

# Family → SOURCE=base, see Architecture. A name without a slash is a function of bench/scripts/memory/workloads.py.
_TABLE: dict[str, str] = {
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
    source: str
    family: str
    base: int  # samples, or tokens of a text, that keep the device busy for about a fifth of a second with amp-bf16


# Families that had too few to be told apart from their members; drawn by themselves, so that the others stay as they were.
_LATER_TABLE = {
    "rnn": "tagger=131072 letters=65536 translator=24576 listener=32768 forecaster=524288",
}


def _architectures(table: Mapping[str, str]) -> list[Architecture]:
    found = []
    for family, words in table.items():
        for word in words.split():
            name, _, base = word.rpartition("=")
            source = f"bench/scripts/memory/workloads.py:{name}" if "/" not in name else name
            found.append(Architecture(source=source, family=family, base=int(base)))
    return found


ARCHITECTURES: Final = _architectures(_TABLE)
_LATER_ARCHITECTURES: Final = _architectures(_LATER_TABLE)
FAMILY: Final = {a.source: a.family for a in (*ARCHITECTURES, *_LATER_ARCHITECTURES)}

_TEXT = {  # lengths to draw from, by family
    "encoder": (64, 128, 256, 384, 512),
    "decoder": (128, 256, 512, 1024, 2048),
    "encoder-decoder": (64, 128, 256, 512),
    "moe": (128, 256, 512, 1024),
    "ssm": (32, 64, 128),
    "rnn": (20, 35, 70, 128),
    "lora": (256, 512, 1024, 2048),
}
_IMAGES = ("cnn", "depthwise-cnn", "vit", "windowed-vit", "hybrid-vision", "mlp-vision", "segmentation")
_ANY_SIZE = ("cnn", "depthwise-cnn")  # take images of other sizes than the published one
ONE_SIZE = frozenset(
    "timm/inception_v4 timm/inception_resnet_v2 timm/nasnetalarge timm/resnet50_clip torchvision/alexnet "
    "torchvision/googlenet torchvision/inception_v3 hf/resnet-50 hf/efficientnet-b7 hf/convnextv2-tiny".split()
)
_BATCH_NORMS = (*_IMAGES, "video", "detection", "diffusion", "autoencoder", "tcn", "gan")  # need two samples to train
_SETTINGS: dict[str, dict[str, Any]] = {  # that a source always has
    "hf/nystromformer-512": {"seq": 512},
    "hf/longformer-base-4096": {"seq": 1024},
    "hf/deepseek-v2-lite": {"layers": 2},
    "hf/mamba-130m": {"layers": 6},  # without its own kernels it goes step by step
    "hf/falcon-mamba-7b": {"layers": 2},
    "hf/olmoe-1b-7b": {"layers": 2},
    "hf/mixtral-8x7b": {"layers": 1},
    "hf/qwen3-30b-a3b": {"layers": 1},
}
_BLOCKS = frozenset(  # large models, two layers of each
    "hf/llama-2-7b hf/mistral-7b hf/qwen2.5-7b hf/falcon-7b hf/mpt-7b hf/gpt-j-6b hf/gemma-2-2b hf/phi-2 hf/stablelm-3b".split()
)
_SECONDS = frozenset(  # speech models that hear recordings of any length
    "hf/wav2vec2-base hf/hubert-base hf/wavlm-base hf/sew hf/moonshine-tiny hf/speech-to-text-small".split()
)
_CHECKPOINTS = frozenset(  # those with activation checkpointing of their own that are tried with it
    "timm/resnet50 timm/resnet101 timm/densenet121 timm/regnety_032 timm/efficientnet_b0 timm/convnext_tiny "
    "timm/convnext_base timm/vit_base_patch16_224 timm/vit_large_patch16_224 timm/vit_small_patch16_384 "
    "timm/deit3_small_patch16_224 timm/beit_base_patch16_224 timm/swin_base_patch4_window7_224 "
    "timm/swinv2_tiny_window8_256 timm/davit_tiny timm/caformer_s18 timm/coatnet_0_rw_224 timm/mixer_b16_224 "
    "hf/dinov2-base hf/bert-base hf/bert-large hf/xlm-roberta-base hf/electra-small hf/modernbert-base hf/gpt2 "
    "hf/gpt2-medium hf/pythia-160m hf/opt-125m hf/bloom-560m hf/llama-small hf/tinyllama-1.1b hf/smollm2-135m "
    "hf/llama-3.2-1b hf/qwen2-0.5b hf/qwen3-0.6b hf/gemma-3-1b hf/olmo-1b hf/t5-base hf/bart-base hf/whisper-small "
    "hf/wav2vec2-base hf/videomae-base hf/clip-vit-base-patch32".split()
)

# What the functions of workloads.py take beside a batch; the zoo's take everything.
_TAKES = {
    "lstm": ("seq", "precision", "optimizer"),
    "gru": ("seq", "precision", "optimizer"),
    "tagger": ("seq", "precision", "optimizer"),
    "letters": ("seq", "precision", "optimizer"),
    "translator": ("seq", "precision", "optimizer"),
    "listener": ("seq", "precision", "optimizer"),
    "forecaster": ("seq", "precision", "optimizer"),
    "transformer_lm": ("seq", "precision", "optimizer"),
    "moe": ("seq", "precision", "optimizer"),
    "mlp": ("precision", "optimizer"),
    "dlrm": ("precision", "optimizer"),
    "lora_llama": ("seq", "precision"),
    "frozen_backbone": ("precision",),
    "unet": ("precision", "channels_last"),
    "autoencoder": ("precision",),
    "tcn": ("precision",),
    "two_optimizers": (),
}

_PRECISIONS = {"amp-bf16": 28, "bf16": 19, "tf32": 17, "fp32": 17, "amp-fp16": 12, "fp16": 7}
_WITHOUT_HALF = {"amp-bf16": 35, "tf32": 25, "fp32": 25, "amp-fp16": 15}
_WITHOUT_CASTS = {"tf32": 50, "fp32": 50}
_ALLOWED_PRECISIONS = {  # by source or family
    "detection": _WITHOUT_HALF,
    "speech": _WITHOUT_HALF | {"bf16": 15},
    "optical-flow": _WITHOUT_CASTS,
    "moe": {"bf16": 80, "amp-bf16": 20},  # grouped matrix products are for bf16
    "hf/fnet-base": _WITHOUT_CASTS,  # Fourier transforms of bfloat16 are not there
}
_OPTIMIZERS = {
    "adamw": 26, "adamw-fused": 13, "adamw-forloop": 4, "adam": 7, "adam-fused": 4, "adam-foreach": 2, "adam-forloop": 2,
    "sgd-momentum": 12, "sgd": 7, "sgd-momentum-fused": 2, "sgd-forloop": 2, "adagrad": 4, "rmsprop": 4, "adafactor": 4,
    "none": 10,
}  # fmt: skip
_FP16_OPTIMIZERS = {"none": 60, "sgd": 40}  # the small constants of the others are zero in fp16
_DEAR = ("adafactor", "adamw-forloop", "adam-forloop", "sgd-forloop")  # host-bound for hundreds of parameters

# How much of the base batch takes as long as amp-bf16 does.
SPEED = {"fp32": 0.3, "tf32": 0.55, "bf16": 1.1, "fp16": 1.1, "amp-bf16": 1.0, "amp-fp16": 1.0}
_INFERENCE_SPEED = 2.5
_ROUNDS, _LAST_ROUND = 3, 36  # architectures in the last round
_REGIMES = ("small", "medium", "large")


def _drawn(draw: random.Random, weights: dict[str, int]) -> str:
    [choice] = draw.choices(list(weights), list(weights.values()))
    return choice


def _between(draw: random.Random, low: float, high: float) -> int:
    """Log-uniform; mostly a size that people choose, sometimes any."""
    exact = math.exp(draw.uniform(math.log(low), math.log(max(low, high))))
    if draw.random() < 0.3:
        return max(1, round(exact))
    octave = 2 ** math.floor(math.log2(max(1.0, exact)))
    return max(1, *(size for size in (octave // 2, octave, octave * 3 // 2) if size <= exact * 1.01))


def _batch(draw: random.Random, base: float, regime: str) -> int:
    if regime == "small":
        return _between(draw, 1, max(4, base / 256))
    if regime == "medium":
        return _between(draw, min(4, base / 4) if base < 64 else base / 24, base / 5)
    return _between(draw, max(1, base / 2.5), max(1, base))


def _point(draw: random.Random, architecture: Architecture, regime: str, precision: str) -> Point:
    source, family = architecture.source, architecture.family
    name = source.rpartition(":")[2]
    takes = _TAKES.get(name) if source.endswith(f"workloads.py:{name}") else None
    zoo = takes is None
    settings: dict[str, Any] = dict(_SETTINGS.get(source, {"layers": 2} if source in _BLOCKS else {}))
    base = float(architecture.base)
    optimizer = _drawn(draw, _FP16_OPTIMIZERS if precision == "fp16" else _OPTIMIZERS)
    if optimizer in _DEAR and regime == "large":
        optimizer = "adamw-fused"

    if takes is None or "precision" in takes:
        settings["precision"] = precision
        base *= SPEED[precision]
    if takes is None or "optimizer" in takes:
        settings["optimizer"] = optimizer
        base *= _INFERENCE_SPEED if optimizer == "none" else 1
    training = optimizer != "none" or not zoo

    if family in _ANY_SIZE and zoo and source not in ONE_SIZE and draw.random() < 0.2:
        settings["image_size"] = draw.choice((128, 160, 192, 256, 288, 320))
        base *= (224 / settings["image_size"]) ** 2
    if source in _SECONDS:
        settings["seconds"] = draw.choice((4, 8, 15))
        base *= 10 / settings["seconds"]
    if family in _TEXT:
        lengths = [n for n in _TEXT[family] if regime != "small" or n <= 256]
        seq = settings.setdefault("seq", draw.choice(lengths))
        base /= seq
        if family == "encoder-decoder":
            settings["target_seq"] = max(16, seq // draw.choice((1, 2, 4)))
    batch = _batch(draw, base, regime)
    if family in _BATCH_NORMS and training:
        batch = max(2, batch)

    if zoo and training:
        if regime != "small" and source in _CHECKPOINTS and draw.random() < 0.4:
            settings["checkpointing"] = "true"
        if draw.random() < 0.1 and batch >= 4:
            settings["grad_accumulation"] = draw.choice((2, 4))
            batch = max(2, batch // settings["grad_accumulation"])
        if draw.random() < (0.35 if family in _TEXT else 0.08):
            settings["clip_grad_norm"] = 1.0
    images = (zoo and family in _IMAGES) or (takes is not None and "channels_last" in takes)
    if images and draw.random() < (0.35 if family in _ANY_SIZE else 0.15):
        settings["channels_last"] = "true"
    return Point(source=source, settings={name: str(value) for name, value in {"batch": batch, **settings}.items()})


def _spread(draw: random.Random, architectures: list[Architecture]) -> list[Architecture]:
    """Shuffled so that every stretch of the list holds its share of every family."""
    places = []
    for family in dict.fromkeys(a.family for a in architectures):
        members = [a for a in architectures if a.family == family]
        draw.shuffle(members)
        offset = draw.random()
        places += [((i + offset) / len(members), a) for i, a in enumerate(members)]
    return [a for _, a in sorted(places, key=lambda place: (place[0], place[1].source))]


def _steps(seed: int = 20) -> list[Point]:
    draw = random.Random(seed)
    plans: dict[str, Iterator[tuple[str, str]]] = {}
    for i, a in enumerate(_spread(draw, ARCHITECTURES)):
        allowed = dict(_ALLOWED_PRECISIONS.get(a.source) or _ALLOWED_PRECISIONS.get(a.family) or _PRECISIONS)
        precisions: list[str] = []
        while len(precisions) < _ROUNDS:
            precisions.append(_drawn(draw, allowed))
            if len(allowed) > 1:
                del allowed[precisions[-1]]  # each at most once while there are others
        first = i % len(_REGIMES)
        second = (first + draw.choice((1, 2))) % len(_REGIMES)
        regimes = (_REGIMES[first], _REGIMES[second], _REGIMES[3 - first - second])
        plans[a.source] = iter(tuple(zip(regimes, precisions, strict=True)))

    points: list[Point] = []
    seen: set[str] = set()
    for round_ in range(_ROUNDS):
        members = _spread(draw, ARCHITECTURES)
        if round_ == _ROUNDS - 1:
            members = members[:: max(1, len(members) // _LAST_ROUND)][:_LAST_ROUND]
        for a in members:
            regime, precision = next(plans[a.source])
            point = _point(draw, a, regime, precision)
            if point.key not in seen:
                seen.add(point.key)
                points.append(point)
    start = len(ARCHITECTURES)
    stride = (len(points) - start) // len(_NEARLY_FULL)
    for i, point in enumerate(_NEARLY_FULL):  # after every architecture's first point
        points.insert(start + i * (stride + 1), point)
    return points


def _later(seed: int = 22) -> list[Point]:
    """Each architecture in each regime, and once more."""
    draw = random.Random(seed)
    made = [
        _point(draw, a, regime, _drawn(draw, _ALLOWED_PRECISIONS.get(a.family) or _PRECISIONS))
        for a in _LATER_ARCHITECTURES for regime in (*_REGIMES, "small")
    ]  # fmt: skip
    return list({point.key: point for point in made}.values())


def _repeats(steps: list[Point], seed: int = 21) -> list[Point]:
    """A tenth, of every family and from all along the list, to tell how one occasion differs from another."""
    draw = random.Random(seed)
    by_family: dict[str, list[Point]] = {}
    for point in steps:
        by_family.setdefault(FAMILY[point.source], []).append(point)
    chosen = []
    for points in by_family.values():
        count = max(1, len(points) // 10)
        stride = len(points) / count
        chosen += [points[int(i * stride + draw.random() * stride)] for i in range(count)]
    return sorted(chosen, key=steps.index)


def _nearly_full(source: str, **settings: Any) -> Point:
    return Point(source=source, settings={name: str(value) for name, value in settings.items()})


# Most of 139 GiB, as far as earlier measurements of memory tell; chosen to be quick all the same.
_NEARLY_FULL = [
    _nearly_full("hf/qwen2-0.5b", batch=34, seq=1024, precision="amp-bf16", optimizer="adamw"),
    _nearly_full("timm/densenet121", batch=1000, precision="fp32", optimizer="adamw"),
    _nearly_full("hf/smollm2-135m", batch=74, seq=1024, precision="amp-bf16", optimizer="adamw-fused"),
    _nearly_full("bench/scripts/memory/workloads.py:unet", batch=38, precision="amp-bf16"),
    _nearly_full("hf/gpt2", batch=88, seq=1024, precision="amp-bf16", optimizer="adamw"),
    _nearly_full("hf/xlm-roberta-base", batch=220, seq=128, precision="tf32", optimizer="adamw"),
    _nearly_full("hf/segformer-b0", batch=138, precision="amp-bf16", optimizer="adamw"),
    _nearly_full("hf/llama-small", batch=76, seq=2048, precision="bf16", optimizer="adamw"),
    _nearly_full("hf/mamba2-130m", batch=42, seq=256, precision="bf16", optimizer="adamw-fused"),
    _nearly_full("hf/gemma-3-1b", batch=18, seq=1024, precision="bf16", optimizer="adamw"),
    _nearly_full("bench/scripts/memory/workloads.py:lstm", batch=6000, precision="tf32", optimizer="adamw"),
    _nearly_full("hf/t5-base", batch=176, seq=512, precision="bf16", optimizer="adamw"),
    _nearly_full("hf/bert-base", batch=300, seq=512, precision="amp-bf16", optimizer="adamw-fused"),
    _nearly_full("hf/llama-3.2-1b", batch=22, seq=2048, precision="bf16", optimizer="adamw"),
    _nearly_full("hf/tinyllama-1.1b", batch=25, seq=2048, precision="bf16", optimizer="adamw-fused"),
]


STEPS: Final = _steps()
REPEATS: Final = _repeats(STEPS)
LATER: Final = _later()
