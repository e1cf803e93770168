"""Arrays of files that are not on this machine: tokens and tables of numbers; other arrays have no shape to be found out."""

from __future__ import annotations

import functools
import inspect
import io
import os
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import kinds
from foretell.capture.script.pretend.files.arrays import Weights, known_array
from foretell.capture.script.pretend.files.callers import is_ready, reading_frame, user_frame
from foretell.capture.script.pretend.files.guessed import guessed
from foretell.capture.script.pretend.files.known_tables import rows_and_columns
from foretell.capture.script.pretend.files.shapeless import Unshaped, let_stand_ins_be_tensors
from foretell.capture.script.pretend.files.unknown import ROWS
from foretell.capture.script.session import Session

_NUMBERS: Final = 2**24  # of a file of tokens
_TABLE: Final = (4096, 6)
_WEIGHTS: Final = re.compile(r"checkpoint|ckpt|weight|model|pretrain|vit|resnet|bert|vgg|net", re.IGNORECASE)


class _One(np.ndarray[Any, Any]):
    """An array of one number, which was a number for Python too before numpy 2.4."""

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    __index__ = __int__


def install(session: Session) -> None:
    _map_tokens(session)
    if_missing(np, "fromfile", lambda file, dtype=float, *a, **kw: _tokens(session, file, dtype, kw.get("count", -1)))
    read: Callable[..., Any] = np.fromfile

    def from_open_file(file: Any, dtype: Any = float, count: int = -1, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, io.BytesIO):  # which has no number of a file, by which numpy reads
            return read(file, dtype, count, *args, **kwargs)
        made = np.frombuffer(file.read(-1 if count < 0 else count * np.dtype(dtype).itemsize), dtype).copy()
        return made.view(_One) if made.size == 1 else made

    replace(np, "fromfile", from_open_file)
    if_missing(np, "load", lambda file, *args, **kwargs: _loaded(session, os.fspath(file)))
    let_stand_ins_be_tensors()
    for name in ("loadtxt", "genfromtxt"):
        if_missing(np, name, functools.partial(_table, session))


def if_missing(owner: Any, name: str, make: Callable[..., Any]) -> None:
    """Let a function of numpy give something else where the file is missing and the script does not await that."""
    read: Callable[..., Any] = getattr(owner, name)

    def either(*args: Any, **kwargs: Any) -> Any:
        first: Any = args[0] if args else next(iter(kwargs.values()), None)
        if args and hasattr(first, "foretell_path"):  # a text of ours, which is open
            return make(first.foretell_path, *args[1:], **kwargs)
        if isinstance(first, str | os.PathLike) and not overlay.is_there(first):
            frame = reading_frame()
            if frame is not None and not is_ready(frame, os.fspath(first)):
                return make(*args, **kwargs)
        return read(*args, **kwargs)

    replace(owner, name, either)


def _map_tokens(session: Session) -> None:
    real = np.memmap
    signature = inspect.signature(real.__new__)

    class Mapped(np.memmap):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return real.__new__(real, *args, **kwargs)
            except (FileNotFoundError, io.UnsupportedOperation) as error:  # the latter: what stands in is in no file
                given = signature.bind(real, *args, **kwargs).arguments
                if isinstance(error, FileNotFoundError):
                    session.stand_in(f"numbers of {given['filename']}")
                return np.zeros(given.get("shape") or _NUMBERS, given.get("dtype", np.uint8))

    np.memmap = Mapped  # type: ignore[misc]
    Mapped.__name__ = real.__name__


def _tokens(session: Session, file: Any, dtype: Any, count: int) -> Any:
    session.stand_in(f"numbers of {file}")
    return np.zeros(count if count and count > 0 else _NUMBERS, dtype)


def _loaded(session: Session, path: str) -> Any:
    """As numpy would load it: weights, an array that is known, several of them, or one of which nobody knows the shape."""
    if not kinds.is_data(path, kinds.given_in(session.script.arguments), os.getcwd()) and _WEIGHTS.search(path):
        session.stand_in(f"checkpoint {path}")
        return Weights()
    if not path.endswith(".npz") and (known := known_array(session, path, "", user_frame())) is not None:
        return known
    return Unshaped(session, path) if path.endswith(".npz") else guessed(session, path)


def _table(session: Session, file: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> Any:
    """Rows of numbers; of a well-known one as many as it has."""
    if dtype is not None and np.dtype(dtype).kind in "US" and kinds.ending_of(str(file)) in kinds.TEXTS:
        session.stand_in(f"list of files {os.fspath(file)}", f"{ROWS:,} names")
        return np.array([f"{i:05}.jpg" for i in range(ROWS)])
    known = rows_and_columns(os.path.basename(str(file)))
    if kwargs.get("usecols") is not None:
        known = (known or _TABLE)[0], int(np.size(kwargs["usecols"]))
    made = guessed(session, os.fspath(file), known, "float64")
    kind = np.dtype(dtype) if dtype is not None else np.dtype(float)
    return np.floor(made * 7).astype(int).astype(kind) if kind.kind in "USOiu" else made.astype(kind)
