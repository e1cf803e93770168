"""The user's own code as a source: `file.py:function` or `package.module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from foretell.errors import SourceError, did_you_mean
from foretell.sources.named.torchvision_ops import make_torchvision_importable, use_declared_operators
from foretell.workload import Workload

Wanted = Literal["a Workload", "batches"]  # of a function that is named


def import_file(path: Path, forms: str) -> types.ModuleType:
    """Run a file as a module; `forms` says in a message what a source may be."""
    if not path.is_file():
        near = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise SourceError(f"no file '{path}'. {did_you_mean(str(path), near)}A source is {forms}.")
    path = path.resolve()
    make_torchvision_importable()
    _put_first_on_path(path.parent)  # so that the file can import its neighbours
    name = path.stem if path.stem not in sys.modules else f"_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    use_declared_operators()
    return module


def import_module(name: str, source: str) -> types.ModuleType:
    """Import a module, from the current folder too."""
    make_torchvision_importable()
    _put_first_on_path(Path.cwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (name == missing.name or name.startswith(missing.name + ".")):
            raise  # the user's own module imports something that is not there: their traceback says what
        raise SourceError(
            f"no module {missing.name!r}, which the source {source!r} names. "
            f"Install it, run from the folder that holds it, or write the file: '{name.replace('.', '/')}.py:…'."
        ) from None
    use_declared_operators()
    return module


def _put_first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def function_in(
    module: types.ModuleType, name: str, source: str, *, wanted: Wanted = "a Workload"
) -> Callable[..., Any]:
    """The function of that name; a Workload that is made already counts as one that makes it."""
    suits = _makes_workload if wanted == "a Workload" else partial(_is_defined_in, module)
    makers = [n for n, value in vars(module).items() if suits(value) and not n.startswith("_")]
    there = (
        f"Functions that return {wanted} there: {', '.join(makers)}."
        if makers
        else "No function there says that it returns a Workload (-> foretell.Workload)."
    )
    if not name:
        example = makers[0] if makers else "FUNCTION"
        raise SourceError(
            f"{source!r} does not say which function makes the workload. Write '{source}:{example}'. {there} "
            "A training script is forecast as it is: foretell predict train.py."
        )
    found = getattr(module, name, None)
    if found is None:
        raise SourceError(f"no function {name!r} in {module.__file__}. {did_you_mean(name, makers)}{there}")
    if isinstance(found, Workload):
        return lambda: found
    if not callable(found):
        raise SourceError(f"{name!r} in {module.__file__} is {described(found)}, not a function. {there}")
    function: Callable[..., Any] = found
    return function


def _is_defined_in(module: types.ModuleType, value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module.__name__


def _makes_workload(value: Any) -> bool:
    """By what it says of itself: other functions may train, or worse."""
    annotation = getattr(value, "__annotations__", {}).get("return")
    return (
        isinstance(value, Workload)
        or annotation is Workload
        or (isinstance(annotation, str) and annotation.endswith("Workload"))
    )


def described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
