"""Arrays of which nobody knows the shape: one that takes what is in it is refused, with the line and the way out."""

from __future__ import annotations

from typing import Any

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.pretend.files.arrays import Weights, known_array
from foretell.capture.script.pretend.files.callers import user_frame
from foretell.capture.script.pretend.files.unknown import Document
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.session import Session


def way_out(path: Any) -> str:
    return (
        f"Put a small one of its kind there ({path}), of a few samples of the usual shapes, or say with the script's own "
        "arguments where one is."
    )


class Unshaped:
    """An array, or several, of which nobody knows the shape: one that takes what is in it fails as itself."""

    def __init__(self, session: Session, path: str) -> None:
        self._session, self._path = session, path

    def item(self) -> Any:
        """Of an array that has an object in it."""
        self._session.stand_in(f"contents of {self._path}")
        return Document()

    tolist = item

    def close(self) -> None:
        return None

    def __enter__(self) -> Unshaped:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise StandInError(
            self._path, "shape: it is an array of which the script does not say how large it is", way_out(self._path)
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.refuse()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            known = known_array(self._session, self._path, key, user_frame())
            return Unshaped(self._session, f"{self._path} ({key})") if known is None else known
        return self.item() if key == () else self.refuse()

    __array__ = __len__ = __iter__ = __float__ = __int__ = __contains__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = refuse
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = refuse


def let_stand_ins_be_tensors() -> None:
    """Functions that make a tensor of an array leave weights as they are; of one without a shape there is none."""
    for name in ("from_numpy", "as_tensor", "tensor"):
        make: Any = getattr(torch, name)

        def either(data: Any, *args: Any, make: Any = make, **kwargs: Any) -> Any:
            if isinstance(data, Unshaped):
                return data.refuse()
            return data if isinstance(data, Weights) else make(data, *args, **kwargs)

        replace(torch, name, either)
