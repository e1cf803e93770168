"""torchvision's data sets that are not on this machine: as many samples, classes and targets as the published ones have."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.meant import classes_meant
from foretell.capture.script.pretend import overlay
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import PICTURE

_FOLDER_ROWS: Final = 2**16  # of a folder of pictures that nobody knows
_FOLDER_CLASSES: Final = 1000
_FORMER: Final = {"db_path": "root"}  # names of arguments
_ATTRIBUTES: Final = 40  # of CelebA
_ORDER: Final = ("split", "image_set", "train", "subset", "mode", "what")  # what a set calls its parts


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSet:
    """A set of torchvision: the size of a picture, how many classes there are, and samples of each part."""

    size: tuple[int, int]  # width and height
    classes: int = 0
    parts: Mapping[str, int]  # the first is the one that is meant when none is named
    mode: Literal["RGB", "L"] = "RGB"
    kept: Literal["", "last", "first", "grey"] = ""  # arrays that the set keeps: channels last, first, or none
    target: Literal["class", "mask", "boxes", "attributes", "captions"] = "class"


def _set(size: tuple[int, int], classes: int = 0, train: int = 0, test: int = 0, **how: Any) -> PictureSet:
    parts = how.pop("parts", None) or {"train": train, "test": test or train}
    return PictureSet(size=size, classes=classes, parts=parts, **how)


_VOC: Final = {"train": 1464, "trainval": 2913, "val": 1449, "test": 1449}
SETS: Final[Mapping[str, PictureSet]] = {
    "CIFAR10": _set((32, 32), 10, 50_000, 10_000, kept="last"),
    "CIFAR100": _set((32, 32), 100, 50_000, 10_000, kept="last"),
    "MNIST": _set((28, 28), 10, 60_000, 10_000, mode="L", kept="grey"),
    "FashionMNIST": _set((28, 28), 10, 60_000, 10_000, mode="L", kept="grey"),
    "KMNIST": _set((28, 28), 10, 60_000, 10_000, mode="L", kept="grey"),
    "QMNIST": _set((28, 28), 10, 60_000, 60_000, mode="L", kept="grey"),
    "EMNIST": _set((28, 28), 47, 112_800, 18_800, mode="L", kept="grey"),
    "USPS": _set((16, 16), 10, 7_291, 2_007, mode="L", kept="grey"),
    "SVHN": _set((32, 32), 10, parts={"train": 73_257, "test": 26_032, "extra": 531_131}, kept="first"),
    "STL10": _set((96, 96), 10, parts={"train": 5_000, "test": 8_000, "unlabeled": 100_000, "train+unlabeled": 105_000},
                  kept="first"),
    "ImageNet": _set(PICTURE, 1000, parts={"train": 1_281_167, "val": 50_000}),
    "Imagenette": _set(PICTURE, 10, parts={"train": 9_469, "val": 3_925}),
    "Places365": _set((256, 256), 365, parts={"train-standard": 1_803_460, "train-challenge": 8_026_628, "val": 36_500}),
    "Flowers102": _set((625, 500), 102, parts={"train": 1_020, "val": 1_020, "test": 6_149}),
    "Food101": _set((512, 384), 101, 75_750, 25_250),
    "OxfordIIITPet": _set((500, 375), 37, parts={"trainval": 3_680, "test": 3_669}),
    "StanfordCars": _set((700, 480), 196, 8_144, 8_041),
    "FGVCAircraft": _set((1024, 700), 100, parts={"trainval": 6_667, "train": 3_334, "val": 3_333, "test": 3_333}),
    "DTD": _set((500, 450), 47, parts={"train": 1_880, "val": 1_880, "test": 1_880}),
    "GTSRB": _set((50, 50), 43, 26_640, 12_630),
    "EuroSAT": _set((64, 64), 10, 27_000),
    "SUN397": _set((1000, 750), 397, 108_754),
    "Caltech101": _set((300, 200), 101, 8_677),
    "Caltech256": _set((370, 320), 257, 30_607),
    "Country211": _set((500, 375), 211, parts={"train": 31_650, "valid": 10_550, "test": 21_100}),
    "PCAM": _set((96, 96), 2, parts={"train": 262_144, "val": 32_768, "test": 32_768}),
    "FER2013": _set((48, 48), 7, 28_709, 7_178, mode="L"),
    "RenderedSST2": _set((448, 448), 2, parts={"train": 6_920, "val": 872, "test": 1_821}),
    "CLEVRClassification": _set((480, 320), 8, parts={"train": 70_000, "val": 15_000, "test": 15_000}),
    "INaturalist": _set((800, 600), 10_000, 2_686_843),
    "Omniglot": _set((105, 105), 964, 19_280, mode="L"),
    "SEMEION": _set((16, 16), 10, 1_593, mode="L"),
    "LFWPeople": _set((250, 250), 5_749, parts={"10fold": 13_233, "train": 9_525, "test": 3_708}),
    "LSUN": _set((341, 256), 10, parts={"train": 3_033_042, "val": 3_000}),
    "CelebA": _set((178, 218), parts={"train": 162_770, "valid": 19_867, "test": 19_962, "all": 202_599}, target="attributes"),
    "VOCSegmentation": _set((500, 375), 21, parts=_VOC, target="mask"),
    "SBDataset": _set((500, 375), 21, parts={"train": 8_498, "val": 2_857, "train_noval": 5_623}, target="mask"),
    "Cityscapes": _set((2048, 1024), 34, parts={"train": 2_975, "val": 500, "test": 1_525, "train_extra": 19_998}, target="mask"),
    "VOCDetection": _set((500, 375), 20, parts={"train": 5_717, "trainval": 11_540, "val": 5_823}, target="boxes"),
    "Flickr8k": _set((500, 375), parts={"train": 8_091}, target="captions"),
    "Flickr30k": _set((500, 375), parts={"train": 31_783}, target="captions"),
}  # fmt: skip
_EMNIST: Final = {"byclass": (697_932, 116_323, 62), "bymerge": (697_932, 116_323, 47), "balanced": (112_800, 18_800, 47),
                  "letters": (124_800, 20_800, 26), "digits": (240_000, 40_000, 10), "mnist": (60_000, 10_000, 10)}  # fmt: skip


def install(session: Session) -> None:
    once_imported("torchvision.datasets", lambda module: _adapt(module, session))


def _adapt(datasets: Any, session: Session) -> None:
    _folders(datasets.DatasetFolder, session)
    for name, known in SETS.items():
        kind = getattr(datasets, name, None)
        if kind is not None:
            _wrap(datasets, kind, known, session)
            if known.kept == "last":
                _name_parts(kind)


class _Former:
    """An array of a set by the name that it had for each part; a script may have its own of that name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else getattr(owner, self._name)


def _name_parts(kind: Any) -> None:
    for part in ("train", "test"):
        for former, name in (("data", "data"), ("labels", "targets")):
            if not hasattr(kind, f"{part}_{former}"):
                setattr(kind, f"{part}_{former}", _Former(name))


def _wrap(datasets: Any, kind: Any, known: PictureSet, session: Session) -> None:
    make, length, item = kind.__init__, kind.__len__, kind.__getitem__
    signature = inspect.signature(make)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = {_FORMER.get(name, name): value for name, value in kwargs.items()}
        bound = signature.bind(self, *args, **kwargs).arguments
        given = bound.pop("kwargs", {}) | bound
        if "download" in signature.parameters or "download" in given:
            given["download"] = False
        try:
            make(**given)
        except (RuntimeError, OSError, ValueError, ModuleNotFoundError) as error:
            if next(c for c in type(self).__mro__ if c.__name__ in SETS and "__init__" in vars(c)) is not kind:
                raise  # to one that is made of this, which is stood in for as itself
            if isinstance(error, ValueError) and "nknown value" in str(error):
                raise  # of an argument
            _fill(datasets, self, kind, known, given)
            session.stand_in(f"pictures of {kind.__name__}")

    def ours(self: Any) -> bool:
        return vars(self).get("foretell_set") is not None

    own = "__init__" in vars(kind) or kind.__mro__[1].__name__ not in SETS
    if own:
        vars(init)["__signature__"] = signature  # libraries look for its arguments
        replace(kind, "__init__", init)
    if not known.kept or "__getitem__" in vars(kind):
        replace(
            kind,
            "__getitem__",
            lambda self, i: _sample(self, int(i)) if ours(self) and not known.kept else item(self, i),
        )
        replace(kind, "__len__", lambda self: self.foretell_count if ours(self) and not known.kept else length(self))


def _fill(datasets: Any, self: Any, kind: Any, known: PictureSet, given: Mapping[str, Any]) -> None:
    known = _of_class(self, known)
    transforms = {name: given.get(name) for name in ("transforms", "transform", "target_transform")}
    datasets.VisionDataset.__init__(self, given.get("root"), **transforms)
    part = next((given[name] for name in _ORDER if name in given), None)
    part = {True: "train", False: "test"}.get(part, part) if isinstance(part, bool) else part
    count = known.parts.get(str(part), next(iter(known.parts.values())))
    classes = known.classes
    if kind.__name__ == "EMNIST" and given.get("split") in _EMNIST:
        train, test, classes = _EMNIST[given["split"]]
        count = train if given.get("train", True) else test
    self.foretell_set, self.foretell_count, self.foretell_classes = known, count, classes
    self.train, self.split = given.get("train", part != "test"), part
    self.target_type = given.get("target_type") or given.get("target_types") or "attr"
    _classes(self, classes)
    if known.kept:
        _arrays(self, known, count, classes)
    else:
        labels, root = _Labels(count, max(classes, 1)), str(given.get("root"))
        pictures, others = _Names(count, root, "jpg"), _Names(count, root, "png")
        named: dict[str, Any] = dict.fromkeys(("images", "imgs", "filename", "_image_files"), pictures)
        named |= dict.fromkeys(("masks", "annotations"), others)
        wanted = "targets" if known.target == "class" else "labels"
        named |= {"targets": others, "_labels": labels, wanted: labels, "samples": _Pairs(pictures, labels)}
        for name, value in named.items():
            if not isinstance(getattr(type(self), name, None), property):
                setattr(self, name, value)
        if known.target == "attributes":
            self.attr = torch.zeros(count, _ATTRIBUTES, dtype=torch.int64)
            self.attr_names = [f"attribute {i}" for i in range(_ATTRIBUTES)]


def _of_class(self: Any, known: PictureSet) -> PictureSet:
    """A set that is derived from another of torchvision's has its own facts."""
    return next((SETS[c.__name__] for c in type(self).__mro__ if c.__name__ in SETS), known)


def _classes(self: Any, count: int) -> None:
    for name, value in {
        "classes": [str(i) for i in range(count)],
        "class_to_idx": {str(i): i for i in range(count)},
        "wnid_to_idx": {f"n{i:08}": i for i in range(count)},
    }.items():
        if not isinstance(getattr(type(self), name, None), property) and not (
            name == "classes" and hasattr(self, name)
        ):
            setattr(self, name, value)


def _arrays(self: Any, known: PictureSet, count: int, classes: int) -> None:
    width, height = known.size
    targets = np.arange(count) % classes
    if known.kept == "grey":
        self.data, self.targets = torch.zeros(count, height, width, dtype=torch.uint8), torch.from_numpy(targets)
        if type(self).__name__ == "USPS":
            self.data, self.targets = self.data.numpy(), targets.tolist()
        elif type(self).__name__ == "QMNIST":
            self.targets = torch.zeros(count, 8, dtype=torch.int64)
    elif known.kept == "last":
        self.data, self.targets = np.zeros((count, height, width, 3), np.uint8), targets.tolist()
    else:
        self.data, self.labels = np.zeros((count, 3, height, width), np.uint8), targets


class _Labels(list[int]):
    """Classes in turn."""

    def __init__(self, count: int, classes: int) -> None:
        super().__init__((list(range(classes)) * (count // classes + 1))[:count])


class _Names:
    """Names of files, made as they are read."""

    def __init__(self, count: int, root: str, ending: str) -> None:
        self.count, self.root, self.ending = count, root, ending

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self.count))]
        if not -self.count <= i < self.count:
            raise IndexError(i)
        return f"{self.root}/{i % self.count:08}.{self.ending}"


class _Pairs(_Names):
    """Names of files, each with its class."""

    def __init__(self, names: _Names, labels: list[int]) -> None:
        super().__init__(names.count, names.root, names.ending)
        self.labels = labels

    def __getitem__(self, i: Any) -> Any:
        found = super().__getitem__(i)
        return list(zip(found, self.labels[i], strict=True)) if isinstance(i, slice) else (found, self.labels[i])


def _sample(self: Any, i: int) -> Any:
    """A picture and its target, through the set's own transforms."""
    from PIL import Image

    if i >= self.foretell_count:
        raise IndexError(i)
    known: PictureSet = self.foretell_set
    picture, target = Image.new(known.mode, known.size), _TARGETS[known.target](self, known, i)
    return (picture, target) if self.transforms is None else self.transforms(picture, target)


def _mask(self: Any, known: PictureSet, i: int) -> Any:
    from PIL import Image

    return Image.new("P" if "VOC" in type(self).__name__ else "L", known.size)


def _boxes(self: Any, known: PictureSet, i: int) -> Any:
    box = {"xmin": "48", "ymin": "100", "xmax": "195", "ymax": "271"}
    thing = {"name": "dog", "pose": "Left", "truncated": "0", "difficult": "0", "bndbox": box}
    width, height = known.size
    size = {"width": str(width), "height": str(height), "depth": "3"}
    return {
        "annotation": {
            "folder": "VOC2012",
            "filename": f"{i}.jpg",
            "size": size,
            "segmented": "0",
            "object": [thing] * 2,
        }
    }


def _attributes(self: Any, known: PictureSet, i: int) -> Any:
    kinds = [self.target_type] if isinstance(self.target_type, str) else list(self.target_type)
    sizes = {"attr": (_ATTRIBUTES,), "identity": (), "bbox": (4,), "landmarks": (10,)}
    found = [torch.zeros(sizes[kind], dtype=torch.int64) for kind in kinds]
    return (tuple(found) if len(found) > 1 else found[0]) if found else None


_TARGETS: Final[Mapping[str, Callable[[Any, PictureSet, int], Any]]] = {
    "class": lambda self, known, i: i % self.foretell_classes,
    "mask": _mask,
    "boxes": _boxes,
    "attributes": _attributes,
    "captions": lambda self, known, i: ["a dog runs over the grass towards the river ."] * 5,
}


def _folders(kind: Any, session: Session) -> None:
    """A folder of pictures in folders that are named by their class."""
    make = kind.__init__
    signature = inspect.signature(make)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        if overlay.is_there(given["root"]):  # and not only listed by what stands in for files
            make(self, *args, **kwargs)
        else:
            from PIL import Image

            root, meant = str(given["root"]), classes_meant(sys._getframe(1))
            classes = folder_classes(root, meant or _FOLDER_CLASSES)
            super(kind, self).__init__(
                root, transform=given.get("transform"), target_transform=given.get("target_transform")
            )
            session.stand_in(
                f"pictures of {root}", f"{classes:,} classes", decides_size=classes == _FOLDER_CLASSES and meant is None
            )
            self.classes = [f"n{i:08}" for i in range(classes)]
            self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
            self.loader = lambda path: Image.new("RGB", PICTURE)
            self.extensions = (".jpg",)
            self.targets = _Labels(folder_rows(root), classes)
            self.samples = self.imgs = [(f"{root}/n{k:08}/{i}.jpg", k) for i, k in enumerate(self.targets)]

    replace(kind, "__init__", init)


def folder_classes(root: str, usual: int = _FOLDER_CLASSES) -> int:
    """Of a folder whose name says what it has; else as ImageNet."""
    known = {"cifar100": 100, "cifar10": 10, "tiny-imagenet": 200, "tiny_imagenet": 200, "imagenette": 10, "imagewoof": 10,
             "imagenet100": 100, "imagenet-100": 100, "cub": 200, "hymenoptera": 2, "imagenet": 1000, "ilsvrc": 1000}  # fmt: skip
    plain = root.lower()
    usual = 1 if "celeba" in plain and usual == _FOLDER_CLASSES else usual
    return next((count for name, count in known.items() if name in plain), usual)


def folder_rows(root: str) -> int:
    return 50_000 if root.rstrip("/").lower().endswith(("val", "valid", "validation", "test")) else _FOLDER_ROWS
