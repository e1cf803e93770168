"""Errors of scripts whose causes are known by their kind: what is missing, what is not allowed, what a version does not have."""

from __future__ import annotations

import os
import pickle
import re
import sys
import types
from collections.abc import Callable
from typing import Any, Final

from foretell.capture.script.ended import Ended, Fault, shown, workload_of
from foretell.capture.script.package_causes import (
    missing_package,
    not_fetched,
    of_the_script,
    other_arguments,
    version_lacks,
)
from foretell.errors import ForetellError
from foretell.sources.offline import Refused, refusal_in

_CALLED: Final = re.compile(r"(\w+)\.<locals>\.[\w.<>]+\(\)")  # a function that one of ours has made
_LINE: Final = re.compile(r"\b[Ll]ines? \d")
_OURS: Final = "foretell."
_FILES: Final = "foretell.capture.script.pretend.files."
_TOO_FEW: Final = re.compile(
    r"requested gpus?: .*only has|invalid device (ordinal|id)|(not enough|more) gpus? (than|available|are)|only \d+ gpus?",
    re.IGNORECASE | re.DOTALL,
)
_DEVICES: Final = re.compile(r"^(Device index must not be negative|Invalid device string|Expected one of cpu, cuda)")
_OS: Final = ("<frozen os>", os.__file__)  # which has the environment


def known_cause(ended: Ended) -> Fault | None:
    """The first cause that an error is known for, if any."""
    return next((fault for find in _CAUSES if (fault := find(ended)) is not None), None)


def _stand_in_lacks(ended: Ended) -> Fault | None:
    """Something of ours in a library's place that has not what the script wants of it."""
    error = ended.error
    words, name = str(error), ""
    if isinstance(error, AttributeError) and error.obj is not None:
        kind = error.obj if isinstance(error.obj, type | types.ModuleType) else type(error.obj)
        if getattr(kind, "__module__", "").startswith(_FILES):
            return None  # what is in a file, which only the script knows
        name = kind.__name__ if _is_ours(kind) else ""
    elif isinstance(error, ImportError) and error.name and _is_ours(sys.modules.get(error.name)):
        name = error.name
    elif isinstance(error, TypeError) and (called := _CALLED.match(words)):
        name = called[0].removesuffix("()") if _is_of_ours(called[1]) else ""
    if not name:
        return None
    return Fault(
        whose="foretell",
        cause=f"What stands in for {name} is not whole: {words}. Please report it, with this message.",
        way_out="Switch off what needs it with the script's own arguments, after --. " + workload_of(ended.script),
    )


def _is_ours(thing: Any) -> bool:
    """A class of Foretell's, or a module that it has made."""
    loader = getattr(getattr(thing, "__spec__", None), "loader", None)
    return getattr(thing, "__module__", "").startswith(_OURS) or type(loader).__module__.startswith(_OURS)


def _is_of_ours(function: str) -> bool:
    """A function of Foretell's that makes others, by its name."""
    ours = [module for name, module in sys.modules.items() if name.startswith(_OURS)]
    return any(getattr(getattr(m, function, None), "__module__", "").startswith(_OURS) for m in ours)


def _no_such_name(ended: Ended) -> Fault | None:
    """A name that nothing has given a value: no data makes it so."""
    error, at = ended.error, ended.place
    undefined = type(error) is NameError or isinstance(error, UnboundLocalError)
    return of_the_script(ended) if undefined and at is not None and ended.frames[-1] == at else None


def _no_such_device(ended: Ended) -> Fault | None:
    """A device that torch has on no machine: no data makes it so."""
    is_device = isinstance(ended.error, RuntimeError) and _DEVICES.search(str(ended.error))
    return of_the_script(ended) if is_device and ended.place is not None else None


def _no_connection(ended: Ended) -> Fault | None:
    if not (refused := refusal_in(ended.error)):
        return None
    first = "" if ended.script.fake_data else "Give --fake-data to stand in for data sets and checkpoints. "
    return Fault(
        whose="surroundings",
        cause=f"{ended.script.path} asks for {refused}{ended.line}, and scripts run offline.",
        way_out=f"{first}What was downloaded before is read: run that line once with python, or give the script the path of a "
        "file or folder on this machine with its own arguments, after --.",
    )


def _missing_file(ended: Ended) -> Fault | None:
    error = ended.error
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return None
    if error.filename is None and ended.place is None:
        return None
    what = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else str(error)
    happened = f"{ended.script.path} reads {what}{ended.line}, which is not on this machine."
    if not ended.script.fake_data:
        way_out = "Give --fake-data to stand in for data sets and checkpoints, or put a small one of its kind there."
    else:
        way_out = (
            "What is in it cannot be found out from the script: put a small one of its kind there, of a few rows or samples of "
            "the usual shapes, or say with the script's own arguments where one is."
        )
    return Fault(whose="surroundings", cause=happened, way_out=way_out)


def _no_samples(ended: Ended) -> Fault | None:
    """A sampler that is given an empty data set: nothing was found on this machine."""
    if not isinstance(ended.error, ValueError) or "num_samples" not in str(ended.error):
        return None
    first = "" if ended.script.fake_data else "Give --fake-data to stand in for it, or "
    return Fault(
        whose="surroundings",
        cause=f"The data set of {ended.script.path} is empty{ended.line}: what it looks for is not on this machine.",
        way_out=f"{first}{'put' if first else 'Put'} a few samples of its kind where the script looks for them, or say with its own "
        "arguments, after --, where some are.",
    )


def _no_variable(ended: Ended) -> Fault | None:
    frames = ended.frames
    if not isinstance(ended.error, KeyError) or not frames or frames[-1].filename not in _OS:
        return None
    name = ended.error.args[0] if ended.error.args else "NAME"
    return Fault(
        whose="surroundings",
        cause=f"{ended.script.path} reads the environment variable {name}{ended.line}, which is not set.",
        way_out=f"Set it: {name}=… foretell predict {ended.script.path} …",
    )


def _not_python_3(ended: Ended) -> Fault | None:
    error = ended.error
    if not isinstance(error, SyntaxError):
        return None
    where = f"line {error.lineno} of {shown(error.filename or ended.script.path)} ({(error.text or '').strip()})"
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    old = "print" in (error.text or "") or isinstance(error, TabError)
    return Fault(
        whose="script",
        cause=f"{where} is no {version}: {error.msg}." + (" It looks like Python 2." if old else ""),
        way_out="async is a word of the language since Python 3.7: write non_blocking= there."
        if "async" in (error.text or "")
        else "Convert it (2to3 -w FILE), or take a newer version of it."
        if old
        else "Mend it, or take another version.",
    )


def _asserts(ended: Ended) -> Fault | None:
    error, at = ended.error, ended.place
    if not isinstance(error, AssertionError) or at is None or ended.frames[-1] != at:
        return None
    line = at.line or ""
    if any(word in line for word in ("device_count", "world_size", "WORLD_SIZE", "n_gpu", "ngpu", "is_distributed")):
        way_out = "Forecast it on as many devices as it wants, as --on 8xh100-sxm, or with its launcher: --launch 'torchrun …'."
    elif any(word in line for word in ("exists", "isfile", "isdir", "is_file", "is_dir", "os.path")):
        first = "" if ended.script.fake_data else "Give --fake-data, or "
        way_out = f"{first}put a small one of its kind there, or say with the script's own arguments where one is."
    else:
        return None
    words = f" ({error})" if str(error) else ""
    return Fault(
        whose="surroundings", cause=f"{ended.script.path} refuses to go on{ended.line}{words}.", way_out=way_out
    )


def _more_devices(ended: Ended) -> Fault | None:
    """A library or a script that finds fewer accelerators than it was told to use."""
    if not _TOO_FEW.search(str(ended.error)):
        return None
    return Fault(
        whose="surroundings",
        cause=f"{shown(ended.script.path)} wants more devices than it is forecast on{ended.line}: {ended.named}.",
        way_out="Forecast it on as many as it wants, as --on 2xh100-sxm, or give it fewer with its own arguments, after --.",
    )


def _too_little_memory(ended: Ended) -> Fault | None:
    if not isinstance(ended.error, MemoryError) and "DefaultCPUAllocator" not in str(ended.error):
        return None
    return Fault(
        whose="surroundings",
        cause=f"{ended.script.path} wants more memory on the host than there is{ended.line}: {ended.named}.",
        way_out="Give it less data with its own arguments, after --, or run foretell where there is more memory "
        "(FORETELL_CAPTURE_MEMORY bounds it).",
    )


def _builds_an_extension(ended: Ended) -> Fault | None:
    if not any(
        f.filename.endswith(("torch/utils/cpp_extension.py", "triton/compiler/compiler.py")) for f in ended.frames
    ):
        return None
    return Fault(
        whose="surroundings",
        cause=f"{ended.script.path} builds a CUDA extension{ended.line}, which needs a compiler for GPUs: {ended.named}.",
        way_out="Switch it off with the script's own arguments, after --, or declare what it calls in a file and give it with "
        "--opaque FILE: foretell.opaque('package.function', outputs=lambda x: x.new_empty(x.shape)).",
    )


def _pickle_is_refused(ended: Ended) -> Fault | None:
    """torch reads tensors alone out of a file, unless it is told to trust what else is in it."""
    if not isinstance(ended.error, pickle.UnpicklingError) or "weights_only" not in str(ended.error):
        return None
    return Fault(
        whose="surroundings",
        cause=f"{ended.script.path} loads a file with more than tensors in it{ended.line}, which torch refuses since version 2.6: "
        "such a file may run code of its own.",
        way_out="If you trust it, let torch load it: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 foretell predict …",
    )


_CAUSES: Final[tuple[Callable[[Ended], Fault | None], ...]] = (
    _stand_in_lacks, _no_connection, not_fetched, missing_package, version_lacks, other_arguments, _no_such_name, _no_such_device,
    _more_devices, _missing_file, _no_samples, _no_variable, _not_python_3, _asserts,
    _too_little_memory, _builds_an_extension, _pickle_is_refused,
)  # fmt: skip


def own_words(ended: Ended) -> ForetellError | None:
    """What a stand-in has raised on purpose, whatever the script or a library has made of it."""
    found = next(
        (error for error in ended.chain() if isinstance(error, ForetellError) and not isinstance(error, Refused)), None
    )
    if found is not None and ended.line and not _LINE.search(str(found)) and len(found.args) == 1:
        found.args = (f"{found} It happened{ended.line}.",)
    return found
