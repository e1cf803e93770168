"""Files of many samples that are not on this machine: databases, annotations of pictures, files of MATLAB and HDF5."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import packed_rows
from foretell.capture.script.pretend.files.arrays import known_array
from foretell.capture.script.pretend.files.callers import user_frame
from foretell.capture.script.pretend.files.contents import picture
from foretell.capture.script.pretend.files.guessed import INSIDE, guessed
from foretell.capture.script.pretend.files.packed_rows import Packed, Row
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import PICTURE, ROWS

_SAMPLES: Final = 2048
_CLASSES: Final = 80  # of COCO, whose numbers go to 90
_NOT_COCO: Final = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
_COUNTS: Final = re.compile(r"num|len|size|count|total|keys", re.IGNORECASE)
_SIDE: Final = re.compile(r"(?:^|[-_])(8|16|32|64|128|256|512|1024)[-_]\d+$")
_NAMES: Final = re.compile(r"(^|_)(file)?(names?|paths?)$", re.IGNORECASE)
_LABELS: Final = re.compile(r"label|text|word|gt|caption|name", re.IGNORECASE)


def install(session: Session) -> None:
    once_imported("lmdb", lambda module: _databases(session, module))
    packed_rows.install()
    once_imported("pycocotools.coco", lambda module: _annotations(session, module))
    once_imported("h5py", lambda module: _arrays(session, module))
    once_imported("scipy.io", lambda module: _matlab(session, module))


class _Cursor:
    """Goes over the rows of a database."""

    def __init__(self) -> None:
        self._at = 0

    def key(self) -> bytes:
        return f"{self._at:08}".encode()

    def value(self) -> bytes:
        return picture(".png")

    def item(self) -> tuple[bytes, bytes]:
        return self.key(), self.value()

    def first(self, *key: Any) -> bool:
        self._at = 0
        return True

    set_key = set_range = first

    def next(self) -> bool:
        self._at += 1
        return self._at < _SAMPLES

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        shown = picture(".png")
        for i in range(_SAMPLES):
            key = f"{i:08}".encode()
            yield (key, shown) if keys and values else key if keys else shown

    def __iter__(self) -> Iterator[Any]:
        return self.iternext()

    def __enter__(self) -> _Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        return None


class _Database:
    """As lmdb's: a count where one is read, else a picture or a label by the name of the key."""

    def __init__(self, path: str) -> None:
        self._path = path

    def begin(self, *args: Any, **kwargs: Any) -> _Database:
        return self

    def __enter__(self) -> _Database:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def get(self, key: Any, default: Any = None) -> bytes:
        name = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        if _COUNTS.search(name):
            keys = [f"{i:08}".encode() for i in range(_SAMPLES)]
            return Packed.of(str(_SAMPLES).encode(), keys if "keys" in name else _SAMPLES)
        if _LABELS.search(name):
            return Packed.of(b"word", "word")
        side = _SIDE.search(name)  # keys may say how large the pictures are: 256-00001, hr_128_00001
        return Packed.of(picture(".png", (int(side[1]), int(side[1]))) if side else picture(".png"), Row())

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return _Cursor()

    def stat(self, *args: Any) -> dict[str, int]:
        return {"entries": _SAMPLES, "psize": 4096, "depth": 1}

    def close(self) -> None:
        return None


def _databases(session: Session, lmdb: Any) -> None:
    for name in ("open", "Environment"):
        opened: Callable[..., Any] = getattr(lmdb, name)

        def either(path: Any, *args: Any, opened: Callable[..., Any] = opened, **kwargs: Any) -> Any:
            writes = not kwargs.get("readonly") and kwargs.get("create", True)
            if (overlay.is_there(path) and not _is_empty(path)) or writes:
                return opened(path, *args, **kwargs)
            session.stand_in(f"database {path}", f"{_SAMPLES:,} pictures {PICTURE[0]} × {PICTURE[1]} with labels")
            return _Database(os.fspath(path))

        setattr(lmdb, name, either)


def _is_empty(path: Any) -> bool:
    """Whether a folder is there, as a repository keeps a place for it, that has no database in it."""
    return os.path.isdir(path) and not os.path.isfile(os.path.join(path, "data.mdb"))


def _annotations(session: Session, module: Any) -> None:
    """As COCO's, of as many classes, with two boxes in a picture."""
    make = module.COCO.__init__

    def init(self: Any, annotation_file: Any = None) -> None:
        if annotation_file is None or overlay.is_there(annotation_file):
            make(self, annotation_file)
            return
        session.stand_in(
            f"annotations of {annotation_file}", f"{_CLASSES} classes, {_SAMPLES:,} pictures", decides_size=True
        )
        make(self)
        self.dataset = _coco("captions" in str(annotation_file), "keypoints" in str(annotation_file))
        self.createIndex()

    module.COCO.__init__ = init


def _coco(captions: bool, keypoints: bool) -> dict[str, Any]:
    width, height = PICTURE
    numbers = [i for i in range(1, 91) if i not in _NOT_COCO] if not keypoints else [1]
    images = [
        {
            "id": i,
            "file_name": f"{i:012}.jpg",
            "width": width,
            "height": height,
            "coco_url": f"http://x/train2017/{i:012}.jpg",
        }
        for i in range(1, _SAMPLES + 1)
    ]
    corners = [32.0, 32.0, 160.0, 32.0, 160.0, 160.0, 32.0, 160.0]
    found: list[dict[str, Any]] = []
    for image in images:
        for k in range(2):
            one: dict[str, Any] = {"id": len(found) + 1, "image_id": image["id"]}
            if captions:
                one["caption"] = "a quick brown fox jumps over the lazy dog"
            else:
                kind = numbers[len(found) % len(numbers)]
                one |= {
                    "category_id": kind,
                    "bbox": [32.0, 32.0, 128.0, 128.0],
                    "area": 128.0**2,
                    "iscrowd": 0,
                    "segmentation": [corners],
                }
            if keypoints:
                one |= {"keypoints": [40 + k, 40, 2] * 17, "num_keypoints": 17}
            found.append(one)
    categories = [
        {"id": i, "name": f"class {i}", "supercategory": "thing", "keypoints": ["p"] * 17, "skeleton": []}
        for i in numbers
    ]
    return {"info": {}, "licenses": [], "images": images, "annotations": found, "categories": categories}


class _Unshaped:
    """A file of arrays, of which nobody knows the shapes but those that are known by name."""

    def __init__(self, session: Session, path: str, encoding: str = "") -> None:
        self._session, self._path, self._encoding = session, path, encoding

    def __getitem__(self, key: Any) -> Any:
        if self._encoding and _NAMES.search(str(key)):  # texts are bytes in it
            self._session.stand_in(f"names in {self._path}", f"{ROWS:,} of them")
            return np.array([f"{row:05}".encode(self._encoding) for row in range(ROWS)])
        if key in ("GTcls", "GTinst"):  # of the borders data set of Berkeley
            self._session.stand_in(f"masks in {os.path.dirname(self._path)}", f"{PICTURE[0]} × {PICTURE[1]}")
            made = np.empty((1, 1), [("Segmentation", "O"), ("Boundaries", "O"), ("Categories", "O")])
            made["Segmentation"][0, 0] = np.zeros(PICTURE[::-1], np.uint8)
            return made
        if isinstance(key, str) and (known := known_array(self._session, self._path, key, user_frame())) is not None:
            return known
        return guessed(self._session, f"{self._path}{INSIDE}{key}")

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def __contains__(self, key: object) -> bool:
        return True

    def keys(self) -> Any:
        return [f"{i:05}" for i in range(_SAMPLES)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return _SAMPLES

    def __enter__(self) -> _Unshaped:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        return None


def _arrays(session: Session, h5py: Any) -> None:
    make = h5py.File.__new__

    def new(cls: Any, name: Any = None, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode in ("r", "r+") and isinstance(name, str | os.PathLike) and not overlay.is_there(name):
            return _Unshaped(session, os.fspath(name), "utf-8")
        return make(cls)

    h5py.File.__new__ = new


def _matlab(session: Session, module: Any) -> None:
    read: Callable[..., Any] = module.loadmat

    def either(file_name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return read(file_name, *args, **kwargs)
        except FileNotFoundError:
            return _Unshaped(session, os.fspath(file_name))

    module.loadmat = either
