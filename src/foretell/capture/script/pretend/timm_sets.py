"""timm's readers of pictures, where the folder or archive is not on this machine."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.picture_sets import folder_classes, folder_rows
from foretell.capture.script.pretend.sets.columns import png
from foretell.capture.script.session import Session
from foretell.capture.script.shapes import PICTURE


class Reader:
    """Blank pictures, in turn of each class."""

    def __init__(self, root: str, split: str) -> None:
        self.root, self.count, self.classes = root, folder_rows(f"{root}/{split}"), folder_classes(root)
        self.class_to_idx = {f"n{i:08}": i for i in range(self.classes)}
        self.samples = range(self.count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[io.BytesIO, int]:
        width, height = PICTURE
        return io.BytesIO(png(f"{width}x{height}", "RGB")), i % self.classes

    def filename(self, i: int, basename: bool = False, absolute: bool = False) -> str:
        return f"{i}.jpg" if basename else f"{self.root}/{i}.jpg"

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        return [self.filename(i, basename, absolute) for i in range(self.count)]


def install(session: Session) -> None:
    once_imported("timm.data.readers.reader_factory", lambda module: _readers(module, session))


def _readers(module: Any, session: Session) -> None:
    make: Callable[..., Any] = module.create_reader

    def create_reader(name: Any, root: Any = None, split: str = "train", **kwargs: Any) -> Any:
        try:
            if "/" not in str(name or "") and root is not None and not overlay.is_there(root):
                raise FileNotFoundError(root)  # though what stands in for files would list it
            return make(name, root, split, **kwargs)
        except (AssertionError, OSError, RuntimeError):
            reader = Reader(str(root), split)
            certain = reader.classes != folder_classes("")
            session.stand_in(f"pictures of {root}", f"{reader.classes:,} classes", decides_size=not certain)
            return reader

    for name in ("readers.reader_factory", "readers", "dataset", "dataset_factory"):  # who has it by name already
        there = sys.modules.get(f"timm.data.{name}")
        if there is not None and vars(there).get("create_reader") is make:
            replace(there, "create_reader", create_reader)
