"""Names that libraries had when a script was written, and have no longer: what they became, put back.

A script that was published with an older version is forecast as its author ran it. Only names that are missing are
added, and only those whose meaning has not changed.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import fractions
import functools
import importlib
import inspect
import math
import time
import types
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.torch_version import TorchVersion
from torch.utils.data import dataloader

from foretell.capture.script.imports import once_imported, provide
from foretell.capture.script.session import Session

_ABSTRACT: Final = """Iterable Iterator Mapping MutableMapping Sequence MutableSequence Set MutableSet Callable Hashable Sized
    Container Generator""".split()
_NUMPY: Final[Mapping[str, Any]] = {
    "int": int, "float": float, "complex": complex, "object": object, "str": str, "bool": bool, "unicode": str, "long": int,
    "Inf": math.inf, "infty": math.inf, "Infinity": math.inf, "PINF": math.inf, "NINF": -math.inf, "NaN": math.nan,
    "NAN": math.nan,
}  # fmt: skip
_NUMPY_RENAMED: Final = {
    "float_": "float64", "complex_": "complex128", "unicode_": "str_", "string_": "bytes_", "product": "prod",
    "cumproduct": "cumprod", "alltrue": "all", "sometrue": "any", "in1d": "isin", "row_stack": "vstack",
    "trapz": "trapezoid", "round_": "round", "int0": "intp", "uint0": "uintp", "bool8": "bool_", "float128": "longdouble",
}  # fmt: skip
_PIL: Final = {"ANTIALIAS": "LANCZOS", "LINEAR": "BILINEAR", "CUBIC": "BICUBIC"}
_TRANSFORMS: Final = {"Scale": "Resize", "RandomSizedCrop": "RandomResizedCrop"}
# Packages that imported parts of themselves, or that libraries imported parts of, so that scripts find them without a word.
_IN_PARTS: Final = (
    "timm timm.models timm.data scipy sklearn skimage PIL torchvision torchvision.models torch.utils xml".split()
)
_OF_VERSIONS: Final = ("torchvision", "torchaudio", "timm", "transformers", "diffusers", "pytorch_lightning")
_WITH_URLS: Final = "alexnet densenet googlenet inception mobilenet resnet squeezenet vgg shufflenetv2 mnasnet".split()


def install(session: Session) -> None:
    _python()
    _torch()
    once_imported("numpy", _numpy)
    once_imported("PIL.Image", lambda module: _rename(module, _PIL))
    once_imported("PIL.ImageOps", _posterize)
    once_imported("torchvision.transforms", lambda module: _rename(module, _TRANSFORMS))
    for name in _WITH_URLS:
        once_imported(f"torchvision.models.{name}", lambda module: add(module, "model_urls", _Urls()))
    once_imported("torchvision.transforms.transforms", _normalize)
    once_imported("yaml", _yaml)
    for name in _IN_PARTS:
        once_imported(name, _parts)
    for name in _OF_VERSIONS:
        once_imported(name, _versions)
    provide(lambda name: name in _MODULES, lambda name: _MODULES[name](name), to_everyone=True)


def add(owner: Any, name: str, value: Any) -> None:
    """Put a name back where it is missing."""
    there = name in vars(owner) if isinstance(owner, types.ModuleType) else hasattr(owner, name)
    if not there:  # a module may say of a name that it was removed, and warn
        setattr(owner, name, value)


def _rename(owner: Any, names: Mapping[str, str]) -> None:
    for former, name in names.items():
        if hasattr(owner, name):
            add(owner, former, getattr(owner, name))


def _python() -> None:
    for name in _ABSTRACT:
        add(collections, name, getattr(collections.abc, name))
    add(inspect, "getargspec", lambda function: inspect.getfullargspec(function)[:4])
    add(time, "clock", time.perf_counter)
    add(fractions, "gcd", math.gcd)


def _torch() -> None:
    iterators: Any = dataloader._BaseDataLoaderIter
    add(iterators, "next", lambda self: next(self))
    add(dataloader, "_DataLoaderIter", iterators)
    add(dataloader, "string_classes", (str, bytes))


def _numpy(module: Any) -> None:
    _rename(module, _NUMPY_RENAMED)
    for name, value in _NUMPY.items():
        add(module, name, value)
    add(module, "asscalar", lambda array: array.item())
    add(module, "asfarray", lambda array, dtype=float: module.asarray(array, dtype=dtype))
    _ragged(module)
    parse = module.fromstring

    def fromstring(text: Any, dtype: Any = float, count: int = -1, *, sep: str = "", like: Any = None) -> Any:
        if sep:
            return parse(text, dtype, count, sep=sep)
        data = text.encode("latin1") if isinstance(text, str) else text
        return module.frombuffer(data, dtype, count).copy()

    module.fromstring = fromstring


def _ragged(module: Any) -> None:
    """Rows of several lengths were an array of objects."""

    def either(function: Any) -> Any:
        @functools.wraps(function)
        def made(values: Any, *args: Any, **how: Any) -> Any:
            try:
                return function(values, *args, **how)
            except ValueError as error:
                if how.get("copy", True) is False and "avoid copy" in str(
                    error
                ):  # before NumPy 2 it copied where it had to
                    return function(values, *args, **(how | {"copy": None}))
                if "inhomogeneous" not in str(error):
                    raise
            rows = module.empty(len(values), dtype=object)
            rows[:] = list(values)
            return function(rows, *args, **how)

        return made

    for name in ("array", "asarray"):
        setattr(module, name, either(getattr(module, name)))
    once_imported("numpy.random", lambda random: setattr(random, "choice", either(random.choice)))


def _yaml(module: Any) -> None:
    """`yaml.load(file)` chose a loader by itself; it ran what a file says, which this one does not."""
    for name in ("load", "load_all"):
        load = getattr(module, name)
        if "Loader" in inspect.signature(load).parameters:
            setattr(module, name, lambda stream, Loader=module.FullLoader, load=load: load(stream, Loader))


def _parts(module: Any) -> None:
    find = getattr(module, "__getattr__", None)

    def part(name: str) -> Any:
        with contextlib.suppress(AttributeError):
            if find is not None:
                return find(name)
        with contextlib.suppress(ImportError):
            if not name.startswith("_"):
                return importlib.import_module(f"{module.__name__}.{name}")
        raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")

    module.__getattr__ = part


def _posterize(module: Any) -> None:
    """Augmentations leave no bit of a picture, now and then."""
    posterize = module.posterize
    module.posterize = lambda image, bits: posterize(image, min(max(int(bits), 1), 8))


class _Version(TorchVersion):
    """A version that compares as torch's does; of the first letters, `float("0.28"[:3])`, too, it is later than 0.7."""

    def __getitem__(self, part: Any) -> str:
        text = str(self)
        major, _, minor = text.partition(".")
        cut = isinstance(part, slice) and part.start in (None, 0) and part.stop == len(major) + 2
        return f"{major}.9" if cut and minor[1:2].isdigit() else text[part]


def _versions(module: Any) -> None:
    """As words, 0.28 comes before 0.3."""
    if isinstance(version := getattr(module, "__version__", None), str):
        module.__version__ = _Version(version)


def _normalize(module: Any) -> None:
    """Means of three channels were taken for pictures of one, too."""
    forward = module.Normalize.forward

    def normalized(self: Any, tensor: Any) -> Any:
        channels, mean, std = tensor.shape[-3], self.mean, self.std
        if isinstance(mean, list | tuple) and len(mean) > channels:
            self.mean, self.std = mean[:channels], std[:channels]
        return forward(self, tensor)

    module.Normalize.forward = normalized


class _Urls(dict[str, str]):
    """Of weights, by the model's name: nothing is fetched from there."""

    def __missing__(self, name: str) -> str:
        return f"https://download.pytorch.org/models/{name}.pth"


# Modules


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


def _six(name: str) -> types.ModuleType:
    return _module(
        name, string_classes=(str, bytes), int_classes=int, container_abcs=collections.abc, inf=math.inf, nan=math.nan,
        PY2=False, PY3=True, PY37=True, FileNotFoundError=FileNotFoundError,
    )  # fmt: skip


def _vision_utils(name: str) -> types.ModuleType:
    return _module(name, load_state_dict_from_url=torch.hub.load_state_dict_from_url)


def _functional_tensor(name: str) -> types.ModuleType:
    return _module(name, **vars(importlib.import_module("torchvision.transforms._functional_tensor")))


def _joblib(name: str) -> types.ModuleType:
    return _module(name, joblib=importlib.import_module("joblib"))


def _element_tree(name: str) -> types.ModuleType:
    return _module(name, **vars(importlib.import_module("xml.etree.ElementTree")))


_MODULES: Final[Mapping[str, Any]] = {
    "xml.etree.cElementTree": _element_tree,
    "torch._six": _six,
    "torchvision.models.utils": _vision_utils,
    "torchvision.transforms.functional_tensor": _functional_tensor,
    "sklearn.externals": _joblib,
}
