"""Something that takes whatever is done to it and does nothing: in place of trackers, plots and the like."""

from __future__ import annotations

import contextlib
import tempfile
import types
from collections.abc import Iterator
from typing import Any, Final

_NUMBERS: Final = "__float__ __int__ __index__ __len__".split()
_ITSELF: Final = """__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __mod__ __pow__
    __neg__ __abs__ __round__ __enter__ __or__ __ror__""".split()
_ORDER: Final = "__lt__ __le__ __gt__ __ge__".split()

# What functions give that scripts take apart or compute with, by their path.
RETURNED: Final[dict[str, Any]] = {}


class Nothing(types.ModuleType):
    """A module, class, function and number; `__call__` gives itself, or what is known to be returned."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], types.FunctionType) and not kwargs:
            return args[0]  # it decorates a function
        given = RETURNED.get(self.__name__, self)
        return tuple(Nothing(f"{self.__name__}.{i}") for i in range(given)) if isinstance(given, int) else given

    def __exit__(self, *_: object) -> None:
        return None

    def __fspath__(self) -> str:
        return tempfile.gettempdir()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, item: Any) -> bool:
        return False

    def __bool__(self) -> bool:
        return True

    def __format__(self, spec: str) -> str:
        return ""

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (Base,)  # a class of the script's derives from it

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: Any) -> Nothing:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def __getitem__(self, key: Any) -> Any:
        return self


class Base:
    """What a script's own class of a tracker derives from."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name)


def has_everything(module: Any) -> None:
    """Let a module that is installed have nothing where it lacks a name."""
    find = getattr(module, "__getattr__", None)

    def getattr_(name: str) -> Any:
        with contextlib.suppress(AttributeError):
            if find is not None:
                return find(name)
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"{module.__name__}.{name}")

    module.__getattr__ = getattr_


for _name in _NUMBERS:
    setattr(Nothing, _name, lambda self: 0)
for _name in _ITSELF:
    setattr(Nothing, _name, lambda self, *other: self)
for _name in _ORDER:
    setattr(Nothing, _name, lambda self, other: False)
