"""Small data of the kinds that public scripts read, made of random numbers: shapes, files and counts as the real ones have."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


def make(folder: Path, kinds: set[str]) -> None:
    """Make these kinds of data, each in a place of its own name."""
    for kind in sorted(kinds):
        _MAKERS[kind](folder / kind)


def accept_made_files() -> None:
    """torchvision checks the sums of files that it would download."""
    try:
        from torchvision.datasets import cifar
    except (ImportError, RuntimeError):  # it is not here, or was built for another torch
        return
    vars(cifar)["check_integrity"] = lambda *args, **kwargs: True


def _tokens(folder: Path, words: int = 50000) -> None:
    import numpy as np

    folder.mkdir(parents=True)
    for split in ("train", "val"):
        np.random.default_rng(0).integers(0, words, 500_000).astype(np.uint16).tofile(folder / f"{split}.bin")


def _characters(folder: Path) -> None:
    _tokens(folder, words=65)
    letters = [chr(i) for i in range(33, 98)]
    about: dict[str, Any] = {
        "vocab_size": 65,
        "itos": dict(enumerate(letters)),
        "stoi": {c: i for i, c in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(about))


def _text(file: Path) -> None:
    letters = "".join(chr(i) for i in range(33, 97)) + "\n"
    file.write_text(letters * 16_000, encoding="utf-8")


def _pictures(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True)
    picture = folder / "picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(picture)
    for split, count in (("train", 12), ("val", 1)):
        for label in range(1000):
            pictures = folder / split / f"n{label:08}"
            pictures.mkdir(parents=True)
            for i in range(count):  # the same picture again and again, as links
                os.link(picture, pictures / f"{i}.jpg")


def _cifar(folder: Path) -> None:
    ten, hundred = folder / "cifar-10-batches-py", folder / "cifar-100-python"
    names = {f"data_batch_{i}": 10_000 for i in range(1, 6)} | {"test_batch": 10_000}
    _cifar_part(ten, names, "labels", 10)
    _cifar_part(hundred, {"train": 50_000, "test": 10_000}, "fine_labels", 100)
    (ten / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    (hundred / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(i) for i in range(100)]}))


def _cifar_part(folder: Path, files: dict[str, int], labels: str, classes: int) -> None:
    import numpy as np

    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in files.items():
        data = random.integers(0, 255, (count, 3072), np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": data, labels: [i % classes for i in range(count)]}))


def _cora(folder: Path) -> None:
    import numpy as np

    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    papers, words = 2708, 1433
    rows = (f"{i}\t" + "\t".join(map(str, random.integers(0, 2, words))) + f"\tclass{i % 7}\n" for i in range(papers))
    (folder / "cora.content").write_text("".join(rows), encoding="utf-8")
    (folder / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in random.integers(0, papers, (5429, 2))))


_MAKERS: Final[dict[str, Callable[[Path], None]]] = {
    "tokens": _tokens,
    "characters": _characters,
    "text": _text,
    "pictures": _pictures,
    "cifar": _cifar,
    "cora": _cora,
}
