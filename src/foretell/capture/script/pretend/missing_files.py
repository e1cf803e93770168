"""Stand-ins for files that are not on this machine (`--fake-data`): numbers, texts, tables, pictures and checkpoints."""

from __future__ import annotations

import builtins
import csv
import inspect
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.sources.offline import refusal_in

Note = Callable[[str], None]
PICTURE: Final = (500, 375)  # width and height of most of ImageNet
WORDS: Final = (
    "the quick brown fox jumps over the lazy dog and runs away into the deep dark forest near the river bank "
)
_NUMBERS: Final = 2**24  # of a file of tokens
_ROWS: Final = 4096  # of a table, each of as many columns as somebody may ask for
_COLUMNS: Final = 64
_SEPARATORS: Final = {".csv": ",", ".tsv": "\t"}


def install(note: Note) -> None:
    """Give files that are not there contents of their kind; `note` hears of each."""
    _numbers(note)
    _texts(note)
    _checkpoints(note)
    once_imported("PIL.Image", lambda module: _pictures(module, note))
    once_imported("torchvision.io", lambda module: _decoded_pictures(module, note))
    once_imported("torchvision.models._api", _weights)
    once_imported("timm.models._builder", lambda module: _pretrained(module, note))


def or_else(owner: Any, name: str, make: Callable[..., Any], missing: Any = FileNotFoundError) -> None:
    """Let a function, where what it reads is missing, give what `make` gives of the same arguments."""
    read: Callable[..., Any] = getattr(owner, name)

    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return read(*args, **kwargs)
        except missing:
            return make(*args, **kwargs)

    replace(owner, name, either)


def or_else_offline(owner: Any, name: str, make: Callable[..., Any]) -> None:
    """Let a function, where it would ask another machine, give what `make` gives of the same arguments."""
    fetch: Callable[..., Any] = getattr(owner, name)

    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return fetch(*args, **kwargs)
        except Exception as error:
            if not refusal_in(error):
                raise
            return make(*args, **kwargs)

    replace(owner, name, either)


def _numbers(note: Note) -> None:
    real = np.memmap
    signature = inspect.signature(real.__new__)

    class Mapped(np.memmap):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return real.__new__(real, *args, **kwargs)
            except FileNotFoundError:
                given = signature.bind(real, *args, **kwargs).arguments
                note(f"numbers of {given['filename']}")
                return np.zeros(given.get("shape") or _NUMBERS, given.get("dtype", np.uint8))

    def zeros(file: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> Any:
        note(f"numbers of {file}")
        return np.zeros(_NUMBERS, dtype)

    np.memmap = Mapped  # type: ignore[misc]
    Mapped.__name__ = real.__name__
    or_else(np, "fromfile", zeros)


class _Table(io.StringIO):
    """A table that is not here: zeros in columns whose names it does not know."""


class _Row(dict[str, str]):
    """A row of one, which has every column."""

    def __missing__(self, name: str) -> str:
        return "0"


def _texts(note: Note) -> None:
    opened: Callable[..., Any] = builtins.open
    following = csv.DictReader.__next__

    def open_or_text(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            return opened(file, mode, *args, **kwargs)
        except FileNotFoundError:
            ending = os.path.splitext(str(file))[1]
            if mode not in ("r", "rt") or ending not in (".txt", *_SEPARATORS):
                raise
            note(f"text of {file}")
            if ending in _SEPARATORS:
                return _Table((_SEPARATORS[ending].join("0" * _COLUMNS) + "\n") * _ROWS)
            return io.StringIO((WORDS * 20 + "\n") * 500)

    def make(self: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        read(self, file, *args, **kwargs)
        self.__dict__["unknown"] = isinstance(file, _Table)

    def row(self: Any) -> Any:
        values = following(self)
        return _Row() if self.unknown else values

    builtins.open = open_or_text
    read = csv.DictReader.__init__
    replace(csv.DictReader, "__init__", make)
    replace(csv.DictReader, "__next__", row)


def _pictures(image: Any, note: Note) -> None:
    def black(file: Any, *args: Any, **kwargs: Any) -> Any:
        note(f"pictures in {os.path.dirname(str(file)) or '.'}")
        return image.new("RGB", PICTURE)

    or_else(image, "open", black)


def _decoded_pictures(module: Any, note: Note) -> None:
    def decoding(read: Callable[..., Any]) -> Callable[..., Any]:
        def decode(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, torch.Tensor) or os.path.exists(file):
                return read(file, *args, **kwargs)
            note(f"pictures in {os.path.dirname(str(file)) or '.'}")
            return torch.zeros(3, PICTURE[1], PICTURE[0], dtype=torch.uint8)

        return decode

    for name in ("read_image", "decode_image"):
        replace(module, name, decoding(getattr(module, name)))


# Checkpoints


class Checkpoint(dict[Any, Any]):
    """A checkpoint that is not here: it has every part, as a number it is 0, and loading it changes nothing."""

    def __missing__(self, key: Any) -> Checkpoint:
        return Checkpoint()

    def pop(self, key: Any, default: Any = None) -> Any:
        return default

    def __delitem__(self, key: Any) -> None:
        return None

    def __index__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __lt__(self, other: Any) -> bool:
        return bool(other > 0)

    def __gt__(self, other: Any) -> bool:
        return bool(other < 0)

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _checkpoints(note: Note) -> None:
    missing = False

    def nothing_of(file: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal missing
        note(f"checkpoint {file}")
        missing = True
        return Checkpoint()

    def tolerant(read: Callable[..., Any], nothing: Callable[[], Any]) -> Callable[..., Any]:
        def load_state_dict(self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(state, Checkpoint) or (missing and not state):  # or what the script has taken from it
                return nothing()
            return read(self, state, *args, **kwargs)

        return load_state_dict

    keys = torch.nn.modules.module._IncompatibleKeys
    or_else(torch, "load", nothing_of)
    or_else_offline(torch.hub, "load_state_dict_from_url", nothing_of)
    takers: dict[Any, Callable[[], Any]] = {
        torch.nn.Module: lambda: keys([], []),
        torch.optim.Optimizer: lambda: None,
        torch.optim.lr_scheduler.LRScheduler: lambda: None,
        torch.amp.GradScaler: lambda: None,
    }
    for kind, nothing in takers.items():
        replace(kind, "load_state_dict", tolerant(kind.load_state_dict, nothing))


def _weights(api: Any) -> None:
    """torchvision's, which a model is asked to be built with."""
    api.WeightsEnum.get_state_dict = lambda self, *args, **kwargs: torch.hub.load_state_dict_from_url(self.url)


def _pretrained(builder: Any, note: Note) -> None:
    """timm's."""
    or_else_offline(builder, "load_pretrained", lambda model, *a, **kw: note(f"weights of {type(model).__name__}"))
