"""The training and inference steps to measure on one H200: architectures × precisions × batches × optimizers.

`STEPS` is a seeded design, not a grid. Every architecture comes two to four times, from host-bound batches to ones that
keep the device busy, and the order is such that stopping early still leaves a good spread: first every architecture
once, families interleaved, then every one again, then some a third time, with the steps that nearly fill the memory in
between. `REPEATS` is a tenth of them to measure again on another occasion.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, Final

from foretell.measure.record import Point
from foretell.sources.former_names import stored_source
from foretell_bench.measuring.h200.architectures import (
    ARCHITECTURES,
    FAMILY,
    LATER_ARCHITECTURES,
    Architecture,
    own_source,
)

TEXT_LENGTHS = {  # lengths to draw from, by family
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

PRECISIONS = {"amp-bf16": 28, "bf16": 19, "tf32": 17, "fp32": 17, "amp-fp16": 12, "fp16": 7}
_WITHOUT_HALF = {"amp-bf16": 35, "tf32": 25, "fp32": 25, "amp-fp16": 15}
_WITHOUT_CASTS = {"tf32": 50, "fp32": 50}
ALLOWED_PRECISIONS = {  # by source or family
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
REGIMES = ("small", "medium", "large")


def drawn(draw: random.Random, weights: dict[str, int]) -> str:
    [choice] = draw.choices(list(weights), list(weights.values()))
    return choice


def _between(draw: random.Random, low: float, high: float) -> int:
    """Log-uniform; mostly a size that people choose, sometimes any."""
    exact = math.exp(draw.uniform(math.log(low), math.log(max(low, high))))
    if draw.random() < 0.3:
        return max(1, round(exact))
    octave: int = 2 ** math.floor(math.log2(max(1.0, exact)))
    return max(1, *(size for size in (octave // 2, octave, octave * 3 // 2) if size <= exact * 1.01))


def _batch(draw: random.Random, base: float, regime: str) -> int:
    if regime == "small":
        return _between(draw, 1, max(4, base / 256))
    if regime == "medium":
        return _between(draw, min(4, base / 4) if base < 64 else base / 24, base / 5)
    return _between(draw, max(1, base / 2.5), max(1, base))


def point_of(draw: random.Random, architecture: Architecture, regime: str, precision: str) -> Point:
    source, family = architecture.source, architecture.family
    name = source.rpartition(":")[2]
    takes = _TAKES.get(name) if source == own_source(name) else None
    zoo = takes is None
    settings: dict[str, Any] = dict(_SETTINGS.get(source, {"layers": 2} if source in _BLOCKS else {}))
    base = float(architecture.base)
    optimizer = drawn(draw, _FP16_OPTIMIZERS if precision == "fp16" else _OPTIMIZERS)
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
    if family in TEXT_LENGTHS:
        lengths = [n for n in TEXT_LENGTHS[family] if regime != "small" or n <= 256]
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
        if draw.random() < (0.35 if family in TEXT_LENGTHS else 0.08):
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
        allowed = dict(ALLOWED_PRECISIONS.get(a.source) or ALLOWED_PRECISIONS.get(a.family) or PRECISIONS)
        precisions: list[str] = []
        while len(precisions) < _ROUNDS:
            precisions.append(drawn(draw, allowed))
            if len(allowed) > 1:
                del allowed[precisions[-1]]  # each at most once while there are others
        first = i % len(REGIMES)
        second = (first + draw.choice((1, 2))) % len(REGIMES)
        regimes = (REGIMES[first], REGIMES[second], REGIMES[3 - first - second])
        plans[a.source] = iter(tuple(zip(regimes, precisions, strict=True)))

    points: list[Point] = []
    seen: set[str] = set()
    for round_ in range(_ROUNDS):
        members = _spread(draw, ARCHITECTURES)
        if round_ == _ROUNDS - 1:
            members = members[:: max(1, len(members) // _LAST_ROUND)][:_LAST_ROUND]
        for a in members:
            regime, precision = next(plans[a.source])
            point = point_of(draw, a, regime, precision)
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
        point_of(draw, a, regime, drawn(draw, ALLOWED_PRECISIONS.get(a.family) or PRECISIONS))
        for a in LATER_ARCHITECTURES for regime in (*REGIMES, "small")
    ]  # fmt: skip
    return list({point.key: point for point in made}.values())


def _repeats(steps: list[Point], seed: int = 21) -> list[Point]:
    """A tenth, of every family and from all along the list, to tell how one occasion differs from another."""
    draw = random.Random(seed)
    by_family: dict[str, list[Point]] = {}
    for point in steps:
        by_family.setdefault(FAMILY[stored_source(point.source)], []).append(point)
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
    _nearly_full(own_source("unet"), batch=38, precision="amp-bf16"),
    _nearly_full("hf/gpt2", batch=88, seq=1024, precision="amp-bf16", optimizer="adamw"),
    _nearly_full("hf/xlm-roberta-base", batch=220, seq=128, precision="tf32", optimizer="adamw"),
    _nearly_full("hf/segformer-b0", batch=138, precision="amp-bf16", optimizer="adamw"),
    _nearly_full("hf/llama-small", batch=76, seq=2048, precision="bf16", optimizer="adamw"),
    _nearly_full("hf/mamba2-130m", batch=42, seq=256, precision="bf16", optimizer="adamw-fused"),
    _nearly_full("hf/gemma-3-1b", batch=18, seq=1024, precision="bf16", optimizer="adamw"),
    _nearly_full(own_source("lstm"), batch=6000, precision="tf32", optimizer="adamw"),
    _nearly_full("hf/t5-base", batch=176, seq=512, precision="bf16", optimizer="adamw"),
    _nearly_full("hf/bert-base", batch=300, seq=512, precision="amp-bf16", optimizer="adamw-fused"),
    _nearly_full("hf/llama-3.2-1b", batch=22, seq=2048, precision="bf16", optimizer="adamw"),
    _nearly_full("hf/tinyllama-1.1b", batch=25, seq=2048, precision="bf16", optimizer="adamw-fused"),
]


STEPS: Final = _steps()
REPEATS: Final = _repeats(STEPS)
LATER: Final = _later()
