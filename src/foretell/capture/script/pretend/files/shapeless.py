"""What a file has in it of which nobody knows whether it is an array, several, or something else: as it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import _getframe
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files.arrays import Weights, known_array
from foretell.capture.script.pretend.files.callers import names_looked_up, user_frame
from foretell.capture.script.pretend.files.guessed import INSIDE, Name, guessed, names
from foretell.capture.script.pretend.files.taken import unpacked
from foretell.capture.script.pretend.files.unknown import Document
from foretell.capture.script.session import Session

_OPERATORS: Final = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv mod pow matmul lt le gt ge neg len float int bool"
).split()


def way_out(path: Any) -> str:
    return (
        f"Put a small one of its kind there ({path}), of a few samples of the usual shapes, or say with the script's own "
        "arguments where one is."
    )


class Unshaped:
    """Parts by name or by number where it is taken apart so; else one array, or one tensor, whose shape is made up."""

    def __init__(
        self,
        session: Session,
        path: str,
        *,
        tensors: bool = False,
        part: Callable[[str], Any] = lambda key: None,  # of a name that says what it is
    ) -> None:
        self._session, self._path, self._tensors, self._part = session, path, tensors, part
        self._whole: Any = None

    def whole(self) -> Any:
        """All of it, as one array."""
        if self._whole is None:
            known = known_array(self._session, self._path, "", user_frame())
            self._whole = self._as_kind(guessed(self._session, self._path) if known is None else known)
        return self._whole

    def _as_kind(self, array: Any) -> Any:
        return torch.from_numpy(np.array(array)) if self._tensors else array

    def item(self) -> Any:
        """Of an array that has an object in it."""
        self._session.stand_in(f"contents of {self._path}")
        return Document()

    def keys(self) -> list[Name]:
        """Those that its reader asks for by name; else as many as an archive may have."""
        frame = user_frame()
        return [Name(name) for name in names_looked_up(frame)] or names() if frame else names()

    @property
    def files(self) -> list[Name]:
        return self.keys()

    def values(self) -> list[Any]:
        return [self[name] for name in self.keys()]

    def items(self) -> list[tuple[Name, Any]]:
        return [(name, self[name]) for name in self.keys()]

    def close(self) -> None:
        return None

    def __deepcopy__(self, memo: Any) -> Unshaped:
        return self  # nothing of it is changed in place

    def __enter__(self) -> Unshaped:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole(), name)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.item() if isinstance(key, tuple) and not key else self.whole()[key]
        if (named := self._part(key)) is not None:
            return named
        known = known_array(self._session, self._path, key, user_frame())
        return self._as_kind(guessed(self._session, f"{self._path}{INSIDE}{key}") if known is None else known)

    def __contains__(self, key: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        if count := unpacked(_getframe(1)):
            return iter([self[f"{at}"] for at in range(count)])
        return iter(self.whole())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.whole(), dtype)

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_tensor, args), **{name: _tensor(value) for name, value in (kwargs or {}).items()})


def _tensor(value: Any) -> Any:
    return torch.as_tensor(np.asarray(value.whole())) if isinstance(value, Unshaped) else value


def _of_whole(name: str) -> Any:
    return lambda self, *args: getattr(self.whole(), name)(*args)


for _operator in _OPERATORS:
    setattr(Unshaped, f"__{_operator}__", _of_whole(f"__{_operator}__"))


def _plain(data: Any) -> Any:
    """Arrays in a list as numpy has them: torch asks them for one number at a time."""
    if isinstance(data, list) and any(type(row) is not np.ndarray and isinstance(row, np.ndarray) for row in data):
        return [np.asarray(row).view(np.ndarray) if isinstance(row, np.ndarray) else row for row in data]
    return data.view(np.ndarray) if isinstance(data, np.ndarray) and type(data) is not np.ndarray else data


def let_stand_ins_be_tensors() -> None:
    """Functions that make a tensor of an array leave weights as they are."""
    for name in ("from_numpy", "as_tensor", "tensor"):
        make: Any = getattr(torch, name)

        def either(data: Any, *args: Any, make: Any = make, name: str = name, **kwargs: Any) -> Any:
            if isinstance(data, Unshaped):
                data = np.asarray(data.whole())
            if name == "from_numpy" and isinstance(
                data, torch.Tensor
            ):  # as a file of tensors has them that was of arrays
                return data
            return data if isinstance(data, Weights) else make(_plain(data), *args, **kwargs)

        replace(torch, name, either)
