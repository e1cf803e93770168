"""Stand-ins for data sets and checkpoints that are not on this machine (`--fake-data`).

What is there is read. What is not has the shapes that the script's own classes, transforms, tokenizer or configuration
give it: a picture goes through the script's transforms, a model is built from its configuration.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import sound_sets
from foretell.capture.script.pretend.hub import diffusion, models
from foretell.capture.script.pretend.missing_files import PICTURE, Note
from foretell.capture.script.pretend.sets import hub
from foretell.capture.script.session import Session

_SAMPLES: Final = 2**16
_FEW_WORDS: Final = 64  # special ones alone
# Size and classes of sets that torchvision downloads: (height, width, channels or 0, classes).
_SMALL_PICTURES: Final = {
    "CIFAR10": (32, 32, 3, 10), "CIFAR100": (32, 32, 3, 100), "MNIST": (28, 28, 0, 10), "FashionMNIST": (28, 28, 0, 10),
    "KMNIST": (28, 28, 0, 10), "QMNIST": (28, 28, 0, 10), "EMNIST": (28, 28, 0, 47),
}  # fmt: skip


def install(session: Session) -> None:
    """Stand in for what is missing, where the user wants that."""
    sound_sets.make_importable()
    if not session.script.fake_data:
        return

    note = session.stand_in
    hub.install(session)
    models.install(session)
    diffusion.install(session)
    sound_sets.install(session)
    once_imported("torchvision.datasets", lambda module: _pictures(module, note))


def _pictures(datasets: Any, note: Note) -> None:
    """A folder of pictures, and sets that would be downloaded."""
    from PIL import Image

    folder = datasets.DatasetFolder.__init__
    signature = inspect.signature(folder)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            folder(self, *args, **kwargs)
        except FileNotFoundError:
            given = signature.bind(self, *args, **kwargs).arguments
            self.root, self.transforms = given["root"], None
            self.transform, self.target_transform = given.get("transform"), given.get("target_transform")
            note(f"pictures of {self.root}")
            self.classes = [f"n{i:08}" for i in range(1000)]
            self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
            self.loader = lambda path: Image.new("RGB", PICTURE)
            self.extensions = (".jpg",)
            self.samples = self.imgs = [(f"{i}.jpg", i % 1000) for i in range(_SAMPLES)]
            self.targets = [i % 1000 for i in range(_SAMPLES)]

    datasets.DatasetFolder.__init__ = init
    for name, (height, width, channels, classes) in _SMALL_PICTURES.items():
        _small_pictures(getattr(datasets, name), (height, width) + ((channels,) if channels else ()), classes, note)


def _small_pictures(kind: Any, shape: tuple[int, ...], classes: int, note: Note) -> None:
    make = kind.__init__
    signature = inspect.signature(make)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs).arguments
        given = bound.pop("kwargs", {}) | bound | {"download": False}  # some hand keywords on to their parent
        try:
            make(**given)
        except (RuntimeError, FileNotFoundError):
            note(f"pictures of {kind.__name__}")
            self.root, self.train, self.transforms = given["root"], given.get("train", True), None
            self.transform, self.target_transform = given.get("transform"), given.get("target_transform")
            self.classes = [str(i) for i in range(classes)]
            if not isinstance(getattr(type(self), "class_to_idx", None), property):
                self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
            count = 50_000 if self.train else 10_000
            targets = [i % classes for i in range(count)]
            if len(shape) == 2:
                self.data, self.targets = torch.zeros(count, *shape, dtype=torch.uint8), torch.tensor(targets)
            else:
                self.data, self.targets = np.zeros((count, *shape), np.uint8), targets

    if "__init__" in vars(kind) or kind.__mro__[1].__name__ not in _SMALL_PICTURES:
        kind.__init__ = init
