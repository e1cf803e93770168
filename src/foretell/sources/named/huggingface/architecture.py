"""An architecture of Hugging Face: a model class and its configuration, never downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers

from foretell.errors import SourceError, WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model class with its configuration, as the table or a config.json gives it."""

    name: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()  # entries that are None, which TOML cannot say
    task: str | None = None  # where the library's registries do not tell
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of settings
    image_tokens: int = 0  # positions an image takes in the text, for vision-language models

    @property
    def model_class(self) -> Any:
        return getattr(transformers, self.model)

    def configured(self, **changes: Any) -> Any:
        """The configuration with some entries changed; entries it does not know, and None, are left out."""
        config_class = self.model_class.config_class
        known = {name: value for name, value in changes.items() if value is not None}
        for name in list(known):
            usual = entry(config_class(), name)
            if usual is None:
                del known[name]
            elif isinstance(usual, list | tuple):  # some want an image's height and width
                known[name] = [known[name]] * len(usual)
        spelt = {getattr(config_class, "attribute_map", {}).get(name, name): value for name, value in known.items()}
        entries = {**self.config, **dict.fromkeys(self.unset), **spelt}
        if "layer_types" in self.config and "num_hidden_layers" in known:
            entries["layer_types"] = list(self.config["layer_types"])[: known["num_hidden_layers"]]
        try:
            config = config_class.from_dict(entries)
        except Exception as problem:  # each library class checks in its own way
            how = f" with {', '.join(f'{k}={v}' for k, v in known.items())}" if known else ""
            raise SourceError(f"{self.name} cannot be configured{how}: {problem}") from problem
        for part in (config, text_part(config)):
            if hasattr(part, "use_cache"):
                part.use_cache = False
        if entry(config, "is_encoder_decoder") and entry(config, "decoder_start_token_id") is None:
            config.decoder_start_token_id = 0  # which token it is changes nothing; shifting the labels needs one
        return config

    def configured_for_text(self, seq: int, layers: int | None = None, **changes: Any) -> Any:
        """A configuration for this length: models with a table of positions are built with as many as it takes."""
        config = self.configured(num_hidden_layers=layers, **changes)
        if 0 < (entry(config, "max_position_embeddings") or 0) < seq:
            config = self.configured(num_hidden_layers=layers, max_position_embeddings=seq, **changes)
        return config

    def built(self, config: Any, checkpointing: bool) -> Any:
        model = self.model_class(config)
        if checkpointing:
            if not model.supports_gradient_checkpointing:
                raise WorkloadError(f"{self.model} has no gradient checkpointing of its own. Leave out checkpointing.")
            model.gradient_checkpointing_enable()
        return model


def text_part(config: Any) -> Any:
    """The configuration of what reads the text; transformers before 4.41 has none of its own for it."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def entry(config: Any, name: str) -> Any:
    """An entry of a configuration, or None where it has none."""
    try:
        return getattr(config, name, None)
    except NotImplementedError:  # some say so when asked for a limit they do not have
        return None
