"""Public training scripts that are measured on a device as published, with the arguments of their READMEs.

They need no library but those of torch, and small data that `small_data` makes. What differs from a README is said: compiled
steps are not forecast, so `--compile=False`; a device is named where the script would choose the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicJob:
    """A script of a repository, where it is run, and the data that it looks for there."""

    repository: str
    commit: str
    script: str
    arguments: tuple[str, ...] = ()
    folder: str = "."  # that it is run in
    data: Mapping[str, str] = field(default_factory=dict)  # path in that folder → kind of data
    packages: str = "."  # what its README installs, or puts on the path
    warm_steps: int = 8
    measured_steps: int = 20

    @property
    def checkout(self) -> str:
        """The folder of its repository among checkouts."""
        return self.repository.replace("/", "+")


_NANO_GPT: Final = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
_NANO_RWKV: Final = ("BlinkDL/nanoRWKV", "381773e73b31f8f94c3ddaf2337399652c90dd01")
_LECTURE: Final = ("karpathy/ng-video-lecture", "52201428ed7b46804849dea0b3ccf0de9df1a5c3")
_MAKEMORE: Final = ("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4")
_MIN_GPT: Final = ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
_CIFAR10: Final = ("kuangliu/pytorch-cifar", "49b7aa97b0c12fe0d4054e670403a16b6b834ddd")
_CIFAR100: Final = ("weiaicunzai/pytorch-cifar100", "11d8418f415b261e4ae3cb1ffe20d06ec95b98e4")
_VISION: Final = ("pytorch/vision", "e6f04004f0e0f759b44329d9ee6751a55abf0f83")
_MOBILENET: Final = ("d-li14/mobilenetv2.pytorch", "1733532bd43743442077326e1efc556d7cfd025d")
_CUTOUT: Final = ("uoguelph-mlrg/Cutout", "287f934ea5fa00d4345c2cccecf3552e2b1c33e3")
_CONTRAST: Final = ("HobbitLong/SupContrast", "66a8fe53880d6a1084b2e4e0db0a019024d6d41a")
_FIX_MATCH: Final = ("kekmodel/FixMatch-pytorch", "040be3b8950300b052f810df31a0c6c09561e09f")
_SAM: Final = ("davda54/sam", "3c3afdbd71cff2462ec91c734b3d1170bd0f3707")
_GCN: Final = ("tkipf/pygcn", "1600b5b748b3976413d1e307540ccc62605b4d6d")
_GAT: Final = ("Diego999/pyGAT", "3664f2dc90cbf971564c0bf186dc794f12446d0c")


def _job(
    source: tuple[str, str],
    script: str,
    *arguments: str,
    steps: tuple[int, int] = (8, 20),
    folder: str = ".",
    packages: str = ".",
    data: Mapping[str, str] | None = None,
) -> PublicJob:
    repository, commit = source
    return PublicJob(
        repository=repository, commit=commit, script=script, arguments=arguments, folder=folder, packages=packages,
        data=data or {}, warm_steps=steps[0], measured_steps=steps[1],
    )  # fmt: skip


PUBLIC_JOBS: Final = {
    "nanoGPT, characters": _job(
        _NANO_GPT, "train.py", "config/train_shakespeare_char.py", "--compile=False", data={"data/shakespeare_char": "characters"}
    ),
    "nanoGPT, GPT-2": _job(
        _NANO_GPT, "train.py", "config/train_gpt2.py", "--compile=False", "--wandb_log=False",
        steps=(2, 4), data={"data/openwebtext": "tokens"},
    ),
    "nanoRWKV, characters": _job(
        _NANO_RWKV, "train.py", "config/train_shakespeare_char.py", "--compile=False", data={"data/shakespeare_char": "characters"}
    ),
    "lecture's GPT": _job(_LECTURE, "gpt.py"),
    "makemore, transformer": _job(_MAKEMORE, "makemore.py", "-i", "names.txt", "-o", "names", "--device", "cuda"),
    "makemore, GRU": _job(_MAKEMORE, "makemore.py", "-i", "names.txt", "-o", "names", "--device", "cuda", "--type", "gru"),
    "minGPT, adder": _job(_MIN_GPT, "projects/adder/adder.py"),
    "minGPT, characters": _job(_MIN_GPT, "projects/chargpt/chargpt.py", data={"input.txt": "text"}),
    "CIFAR-10, SimpleDLA": _job(_CIFAR10, "main.py", data={"data": "cifar"}),
    "CIFAR-100, VGG-16": _job(_CIFAR100, "train.py", "-net", "vgg16", "-gpu", data={"data": "cifar"}),
    "CIFAR-100, SE-ResNet-50": _job(_CIFAR100, "train.py", "-net", "seresnet50", "-gpu", data={"data": "cifar"}),
    "ImageNet, ResNet-50, amp": _job(
        _VISION, "train.py", "--model", "resnet50", "--data-path", "imagenet", "--amp", folder="references/classification",
        packages="references/classification", data={"imagenet": "pictures"},
    ),
    "ImageNet, MobileNet-V3": _job(
        _VISION, "train.py", "--model", "mobilenet_v3_large", "--opt", "rmsprop", "--batch-size", "128", "--lr", "0.064",
        "--data-path", "imagenet", folder="references/classification", packages="references/classification",
        data={"imagenet": "pictures"},
    ),
    "ImageNet, MobileNet-V2": _job(
        _MOBILENET, "imagenet.py", "-a", "mobilenetv2", "-d", "imagenet", "--epochs", "150", "--lr-decay", "cos", "--lr", "0.05",
        "--wd", "4e-5", "-c", "checkpoints", "--width-mult", "1.0", "--input-size", "224", "-j", "12", data={"imagenet": "pictures"},
    ),
    "Cutout, ResNet-18": _job(
        _CUTOUT, "train.py", "--dataset", "cifar10", "--model", "resnet18", "--data_augmentation", "--cutout", "--length", "16",
        data={"data": "cifar"},
    ),
    "Cutout, wide ResNet": _job(
        _CUTOUT, "train.py", "--dataset", "cifar10", "--model", "wideresnet", "--data_augmentation", "--cutout", "--length", "16",
        data={"data": "cifar"},
    ),
    "supervised contrast": _job(
        _CONTRAST, "main_supcon.py", "--batch_size", "1024", "--learning_rate", "0.5", "--temp", "0.1", "--cosine",
        steps=(4, 8), data={"datasets": "cifar"},
    ),
    "cross entropy beside contrast": _job(
        _CONTRAST, "main_ce.py", "--batch_size", "1024", "--learning_rate", "0.8", "--cosine", data={"datasets": "cifar"}
    ),
    "FixMatch": _job(
        _FIX_MATCH, "train.py", "--dataset", "cifar10", "--num-labeled", "4000", "--arch", "wideresnet", "--batch-size", "64",
        "--lr", "0.03", "--expand-labels", "--seed", "5", "--out", "results/cifar10@4000.5", data={"data": "cifar"},
    ),
    "sharpness-aware, wide ResNet": _job(
        _SAM, "train.py", folder="example", packages="example", data={"data": "cifar", "cifar": "cifar"}
    ),
    "graph convolutions": _job(_GCN, "train.py", folder="pygcn", data={"../data/cora": "cora"}),
    "graph attention": _job(_GAT, "train.py", data={"data/cora": "cora"}),
}  # fmt: skip
