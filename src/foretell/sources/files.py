"""SOURCE → Workload: a function in a file or module, or an architecture known by name. Runs the user's code.

Every source is a plain function with keyword parameters that returns a Workload; its parameters are what
`--set name=value` sets. A `.graph` file is not a workload and is read elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from foretell.errors import SourceError, WorkloadError, did_you_mean
from foretell.sources import named as zoo
from foretell.sources.moved import current_source
from foretell.sources.named.torchvision_ops import make_torchvision_importable, use_declared_operators
from foretell.workload import Workload

REQUIRED: Final = inspect.Parameter.empty
_FORMS = (
    "'file.py:function', 'package.module:function', 'timm/NAME', 'torchvision/NAME', 'hf/NAME', "
    "or the path of a Hugging Face config.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A parameter that `--set` can set."""

    name: str
    default: Any  # REQUIRED where the function gives none
    type: Any  # its annotation, else the type of its default

    @property
    def type_text(self) -> str:
        if get_origin(self.type) is Literal:
            return " | ".join(map(str, get_args(self.type)))
        return self.type.__name__ if isinstance(self.type, type) else str(self.type).replace("typing.", "")


def load_workload(source: str, settings: Mapping[str, str] | None = None) -> Workload:
    """The workload that SOURCE names, made with these settings (texts, as the command line has them)."""
    function = find_function(source)
    known = _settings_of(function)
    given = {name: _converted(source, name, text, known) for name, text in (settings or {}).items()}
    missing = [name for name, setting in known.items() if setting.default is REQUIRED and name not in given]
    if missing:
        raise SourceError(
            f"{source} needs a value for {', '.join(missing)}. "
            f"Give it with {' '.join(f'--set {name}=…' for name in missing)}, or a default in the function."
        )
    workload = function(**given)
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"{source} returned {_described(workload)}, not a foretell.Workload. "
            "Let the function return foretell.Workload(name=…, model=…, batch=…, loss=…)."
        )
    return workload


def describe_settings(source: str) -> dict[str, Setting]:
    """What `--set` can set for a source, in order. Imports the source."""
    return _settings_of(find_function(source))


def find_function(source: str) -> Callable[..., Any]:
    """The function that makes the workload."""
    source = current_source(source)
    prefix, slash, name = source.partition("/")
    if slash and prefix in zoo.LIBRARIES and not Path(source).exists():
        return zoo.workload_function(prefix, name)
    if source.endswith(".json"):
        return _from_config_file(source)
    place, colon, name = source.rpartition(":")
    if source.endswith(".py") or (colon and place.endswith(".py")):
        module = _import_file(Path(place if colon else source))
        return _function_in(module, name if colon else "", source)
    if colon and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        return _function_in(_import_module(place, source), name, source)
    raise SourceError(f"{source!r} does not name a workload. {_near_library(prefix, slash)}A source is {_FORMS}.")


def _near_library(prefix: str, slash: str) -> str:
    return did_you_mean(prefix, zoo.LIBRARIES) if slash else ""


def _from_config_file(source: str) -> Callable[..., Workload]:
    path = Path(source)
    if not path.is_file():
        raise SourceError(f"no file {source!r}. Give the path of a Hugging Face config.json.")
    zoo.library("hf")  # a clear error where transformers is missing
    from foretell.sources.named.huggingface import config_file_function

    return config_file_function(path)


def _import_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        near = [str(p) for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise SourceError(f"no file '{path}'. {did_you_mean(str(path), near)}A source is {_FORMS}.")
    path = path.resolve()
    make_torchvision_importable()
    _put_first_on_path(str(path.parent))  # so that the file can import its neighbours
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


def _import_module(name: str, source: str) -> types.ModuleType:
    make_torchvision_importable()
    _put_first_on_path(str(Path.cwd()))
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


def _put_first_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _function_in(module: types.ModuleType, name: str, source: str) -> Callable[..., Any]:
    defined = [
        n for n, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    public = [n for n in defined if not n.startswith("_")] or defined
    there = f"Functions there: {', '.join(public)}." if public else "It defines no function."
    if not name:
        example = public[0] if public else "function"
        raise SourceError(
            f"{source!r} does not say which function makes the workload. Write '{source}:{example}'. {there}"
        )
    found = getattr(module, name, None)
    if found is None:
        raise SourceError(f"no function {name!r} in {module.__file__}. {did_you_mean(name, public)}{there}")
    if isinstance(found, Workload):
        return lambda: found
    if not callable(found):
        raise SourceError(f"{name!r} in {module.__file__} is {_described(found)}, not a function. {there}")
    function: Callable[..., Any] = found
    return function


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


# Settings: text from the command line → what the function's annotation, else its default, asks for.


def _settings_of(function: Callable[..., Any]) -> dict[str, Setting]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker can read
        signature = inspect.signature(function)
    nameable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: _setting(p) for p in signature.parameters.values() if p.kind in nameable}


def _setting(parameter: inspect.Parameter) -> Setting:
    kind, default = parameter.annotation, parameter.default
    if kind is REQUIRED or isinstance(kind, str):
        kind = str if default is REQUIRED or default is None else type(default)
    return Setting(name=parameter.name, default=default, type=kind)


def _converted(source: str, name: str, text: str, known: Mapping[str, Setting]) -> Any:
    if name not in known:
        takes = f"It takes: {', '.join(known)}." if known else "It takes no settings."
        raise SourceError(f"{source} has no setting {name!r}. {did_you_mean(name, known)}{takes}")
    try:
        return _read(text, known[name].type)
    except ValueError as problem:
        raise SourceError(f"setting {name}={text!r} of {source}: {problem}.") from None


_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _read(text: str, kind: Any) -> Any:
    """Read text as a type; ValueError says what was wanted."""
    origin = get_origin(kind)
    if origin is Union or origin is types.UnionType:
        return _read_union(text, get_args(kind))
    if origin is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if text in choices:
            return choices[text]
        raise ValueError(f"{did_you_mean(text, choices)}Allowed: {', '.join(choices)}")
    if kind is type(None):
        if text.lower() in ("none", "null"):
            return None
        raise ValueError("must be none")
    if kind is bool:
        if text.lower() in _TRUTHS:
            return _TRUTHS[text.lower()]
        raise ValueError("must be true or false")
    if kind is int:
        return _number(text, int, "a whole number")
    if kind is float:
        return _number(text, float, "a number")
    if kind is str or kind is Any:
        return text
    if kind is Path:
        return Path(text)
    raise ValueError(f"cannot be set from text, because its type is {kind}. Use int, float, bool, str, None or Literal")


def _number(text: str, kind: Callable[[str], Any], wanted: str) -> Any:
    try:
        return kind(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"must be {wanted}") from None


def _read_union(text: str, kinds: tuple[Any, ...]) -> Any:
    # None first and plain text last: what only text can hold stays text.
    tried = sorted(kinds, key=lambda kind: (kind is not type(None), kind is str))
    problems = []
    for kind in tried:
        try:
            return _read(text, kind)
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError(" or ".join(dict.fromkeys(problems)))
