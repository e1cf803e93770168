"""The questions: models that are captured quickly, on devices of every vendor and generation, under plans of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Verb = Literal["forecast", "fit_batch", "scale"]

# Each is captured once, and asked on every device and under every plan.
_STEPS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("torchvision/resnet18", {"batch": "32"}),
    ("torchvision/resnet50", {"batch": "64", "precision": "amp-fp16", "optimizer": "sgd"}),
    ("torchvision/resnet50", {"batch": "128", "precision": "torch-fp32"}),
    ("torchvision/mobilenet_v2", {"batch": "64", "precision": "tf32"}),
    ("torchvision/vgg16", {"batch": "16", "precision": "torch-fp32", "optimizer": "sgd"}),
    ("torchvision/densenet121", {"batch": "32", "precision": "amp-bf16"}),
    ("torchvision/vit_b_16", {"batch": "32", "precision": "amp-bf16"}),
    ("timm/convnext_tiny", {"batch": "32", "precision": "bf16"}),
    ("timm/efficientnet_b0", {"batch": "64", "precision": "amp-fp16"}),
    ("timm/mixer_s16_224", {"batch": "64", "precision": "fp16"}),
    ("timm/swin_tiny_patch4_window7_224", {"batch": "32", "precision": "tf32"}),
    ("hf/bert-base", {"batch": "16", "seq": "256", "precision": "amp-fp16"}),
    ("hf/t5-small", {"batch": "8", "seq": "256", "precision": "bf16"}),
    ("hf/opt-125m", {"batch": "4", "seq": "512", "precision": "fp32"}),
    ("hf/gpt2", {"batch": "8", "seq": "512", "precision": "amp-bf16"}),
    ("hf/gpt2", {"batch": "8", "seq": "512", "precision": "fp8"}),
    ("hf/gpt2", {"batch": "2", "seq": "1024", "precision": "torch-fp32", "grad_accumulation": "4"}),
    ("hf/llama-small", {"batch": "4", "seq": "1024", "precision": "bf16"}),
    ("hf/llama-small", {"batch": "4", "seq": "1024", "precision": "parameters:bf16/gradients:fp32/master:fp32"}),
    ("hf/llama-small", {"batch": "4", "seq": "1024", "precision": "compute:bf16/reduce:fp32"}),
    ("hf/llama-3.2-1b", {"batch": "1", "seq": "2048", "precision": "bf16"}),
    ("hf/llama-3.2-1b", {"batch": "1", "seq": "2048", "precision": "fp8:rowwise"}),
    ("hf/qwen1.5-moe-a2.7b", {"batch": "1", "seq": "512", "precision": "bf16"}),
)

_DEVICES: Final = (
    "k80 m40 p100-sxm gtx-1080-ti v100-16g-sxm titan-v t4 rtx-2080-ti quadro-rtx-8000 a100-80g-sxm a10 rtx-3090 l4 "
    "rtx-4090 h100-sxm h20 gh200 h200 b200 gb300 rtx-5090 rtx-pro-6000 mi100 mi250x mi300x mi355x gaudi2 gaudi3 "
    "arc-pro-b60 m3-max cpu"
).split()

_PLANS: Final = (
    ("8xh200", "dp=8"),
    ("8xh100-sxm", "dp=8,zero=3"),
    ("2x8xh100-sxm@ib-400g", "dp=16,zero=3,hybrid_shard=8"),
    ("8xa100-80g-sxm", "dp=2,tp=2,pp=2,grad_accumulation=4"),
    ("8xb200", "dp=4,tp=2,sequence_parallel=true,zero=1"),
    ("4xrtx-4090", "dp=4,zero=2,checkpointing=full"),
    ("2x8xv100-16g-sxm@eth-25g", "dp=16,overlap=false"),
    ("4xt4", "dp=4,data_parallel=dp"),
    ("8xmi300x", "pp=4,dp=2,grad_accumulation=8,schedule=zero-bubble"),
    ("4xt4+2xt4", "dp=6"),
    ("4xa10", "dp=4,servers=2"),
)
# What only sequences of tokens can be: an image is refused by all of them.
_PLANS_OF_TOKENS: Final = (
    ("8xl40s@pcie-4,eth-100g", "dp=4,cp=2"),
    ("2xaws:p5.48xlarge", "dp=8,ep=4,tp=2"),
    ("8xgaudi3", "dp=8,zero=1,checkpointing=selective"),
)

_CONDITIONS: Final[tuple[dict[str, float], ...]] = (
    {"trainer": 0.0},
    {"jitter": 0.0},
    {"loader": 500.0},
    {"slowdown": 1.3},
    {"expert_skew": 2.0},
)
_FITTED: Final = ("torchvision/resnet18", "timm/mixer_s16_224", "hf/gpt2", "hf/llama-small")
_FIT_ON: Final = (("t4", None), ("h200", None), ("mi300x", None), ("8xa100-80g-sxm", "dp=8,zero=3"))
_SCALED: Final = (("h100-sxm", None), ("l4", None), ("a100-80g-sxm@eth-100g", "zero=3"), ("mi300x", "tp=2"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One call of the public face: which function, of which step, where, under which plan and conditions."""

    verb: Verb = "forecast"
    source: str
    settings: Mapping[str, str]
    on: str
    plan: str | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def questions(only: str = "") -> list[Question]:
    """All of them, or those of sources whose name contains `only`."""
    return [question for question in _all() if only in question.source]


def _all() -> Iterator[Question]:
    for source, settings in _STEPS:
        for device in _DEVICES:
            yield Question(source=source, settings=settings, on=device)
        for on, plan in (*_PLANS, *(_PLANS_OF_TOKENS if source.startswith("hf/") else ())):
            yield Question(source=source, settings=settings, on=on, plan=plan)
        for conditions in _CONDITIONS:
            yield Question(source=source, settings=settings, on="8xh100-sxm", conditions=conditions)
        for on, scaled in _SCALED:
            yield Question(verb="scale", source=source, settings=settings, on=on, plan=scaled)
    for source in _FITTED:
        settings = {"precision": "amp-bf16", **({"seq": "512"} if source.startswith("hf/") else {})}
        for on, fitted in _FIT_ON:
            yield Question(verb="fit_batch", source=source, settings=settings, on=on, plan=fitted)
