"""The model a configuration names, as a SOURCE: a file beside it, or a known name built from its numbers, no download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretell.errors import SourceError, did_you_mean
from foretell.sources.configs.files import is_file
from foretell.sources.configs.keys import Keys
from foretell.sources.named.hub import hub_model, hub_models


def named_model(keys: Keys, name: str, folder: Path) -> str | Mapping[str, Any]:
    """A SOURCE, or the entries of a configuration; `--set model=` goes before what the file names."""
    if keys.model is not None:
        return keys.model
    for place in (folder / name, Path(name)):
        for path in (place / "config.json", place):
            if path.suffix == ".json" and is_file(path):
                return str(path)
    entry = hub_model(name)
    if entry is None:
        raise SourceError(
            f"the configuration of the model {name[:100]!r} is not known here, and nothing is downloaded. "
            f"{did_you_mean(name.lower(), hub_models())}Give --set model=hf/NAME (foretell models hf), or the path of its config.json."
        )
    return f"hf/{entry['like']}" if len(entry) == 1 else entry
