"""Rows of a database that a second reader unpacks: pickled, or as MessagePack, Arrow or JSON has them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.files.contents import picture
from foretell.capture.script.pretend.files.unknown import Record

_READERS: Final = {
    "msgpack": ("loads", "unpackb"),
    "pickle": ("loads",),
    "pyarrow": ("deserialize",),
    "json": ("loads",),
}
_PICTURES: Final = re.compile(r"^(im(a)?ge?|pic|photo|jpe?g|png)_?(buf|bytes|data)?s?$|^(buf|byteflow)$", re.IGNORECASE)


class Packed(bytes):
    """The bytes of a row, and what whoever unpacks them finds."""

    value: Any

    @classmethod
    def of(cls, contents: bytes, value: Any) -> Packed:
        made = cls(contents)
        made.value = value
        return made


class Row(Record):
    """A sample: a picture comes first, whatever else there is, or by its name."""

    def __missing__(self, key: Any) -> Any:
        if key == 0 or (isinstance(key, str) and _PICTURES.search(key)):
            return picture(".png")
        return super().__missing__(key)

    def _part(self, name: str, at: int) -> Any:
        return self[0] if at == 0 or _PICTURES.search(name) else super()._part(name, at)


def install() -> None:
    for library, names in _READERS.items():
        once_imported(library, lambda module, names=names: _read(module, names))  # type: ignore[misc]


def _read(module: Any, names: tuple[str, ...]) -> None:
    for name in names:
        read: Callable[..., Any] | None = getattr(module, name, None)

        def either(
            packed: Any, *args: Any, read: Callable[..., Any] | None = read, name: str = name, **kwargs: Any
        ) -> Any:
            if isinstance(packed, Packed):
                return packed.value
            if read is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)
            return read(packed, *args, **kwargs)

        setattr(module, name, either)
