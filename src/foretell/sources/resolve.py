"""SOURCE → Workload: which form a source has, and the function behind it. Runs the user's code.

Every source is a plain function with keyword parameters that returns a Workload; its parameters are what
`--set name=value` sets. A `.graph` file is not a workload: `capture` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError, WorkloadError, did_you_mean
from foretell.sources import check_source, named
from foretell.sources.config import config_file_function
from foretell.sources.files import described, function_in, import_file, import_module
from foretell.sources.moved import current_source
from foretell.sources.offline import kept_offline
from foretell.sources.settings import converted, settings_of
from foretell.workload import Workload

_FORMS: Final = (
    "'file.py:function', 'package.module:function', 'timm/NAME', 'torchvision/NAME', 'hf/NAME', "
    "or the path of a Hugging Face config.json"
)


def load_workload(source: str, settings: Mapping[str, str] | None = None) -> Workload:
    """The workload that SOURCE names, made with these settings (texts, as the command line has them)."""
    function = find_function(source)
    workload = function(**converted(source, settings or {}, settings_of(function)))
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"{source} returned {described(workload)}, not a foretell.Workload. "
            "Let the function return foretell.Workload(name=…, model=…, batch=…, loss=…)."
        )
    return workload


def find_function(source: str) -> Callable[..., Any]:
    """The function that makes the workload."""
    check_source(source)
    source = current_source(source)
    prefix, slash, name = source.partition("/")
    if slash and prefix in named.LIBRARIES and not Path(source).exists():
        return kept_offline(source, named.workload_function(prefix, name))
    if source.endswith(".json"):
        return kept_offline(source, config_file_function(source))
    place, colon, name = source.rpartition(":")
    if source.endswith(".py"):
        return function_in(import_file(Path(source), _FORMS), "", source)
    if colon and place.endswith(".py"):
        return function_in(import_file(Path(place), _FORMS), name, source)
    if colon and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        return function_in(import_module(place, source), name, source)
    near = did_you_mean(prefix, named.LIBRARIES) if slash else ""
    raise SourceError(f"{source!r} does not name a workload. {near}A source is {_FORMS}.")
