"""Packages that a script imports and this machine lacks, and names that an installed one lacks: an error only where it uses one.

Many are imported for a score, a video or a converter that no step needs. What a script tries to import and goes on without
stays missing.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from foretell.capture.reads import is_library
from foretell.capture.script.broken import BROKEN
from foretell.capture.script.imports import provide, replace_broken
from foretell.capture.script.packages import ESSENTIAL, MissingError, distribution, is_shared, on_missing_package
from foretell.capture.script.pretend.kernels.package import goes_on_without
from foretell.capture.script.repository import is_near
from foretell.capture.script.session import Session

_SOURCES: Final = (".pyx", ".cpp", ".cu", ".cc", ".c")  # of what the repository would have built
_SESSION: Final[list[Session]] = []
# Which decide what runs, as they are imported or by what they decorate.
_DECIDE: Final = frozenset(
    "hydra fire click typer gin absl ml_collections yacs simple_parsing jsonargparse tap".split()
)


def install(session: Session) -> None:
    _SESSION[:] = [session]
    refusals: dict[str, str] = {}  # of modules that installed libraries lack

    def is_absent(name: str) -> bool:
        found = _is_missed(name)
        if found:
            of_library = _is_of_library(name)
            refusal = _refusal(name if of_library else distribution(name), _importing())
            refusals.update({name: refusal} if of_library else {})
            _SESSION[0].lacking.append(refusal)
        return found

    refused: dict[str, str] = session.guesses.known.get(BROKEN, {})
    if refused:
        replace_broken(frozenset(refused), lambda name: Absent(name, refused[name]))
    provide(is_absent, lambda name: Absent(name, refusals.get(name, "")))


def _importing() -> Any:
    """The frame of the script's that imports."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and (
        "importlib" in frame.f_code.co_filename or is_library(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame


def _refusal(package: str, user: Any) -> str:
    """What a script is told that uses the package there, or that never trains."""
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    error.__traceback__ = types.TracebackType(None, user, user.f_lasti, user.f_lineno)
    return str(on_missing_package(_SESSION[0].script, error))


def _is_missed(name: str) -> bool:
    package = name.partition(".")[0]
    there = sys.modules.get(package)
    if there is not None and not isinstance(there, Absent):
        missed = _would_be_built(name) or is_shared(there) or (_is_of_library(name) and not _may_be_no_module())
        return missed and goes_on_without(sys._getframe(2)) is False
    if package in sys.stdlib_module_names or package in _DECIDE or is_near(package):
        return False
    return goes_on_without(sys._getframe(2)) is False


def _would_be_built(name: str) -> bool:
    """A part of a package of the repository's own, of which only the source is there."""
    parent, _, part = name.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", ())
    return any(os.path.exists(os.path.join(folder, part + ending)) for folder in folders for ending in _SOURCES)


def _is_of_library(name: str) -> bool:
    """A module that another version of an installed library has."""
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is not None and is_library(file) and package not in ESSENTIAL


def _may_be_no_module() -> bool:
    """Whether a name that is taken from a module is looked for among its modules as well."""
    frame: Any = sys._getframe(4)  # past the finder
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back
    return False


def lacking(module: str, name: str, user: Any) -> Any:
    """What stands for a name that a module of an installed library does not have, until a step would need it; None of torch's."""
    if module.partition(".")[0] in ESSENTIAL or not _SESSION:  # no script runs
        return None
    error = ImportError(f"cannot import name {name!r} from {module!r}", name=module)
    error.__traceback__ = types.TracebackType(None, user, user.f_lasti, user.f_lineno)
    refusal = on_missing_package(_SESSION[0].script, error)
    if refusal is None:
        return None
    _SESSION[0].lacking.append(refusal)
    return Absent(f"{module}.{name}", refusal)


class Absent(types.ModuleType):
    """Such a package, something of it, or what a call of it returned: nothing, until a step would need it.

    Whoever gives it tensors to compute with, or computes with it, hears that it is missing. What runs without gradients
    evaluates, and no step needs the score.
    """

    __version__ = "999.0"  # whatever the script wants at least
    _aside = False  # came of a call without gradients
    _refusal = ""  # of a name that an installed library lacks

    def __init__(self, name: str, refusal: str = "") -> None:
        super().__init__(name)
        vars(self)["_refusal"] = refusal

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._further(f".{name}")

    def _further(self, more: str, aside: bool = False) -> Absent:
        made = Absent(f"{self.__name__}{more}", self._refusal)
        vars(made)["_aside"] = self._aside or aside
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        evaluates = not torch.is_grad_enabled()
        if not evaluates and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
            self.miss()
        package = (self._refusal and self.__name__) or distribution(self.__name__)
        what = (
            f"{package}, which is not in what is installed"
            if self._refusal
            else f"package {package}, which is not installed"
        )
        _SESSION[0].stand_in(what, "calls of it do nothing")
        if package not in _SESSION[0].called:  # finding the words takes a while
            _SESSION[0].called[package] = self._words()
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]  # it decorates it
        return self._further("()", evaluates)

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """Say that the package is missing, where it is used."""
        raise MissingError(self._words())

    def _words(self) -> str:
        return self._refusal or _refusal(distribution(self.__name__), _user())

    def number(self) -> float:
        return 0.0 if self._aside else self.miss()

    def __int__(self) -> int:
        return int(self.number())

    def __float__(self) -> float:
        return self.number()

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __instancecheck__(self, value: Any) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return self  # in an annotation

    __ror__ = __getitem__ = __or__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (type(self.__name__.rpartition(".")[2], (), {"__init__": lambda *args, **kwargs: self.miss()}),)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = next(leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Absent))
        return found.miss()


def _user() -> Any:
    """The frame that uses something of a package: the script's, or of a library that it handed it to."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename == __file__ or "torch" in frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _computed(self: Absent, *others: Any) -> Any:
    if any(isinstance(other, tuple | list) for other in others):
        return others[0]  # a list of kinds, of which its own are none that anything is
    return self if self._aside else self.miss()


for _name in "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __lt__ __gt__ __le__ __ge__".split():
    setattr(Absent, _name, _computed)
for _name in "__iter__ __len__ __contains__ __fspath__ __index__ __array__".split():
    setattr(Absent, _name, Absent.miss)
