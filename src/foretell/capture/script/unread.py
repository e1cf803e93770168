"""Functions of a script that read data, and that fail on what stands in for it: the next run lets them go on."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch._subclasses import fake_tensor

from foretell.capture.reads import is_library
from foretell.capture.script.ended import Ended
from foretell.capture.script.going_on import Place
from foretell.capture.script.guesses import Guesses
from foretell.errors import WorkloadError
from foretell.sources.offline import refusal_in

GOES_ON: Final = "functions that go on"  # what the guess about them is called
_READING: Final = re.compile(
    r"data|load|read|pars(e|ing)|collat|transform|augment|batch|sampl|vocab|corpus|feature|prepro|annot|label|split|crop|"
    r"__getitem__|__len__|__iter__|tokeni|examples|records|fields|images?|targets|sequence|dict",
    re.IGNORECASE,
)
_NO_DATA: Final = re.compile(
    r"model|net\b|checkpoint|ckpt|weight|pretrain|config|args|options|optim|state_dict|resume", re.I
)
_TRAINING: Final = frozenset(("backward", "zero_grad"))
_SETTINGS: Final = (".yaml", ".yml", ".cfg", ".ini", ".toml", ".conf", ".py", ".pth", ".pt", ".ckpt")
_OF_NO_DATA: Final = (
    ImportError, NameError, SyntaxError, NotImplementedError, MemoryError, RecursionError, StopIteration,
    torch.OutOfMemoryError, fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException, fake_tensor.UnsupportedFakeTensorException,
)  # fmt: skip
_INNER: Final = frozenset(("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>"))  # parts of a statement
_CALLS: Final = re.compile(r"unexpected keyword argument|required positional|positional arguments? but")


def unread(ended: Ended, guesses: Guesses) -> dict[str, Any]:
    """The function in which data was read last, to let it go on; nothing where the error is not of the data."""
    missing = isinstance(ended.error, FileNotFoundError) and ended.script.fake_data
    if not (ended.stand_ins or missing) or not is_of_data(ended.error):
        return {}
    known: list[Any] = guesses.known.get(GOES_ON, [])
    place = _place(ended.error)
    return {} if place is None or place.entry() in known else {GOES_ON: [*known, place.entry()]}


def refuse_invented_sizes(parameters: Iterable[torch.Tensor], guesses: Guesses) -> None:
    """A model whose layers are as wide as something that was made up where the script could not go on is another model.

    Raises:
        WorkloadError: It is one.
    """
    for extent in {extent for parameter in parameters for extent in parameter.shape}:
        for invented, what in guesses.invented.items():
            if extent and extent % invented == 0:
                raise WorkloadError(
                    f"The model has a layer of {extent:,}, which comes of {what}: that was made up, since what stands in for the "
                    "data could not be read as the script does. Put a small one of its kind there, of a few samples of the usual "
                    "shapes, or say with the script's own arguments, after --, where one is."
                )


def refuse_invented_batch(samples: int | None, guesses: Guesses) -> None:
    """A batch that is as large as something that was made up where the script could not go on is another batch.

    Raises:
        WorkloadError: It is one.
    """
    if samples is not None and (what := guesses.invented.get(samples)) is not None:
        raise WorkloadError(
            f"The batch has {samples:,} samples, which comes of {what}: that was made up, since what stands in for the data could "
            "not be read as the script does. Put a small one of its kind there, of a few samples of the usual shapes, or say with "
            "the script's own arguments, after --, where one is."
        )


def is_of_data(error: BaseException) -> bool:
    """Whether what stands in may have caused it: not a name, an argument or a setting that fails on any machine."""
    if isinstance(error, _OF_NO_DATA) or refusal_in(error):
        return False
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType | type):
        return False
    if isinstance(error, ValueError) and "num_samples" in str(error):  # a data set with nothing in it
        return False
    if isinstance(error, OSError) and str(error.filename or "").endswith(_SETTINGS):
        return False
    return not (isinstance(error, TypeError) and _CALLS.search(str(error)))


def _place(error: BaseException) -> Place | None:
    frames = frames_in(error)
    own = [(frame, line) for frame, line in frames if not is_library(frame.f_code.co_filename)]
    if not own or any(is_model(frame) for frame, _ in frames) or not any(_reads(frame) for frame, _ in own):
        return None
    frame, line = next(((f, n) for f, n in own[::-1] if f.f_code.co_name not in _INNER), own[-1])
    code = frame.f_code
    if code.co_name == "<module>":
        return Place(path=code.co_filename, first=0, line=line)
    only = line if _TRAINING & set(code.co_names) or not _reads(frame) else 0
    return Place(path=code.co_filename, first=code.co_firstlineno, line=only)


def frames_in(error: BaseException) -> list[tuple[types.FrameType, int]]:
    """Of an error, the outermost first, each with the line that it came to."""
    frames, at = [], error.__traceback__
    while at is not None:
        frames.append((at.tb_frame, at.tb_lineno))
        at = at.tb_next
    return frames


def is_model(frame: types.FrameType) -> bool:
    """A step of the model, of a loss or of an optimizer."""
    owner = frame.f_locals.get("self")
    return isinstance(owner, torch.nn.Module | torch.optim.Optimizer) or frame.f_code.co_name == "backward"


def _reads(frame: types.FrameType) -> bool:
    """A method of a data set, or a function whose name, or whose class or file, is of data."""
    code = frame.f_code
    if isinstance(frame.f_locals.get("self"), torch.utils.data.Dataset):
        return True
    name = code.co_qualname.rpartition("<locals>.")[2]
    words = f"{os.path.splitext(os.path.basename(code.co_filename))[0]} {name}"
    return bool(_READING.search(words)) and not _NO_DATA.search(name)
