"""DNNAbacus on 29 classic networks, as its paper reports: a random split, and each network left out in turn; Foretell on the same steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from foretell.learn.workers import each
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
SOURCE: Final = "h200-sweep"  # the store of batch sweeps: foretell_bench.measuring.h200.sweeps
RANDOM: Final = "29 classics: random"
LEFT_OUT: Final = "29 classics: network left out"
SPLITS: Final = (RANDOM, LEFT_OUT)
METHODS: Final = ("dnnabacus",)
_FOLDS: Final = 8
_TARGETS: Final = (STEP_TIME, DEVICE_TIME, MEMORY)
Pairs = dict[str, list[tuple[float, float]]]  # target → (predicted, measured)


@dataclass(frozen=True, slots=True)
class Fold:
    split: str
    method: str
    test: tuple[int, ...]


def lines(store: Path, say: Say = quiet, workers: int = 1, methods: Sequence[str] = METHODS) -> list[Line]:
    """Errors of the classics, fitted on the other steps of the classics."""
    return lines_of(h200_steps(store, say, only=NETWORKS).items, say, workers, methods)


def lines_of(
    examples: Sequence[Example], say: Say = quiet, workers: int = 1, methods: Sequence[str] = METHODS
) -> list[Line]:
    steps = [whole(e) for e in examples]
    wanted = [fold for fold in folds(steps) if fold.method in methods]
    targets = [target for target in _TARGETS if any(target in e.measured for e in steps)]
    chosen = dict(each(choose, steps, targets, workers)) if "dnnabacus" in methods else {}
    say(f"settings of trees: {chosen}")
    found = []
    for one in each(predicted, (steps, chosen), wanted, workers):
        found.append(one)
        say(f"{one[0].split}, {one[0].method}: {len(found)} of {len(wanted)} folds")
    return gathered(found, len(steps))


def choose(steps: Sequence[Example], target: str) -> int:
    """Settings of DNNAbacus's trees for a target, without the first network: once, for all folds."""
    away = set(_tests(steps, LEFT_OUT)[0])
    seen = [e for i, e in enumerate(steps) if i not in away and target in e.measured]
    return DNNAbacus().fit([replace(e, measured={target: e.measured[target]}) for e in seen]).chosen_[target]


def folds(steps: Sequence[Example]) -> list[Fold]:
    return [Fold(split, method, test) for split in SPLITS for test in _tests(steps, split) for method in METHODS]


def gathered(found: Iterable[tuple[Fold, Pairs]], steps: int) -> list[Line]:
    """A line for each split, method and target, over all of its folds."""
    by: dict[tuple[str, str], list[Pairs]] = defaultdict(list)
    for fold, pairs in found:
        by[fold.split, fold.method].append(pairs)
    made = []
    for (split, method), parts in by.items():
        about: dict[str, Any] = {
            "method": method,
            "source": SOURCE,
            "split": split,
            "trained": steps - steps // len(parts),
        }
        for target in _TARGETS:
            if those := [pair for part in parts for pair in part.get(target, ())]:
                made.append(Line(**about, target=target, rows=len(those), **errors(those)))
    return made


def whole(example: Example) -> Example:
    """Without the times of single ops, which few of them have."""
    return replace(example, measured={t: v for t, v in example.measured.items() if t in _TARGETS}, ops=())


def _tests(steps: Sequence[Example], split: str) -> list[tuple[int, ...]]:
    """Of a point that was measured twice, both are on one side."""
    names = [e.query.architecture if split == LEFT_OUT else _point(e) for e in steps]
    drawn = sorted(set(names))
    if split == RANDOM:
        drawn = [drawn[i] for i in np.random.default_rng(0).permutation(len(drawn))]
    count = len(drawn) if split == LEFT_OUT else min(_FOLDS, len(drawn))
    fold = {name: i % count for i, name in enumerate(drawn)}
    return [tuple(i for i, name in enumerate(names) if fold[name] == k) for k in range(count)]


def _point(example: Example) -> str:
    settings = {name: value for name, value in example.query.settings.items() if name != "record"}
    return repr((example.query.architecture, sorted(settings.items())))


def predicted(data: tuple[Sequence[Example], Mapping[str, int]], fold: Fold) -> Pairs:
    steps, chosen = data
    away = set(fold.test)
    method = DNNAbacus(chosen=chosen)
    made = method.fit([e for i, e in enumerate(steps) if i not in away])
    test = [steps[i] for i in fold.test]
    found: Pairs = {target: [] for target in _TARGETS}
    for answer, e in zip(made.predict([e.query for e in test]), test, strict=True):
        for target, those in found.items():
            if target in e.measured and target in answer.values:
                those.append((answer.values[target], e.measured[target]))
    return found
