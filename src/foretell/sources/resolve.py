"""SOURCE → Workload: which form a source has, and the function behind it. Runs the user's code.

Every source is a plain function with keyword parameters that returns a Workload; its parameters are what
`--set name=value` sets. A `.graph` file is not a workload: `capture` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foretell.errors import SourceError, WorkloadError, did_you_mean
from foretell.graph import Caveat
from foretell.sources import check_source, named
from foretell.sources.config import config_file_function, function_of_entries
from foretell.sources.configs import Configuration, configuration_of
from foretell.sources.files import Wanted, described, function_in, import_file, import_module
from foretell.sources.former_names import current_source
from foretell.sources.offline import kept_offline
from foretell.sources.settings import converted, settings_of, text_of, texts_of
from foretell.trainers import trainer_named
from foretell.workload import Workload

_FORMS: Final = (
    "'file.py:function', 'package.module:function', 'timm/NAME', 'torchvision/NAME', 'hf/NAME', "
    "the path of a Hugging Face config.json, or of a trainer's configuration (.json, .yaml, .toml, .sh)"
)


def load_workload(source: str, settings: Mapping[str, Any] | None = None) -> Workload:
    """The workload that SOURCE names, made with these settings."""
    given = texts_of(settings)
    if (configuration := configuration_of(source, given)) is not None:
        return _configured(configuration, given)
    function = find_function(source)
    workload = function(**converted(source, given, settings_of(function)))
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"{source} returned {described(workload)}, not a foretell.Workload. "
            "Let the function return foretell.Workload(name=…, model=…, batch=…, loss=…)."
        )
    return workload


def _configured(found: Configuration, settings: Mapping[str, str]) -> Workload:
    """The workload of a trainer's configuration: its model, with the settings of the file and, above them, those given."""
    own = {name: value for name, value in settings.items() if name != "model"}
    model = settings.get("model") or found.require_model()
    if isinstance(model, str):
        function = find_function(model)
    else:
        function = kept_offline(found.file, function_of_entries(model, Path(found.file).stem, Path(found.file)))
    known = settings_of(function)
    asks_for = {name: text_of(name, value) for name, value in found.settings.items() if name not in own}
    taken = {name: text for name, text in asks_for.items() if name in known}
    workload: Workload = function(**converted(found.file, {**taken, **own}, known))
    caveats = found.caveats
    if left := ", ".join(f"{name}={text}" for name, text in asks_for.items() if name not in known):
        text = f"{found.file} asks for {left}, which {model if isinstance(model, str) else 'its model'} does not take."
        caveats = (*caveats, Caveat("configuration-not-modelled", text))
    trainer = trainer_named(found.trainer)
    return replace(workload, caveats=(*workload.caveats, *caveats), plan=found.template(own), trainer=trainer)


def find_function(source: str, *, wanted: Wanted = "a Workload") -> Callable[..., Any]:
    """The function that makes the workload, or a loader."""
    check_source(source)
    source = current_source(source)
    prefix, slash, name = source.partition("/")
    if slash and prefix in named.LIBRARIES and not Path(source).exists():
        return kept_offline(source, named.workload_function(prefix, name))
    if source.endswith(".json"):
        return kept_offline(source, config_file_function(source))
    place, colon, name = source.rpartition(":")
    if source.endswith(".py"):
        return function_in(import_file(Path(source), _FORMS), "", source, wanted=wanted)
    if colon and place.endswith(".py"):
        return function_in(import_file(Path(place), _FORMS), name, source, wanted=wanted)
    if colon and name.isidentifier() and all(part.isidentifier() for part in place.split(".")):
        return function_in(import_module(place, source), name, source, wanted=wanted)
    near = did_you_mean(prefix, named.LIBRARIES) if slash else ""
    raise SourceError(f"{source!r} does not name a workload. {near}A source is {_FORMS}.")
