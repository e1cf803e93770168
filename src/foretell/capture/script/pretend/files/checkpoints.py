"""Checkpoints that are not on this machine: a model keeps the weights that it has, and numbers are 0."""

from __future__ import annotations

import contextlib
import dis
import errno
import io
import os
import re
from collections.abc import Callable, ItemsView, Iterator, KeysView
from functools import partial
from sys import _getframe
from typing import Any, Final

import torch

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.following import after_the_call
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import kinds
from foretell.capture.script.pretend.files.callers import asking_frame, is_ready, reading_frame
from foretell.capture.script.pretend.files.pickled_words import PickledWords, is_of_words, words_in
from foretell.capture.script.pretend.files.shapeless import Unshaped
from foretell.capture.script.pretend.files.taken import unpacked
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.pretend.reading import Note, or_else, or_else_offline
from foretell.capture.script.session import Session

IN_PLACE: Final = b"Foretell stands in for weights"  # what a script writes that fetches them itself
_WHOLE: Final = re.compile(r"(\w+_)?(state_dict|model|net|network|weights|params)")  # the states of a net, by name
_STATE: Final = re.compile(
    r"(\w+_)?state_dict|optimi[sz]er|(lr_)?scheduler|epoch|global_step|best_\w+|arch"
)  # of what trained
# Methods that make another tensor of a weight.
_OF_WEIGHTS: Final = frozenset(
    "mean sum repeat expand view reshape permute transpose t flatten unsqueeze squeeze clone detach contiguous float half "
    "double type copy_ narrow chunk flip roll mul div add sub requires_grad_".split()
)
FETCHED: Final[set[str]] = set()  # paths that a download was to leave something at


class NoSuchPart(StandInError, AttributeError):
    """Something that a tensor would have."""


class Checkpoint(dict[Any, Any]):
    """A checkpoint that is not here: it has every part, as a number it is 0, and loading it changes nothing."""

    dtype = torch.int64

    def to(self, *args: Any, **kwargs: Any) -> Checkpoint:
        return self

    cuda = cpu = to

    def __missing__(self, key: Any) -> Checkpoint:
        return Checkpoint()

    def __contains__(self, key: object) -> bool:
        """A script that looks for the net's states may end without them; for its own parameters it shall find none."""
        return isinstance(key, str) and _WHOLE.fullmatch(key) is not None

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, torch.Tensor):  # a table, of which a row is read for each number
            return torch.ones_like(key)
        return super().__getitem__(key)

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

    def _unknown(self, *args: Any, **kwargs: Any) -> Checkpoint:
        """What is computed of a weight, as for a net with other channels, is one that nobody knows either."""
        return Checkpoint()

    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __matmul__ = _unknown

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Checkpoint:
        return cls()

    def __lt__(self, other: Any) -> bool:
        return bool(other > 0)

    def __gt__(self, other: Any) -> bool:
        return bool(other < 0)

    def __iter__(self) -> Iterator[Any]:
        if unpacked(_getframe(1)):
            return iter(self.parts)
        return _entries(_getframe(1), "")

    def keys(self) -> Any:
        return _Names(self)

    def items(self) -> Any:
        return _Items(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_WEIGHTS:
            return self._unknown
        raise NoSuchPart(
            "what torch.load reads",
            f"{name!r}: nobody but the file says which tensors are in it",
            "Put a small one of its kind there, of a few samples of the usual shapes.",
        )


def _entries(frame: Any, first: Any) -> Iterator[Any]:
    """None, but one whose name is empty for a look at the first (`next(iter(…))`, `list(…)[0]`)."""
    following, now = after_the_call(frame), dis.opname[frame.f_code.co_code[frame.f_lasti]]
    nested = following.startswith(("CALL", "PRECALL")) and "next" in frame.f_code.co_names
    looks = now != "GET_ITER" and (nested or following == "LOAD_CONST 0")
    return iter((first,) if looks else ())


class _Names(KeysView[Any]):
    def __iter__(self) -> Iterator[Any]:
        return _entries(_getframe(1), "")


class _Items(ItemsView[Any, Any]):
    def __iter__(self) -> Iterator[Any]:
        return _entries(_getframe(1), ("", Checkpoint()))


class NotHere(io.BytesIO):
    """A checkpoint's file or a pickle, opened by the script itself: `torch.load` knows it by its name."""

    def __init__(self, name: str, contents: bytes = b"") -> None:
        super().__init__(contents)
        self.name = name


def install(session: Session) -> None:
    """Give checkpoints that are not there, and weights that would be downloaded."""
    _checkpoints(session)
    once_imported("torchvision.models._api", _weights)
    once_imported("timm.models._builder", lambda module: _pretrained(module, session.stand_in))


def _checkpoints(session: Session) -> None:
    missing = False

    def part_of(path: str, name: str) -> Checkpoint | PickledWords | None:
        nonlocal missing
        if is_of_words(name):
            session.stand_in(f"vocabulary {name!r} in {path}", f"{words_in(path):,} words", decides_size=True)
            return PickledWords(words_in(path))
        if _STATE.fullmatch(name) is None:
            return None
        session.stand_in(f"checkpoint {path}")
        missing = True
        return Checkpoint()

    def nothing_of(file: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal missing
        file = file.name if isinstance(file, NotHere) else file
        path = os.fspath(file) if isinstance(file, str | os.PathLike) else ""
        if path and "://" not in path and kinds.is_data(kinds.WEIGHTS.sub("", path), kinds.Given(), os.getcwd()):
            return Unshaped(session, path, tensors=True, part=partial(part_of, path))
        session.stand_in(f"checkpoint {file}")
        missing = True
        return Checkpoint()

    def missing_of(file: Any, *args: Any, **kwargs: Any) -> Any:
        """Code that knows how to do without, as one that makes the file then, hears that it is missing."""
        path = os.fspath(file) if isinstance(file, str | os.PathLike) else ""
        if path and is_ready(reading_frame(), path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return nothing_of(file, *args, **kwargs)

    def tolerant(read: Callable[..., Any], nothing: Callable[[], Any]) -> Callable[..., Any]:
        def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(state_dict, Checkpoint | Unshaped | torch.Tensor) or (
                missing and not state_dict
            ):  # or what the script has taken from it
                return nothing()
            return read(self, state_dict, *args, **kwargs)

        return load_state_dict

    keys = torch.nn.modules.module._IncompatibleKeys
    or_else(torch, "load", missing_of)
    read = torch.load

    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        return (nothing_of if _is_in_place(f) else read)(f, *args, **kwargs)

    replace(torch, "load", load)
    or_else_offline(torch.hub, "load_state_dict_from_url", nothing_of)
    once_imported("safetensors", lambda module: _tensors(module, nothing_of))
    once_imported("safetensors.torch", lambda module: or_else(module, "load_file", missing_of))
    takers: dict[Any, Callable[[], Any]] = {
        torch.nn.Module: lambda: keys([], []),
        torch.optim.Optimizer: lambda: None,
        torch.optim.lr_scheduler.LRScheduler: lambda: None,
        torch.amp.GradScaler: lambda: None,
    }
    for kind, nothing in takers.items():
        replace(kind, "load_state_dict", tolerant(kind.load_state_dict, nothing))


def _is_in_place(file: Any) -> bool:
    """Whether it is a file of ours in place of weights: opened, in memory, or written by the script."""
    if isinstance(file, NotHere):
        return True
    if isinstance(file, io.BytesIO):
        return bytes(file.getbuffer()[: len(IN_PLACE)]) == IN_PLACE
    file = getattr(file, "name", file) if isinstance(file, io.IOBase) else file  # opened by the script
    if not isinstance(file, str | os.PathLike):
        return False
    path = overlay.found(file)
    try:
        with open(path, "rb") as start:
            first = start.read(len(IN_PLACE))
    except OSError:
        return False
    return first == IN_PLACE or (bool(first) and os.path.abspath(os.fspath(file)) in FETCHED)


class _NoTensors(contextlib.nullcontext[Any]):
    """A file of safetensors that is not here: it names none."""

    def __enter__(self) -> Any:
        return self

    def keys(self) -> list[str]:
        return []

    def metadata(self) -> dict[str, str]:
        return {}


def _tensors(module: Any, nothing_of: Callable[..., Any]) -> None:
    opened: Callable[..., Any] = module.safe_open

    def safe_open(filename: Any, *args: Any, **kwargs: Any) -> Any:
        if overlay.is_there(filename) or asking_frame() is None:
            return opened(filename, *args, **kwargs)
        nothing_of(filename)
        return _NoTensors()

    replace(module, "safe_open", safe_open)


def _weights(api: Any) -> None:
    """torchvision's, which a model is asked to be built with."""
    api.WeightsEnum.get_state_dict = lambda self, *args, **kwargs: torch.hub.load_state_dict_from_url(self.url)


def _pretrained(builder: Any, note: Note) -> None:
    """timm's."""
    or_else_offline(builder, "load_pretrained", lambda model, *a, **kw: note(f"weights of {type(model).__name__}"))
