"""A Hugging Face config.json as a source: its architecture, or the main one of its model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.errors import SourceError
from foretell.limits import read_json
from foretell.sources.named import library
from foretell.workload import Workload


def config_file_function(source: str) -> Callable[..., Workload]:
    """The function that makes the workload of a configuration file."""
    path = Path(source)
    if not path.is_file():
        raise SourceError(f"no file {source!r}. Give the path of a Hugging Face config.json.")
    try:
        config = read_json(path, finite=False)  # some limits of Mamba's are infinite
    except (ValueError, OSError) as problem:
        raise SourceError(f"'{path}' is not a JSON file: {problem}. Give a Hugging Face config.json.") from None
    if not isinstance(config, dict) or not ({"model_type", "architectures"} & config.keys()):
        raise SourceError(
            f"'{path}' is not a Hugging Face configuration: it has neither 'model_type' nor 'architectures'. "
            "Give the config.json that lies beside a model's weights."
        )
    name = str(config.get("_name_or_path") or "") or path.resolve().parent.name
    return function_of_entries(config, name.rsplit("/", 1)[-1], path)


def function_of_entries(config: Mapping[str, Any], name: str, path: Path) -> Callable[..., Workload]:
    """Of a configuration's entries; `like` is a known name, of which the other entries are changed."""
    library("hf")  # a clear error where transformers is missing
    from foretell.sources.named.huggingface import architectures, function_for
    from foretell.sources.named.huggingface.architecture import Architecture

    if (like := config.get("like")) is not None:
        known = architectures()[str(like)]
        changes = {key: value for key, value in config.items() if key != "like"}
        return function_for(replace(known, name=name, config={**known.config, **changes}))
    return function_for(Architecture(name=name, model=_model_class(config, path), config=config))


def _model_class(config: Mapping[str, Any], path: Path) -> str:
    import transformers

    from foretell.sources.named.huggingface.registries import class_of_type, task_of_class

    listed = config.get("architectures") or []
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise SourceError(f"'{path}': architectures must be a list of names, got {str(listed)[:100]}.")
    named = next(iter(listed), None)
    if named and hasattr(transformers, named) and task_of_class(named):
        return str(named)
    found = class_of_type(str(config.get("model_type")))
    if found is None:
        raise SourceError(
            f"'{path}': transformers {transformers.__version__} has no trainable architecture for model_type "
            f"{str(config.get('model_type'))!r}, architectures {config.get('architectures')}. "
            "If the model brings its own code, write the step as file.py:function."
        )
    return found
