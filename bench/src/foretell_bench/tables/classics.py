"""DNNAbacus on 29 classic networks, as its paper reports: a random split, and each network left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.methods.dnnabacus import DNNAbacus
from foretell.methods.protocol import DEVICE_TIME, MEMORY, STEP_TIME, Example
from foretell_bench.graphs import Say, quiet
from foretell_bench.sources.examples import h200_steps
from foretell_bench.tables.results import Line, errors

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
    steps = [_with_targets(e) for e in h200_steps(store, say, only=NETWORKS).items]
    names = sorted({e.query.architecture for e in steps})
    drawn = np.random.default_rng(0).permutation(len(steps)) % _FOLDS
    return [
        *_lines(steps, RANDOM, lambda i: int(drawn[i]), say),
        *_lines(steps, LEFT_OUT, lambda i: names.index(steps[i].query.architecture), say),
    ]


def _with_targets(example: Example) -> Example:
    return replace(example, measured={t: v for t, v in example.measured.items() if t in _TARGETS})


def _lines(steps: Sequence[Example], name: str, fold: Callable[[int], int], say: Say) -> list[Line]:
    folds = sorted({fold(i) for i in range(len(steps))})
    pairs: dict[str, list[tuple[float, float]]] = {target: [] for target in _TARGETS}
    for number in folds:
        say(f"{name}: fold {number + 1} of {len(folds)}")
        made = DNNAbacus().fit([e for i, e in enumerate(steps) if fold(i) != number])
        test = [e for i, e in enumerate(steps) if fold(i) == number]
        for answer, e in zip(made.predict([e.query for e in test]), test, strict=True):
            for target, those in pairs.items():
                if target in e.measured and target in answer.values:
                    those.append((answer.values[target], e.measured[target]))
    trained = len(steps) - len(steps) // len(folds)
    about: dict[str, Any] = {"method": "dnnabacus", "source": "h200", "split": name, "trained": trained}
    return [Line(**about, target=target, rows=len(those), **errors(those)) for target, those in pairs.items()]
