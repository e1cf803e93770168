"""DNNAbacus on 29 classic networks, as its paper reports: a random split, and each network left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from foretell.methods.dnnabacus import DNNAbacus
from foretell.methods.protocol import DEVICE_TIME, MEMORY, STEP_TIME, Example
from foretell_bench.sources.examples import h200_steps, quiet
from foretell_bench.sources.rows import Say
from foretell_bench.tables.methods import Line, errors

# Written down before anything was fitted: what a course on the field would name, of what the H200 data has.
NETWORKS: Final = tuple(
    """
    torchvision/alexnet torchvision/vgg16 timm/vgg11_bn torchvision/googlenet torchvision/inception_v3 timm/inception_v4
    timm/inception_resnet_v2 timm/resnet18 timm/resnet50 timm/resnet101 timm/wide_resnet50_2 timm/resnext50_32x4d
    timm/seresnet50 timm/densenet121 torchvision/squeezenet1_1 timm/mobilenetv1_100 timm/mobilenetv2_100
    timm/mobilenetv3_large_100 torchvision/mnasnet1_0 torchvision/shufflenet_v2_x1_0 timm/efficientnet_b0 timm/xception71
    timm/dpn68b timm/nasnetalarge timm/darknet53 timm/resnetv2_50 hf/bert-base hf/gpt2 timm/vit_base_patch16_224
    """.split()
)
RANDOM: Final = "29 classics: random"
LEFT_OUT: Final = "29 classics: network left out"
SPLITS: Final = (RANDOM, LEFT_OUT)
_FOLDS: Final = 8
_TARGETS: Final = (STEP_TIME, DEVICE_TIME, MEMORY)


def lines(store: Path, say: Say = quiet) -> list[Line]:
    """Errors of the classics, fitted on the other steps of the classics."""
    mine = [_told(e) for e in h200_steps(store, say, only=NETWORKS)]
    names = sorted({e.query.architecture for e in mine})
    drawn = np.random.default_rng(0).permutation(len(mine)) % _FOLDS
    return [
        *_lines(mine, RANDOM, lambda i: int(drawn[i]), say),
        *_lines(mine, LEFT_OUT, lambda i: names.index(mine[i].query.architecture), say),
    ]


def _told(example: Example) -> Example:
    return replace(example, measured={t: v for t, v in example.measured.items() if t in _TARGETS})


def _lines(mine: Sequence[Example], name: str, fold: Callable[[int], int], say: Say) -> list[Line]:
    folds = sorted({fold(i) for i in range(len(mine))})
    pairs: dict[str, list[tuple[float, float]]] = {target: [] for target in _TARGETS}
    for number in folds:
        say(f"{name}: fold {number + 1} of {len(folds)}")
        made = DNNAbacus().fit([e for i, e in enumerate(mine) if fold(i) != number])
        test = [e for i, e in enumerate(mine) if fold(i) == number]
        for answer, e in zip(made.predict([e.query for e in test]), test, strict=True):
            for target, those in pairs.items():
                if target in e.measured and target in answer.values:
                    those.append((answer.values[target], e.measured[target]))
    return [
        Line(method="dnnabacus", source="h200", split=name, target=target, rows=len(those),
             trained=len(mine) - len(mine) // len(folds), **errors(those))
        for target, those in pairs.items()
    ]  # fmt: skip
