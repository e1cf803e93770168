"""Arrays of well-known files, by a word in their path and their key: `.npz`, HDF5 and MATLAB."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from foretell.capture.script.pretend.files.known_poses import ASSUMED, poses
from foretell.capture.script.session import Session

_LIMIT: Final = 2**26  # numbers: a larger array has fewer rows
_Shape = tuple[tuple[int, ...], str, int]  # with its type, and with how many classes: 0 where it has no labels
_KNOWN: Final[tuple[tuple[str, dict[str, _Shape]], ...]] = (
    (r"dsprites", {"imgs": ((737280, 64, 64), "u1", 0), "latents_values": ((737280, 6), "f8", 0),
                   "latents_classes": ((737280, 6), "i8", 0)}),
    (r"3d_?shapes", {"images": ((480000, 64, 64, 3), "u1", 0), "labels": ((480000, 6), "f8", 0)}),
    (r"(^|/)mnist\.npz", {"x_train": ((60000, 28, 28), "u1", 0), "y_train": ((60000,), "u1", 10),
                          "x_test": ((10000, 28, 28), "u1", 0), "y_test": ((10000,), "u1", 10)}),
    (r"_32x32\.mat", {"X": ((32, 32, 3, 16384), "u1", 0), "y": ((16384, 1), "u1", 10)}),
    (r"modelnet40_cloud", {"tr_cloud": ((9840, 10000, 3), "f4", 0), "tr_labels": ((9840,), "i4", 40),
                           "test_cloud": ((2468, 10000, 3), "f4", 0), "test_labels": ((2468,), "i4", 40)}),
    (r"modelnet40|ply_data|shapenet.*hdf5", {"data": ((2048, 2048, 3), "f4", 0), "label": ((2048, 1), "u1", 40),
                                             "normal": ((2048, 2048, 3), "f4", 0), "pid": ((2048, 2048), "u1", 0)}),
    (r"indoor3d_sem_seg", {"data": ((1000, 4096, 9), "f4", 0), "label": ((1000, 4096), "u1", 13)}),
    (r"pems0?3", {"data": ((26208, 358, 1), "f4", 0)}), (r"pems0?4", {"data": ((16992, 307, 3), "f4", 0)}),
    (r"pems0?7", {"data": ((28224, 883, 1), "f4", 0)}), (r"pems0?8", {"data": ((17856, 170, 3), "f4", 0)}),
    (r"metr-?la", {"x": ((23974, 12, 207, 2), "f4", 0), "y": ((23974, 12, 207, 2), "f4", 0)}),
    (r"pems-?bay", {"x": ((36465, 12, 325, 2), "f4", 0), "y": ((36465, 12, 325, 2), "f4", 0)}),
)  # fmt: skip
_FIRST: dict[str, str] = {}  # of files that differ by a number


def array_of_a_known_set(session: Session, path: str, key: str) -> Any:
    """An array of the shape that the file is published with, of fewer rows where it is large; None where it is not known."""
    if (known := poses(path, key)) is not None:
        session.stand_in(f"poses in {path}", ASSUMED)
        return known
    for words, arrays in _KNOWN:
        if key not in arrays or not re.search(words, path, re.IGNORECASE):
            continue
        shape, kind, classes = arrays[key]
        same = [inner for inner, *_ in arrays.values() if inner[0] == shape[0]]  # which have a row for each of its rows
        shape = (min(shape[0], *(_LIMIT // int(np.prod(inner[1:])) for inner in same)), *shape[1:])
        first = _FIRST.setdefault(re.sub(r"[0-9]+", "", path), path)
        shape = shape if path == first else (1, *shape[1:])  # one of many files, all of which are read
        assumed = " × ".join(map(str, shape)) + (f", {classes} classes" if classes else "")
        session.stand_in(f"array {key!r} of {path}", assumed)
        made = np.zeros(shape, kind)
        if classes:
            made += (np.arange(shape[0]) % classes).reshape(-1, *[1] * (len(shape) - 1)).astype(kind)
        return made
    return None
