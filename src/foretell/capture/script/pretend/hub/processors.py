"""Processors of pictures and sounds by name: the library's own defaults, with sizes of the model's configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.hub import names
from foretell.capture.script.session import Session
from foretell.errors import ForetellError

_MISSING: Final = (OSError, ValueError, ForetellError)
_GETTERS: Final[Mapping[str, tuple[str, str]]] = {
    "transformers.image_processing_base": ("ImageProcessingMixin", "get_image_processor_dict"),
    "transformers.feature_extraction_utils": ("FeatureExtractionMixin", "get_feature_extractor_dict"),
    "transformers.processing_utils": ("ProcessorMixin", "get_processor_dict"),
    "transformers.video_processing_utils": ("BaseVideoProcessor", "get_video_processor_dict"),
}


def install(session: Session) -> None:
    for module, (kind, getter) in _GETTERS.items():
        once_imported(module, lambda m, kind=kind, getter=getter: _or_defaults(m, kind, getter, session))  # type: ignore[misc]


def _or_defaults(module: Any, kind: str, getter: str, session: Session) -> None:
    owner = getattr(module, kind)
    read: Callable[..., Any] = getattr(owner, getter).__func__

    def get(cls: Any, /, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        try:
            return read(cls, name, **kwargs)
        except _MISSING:
            entries = names.entries(str(name), kwargs.get("subfolder") or "")
            session.stand_in(f"processor of {name}")
            return _settings(cls, entries), names.without_hub_options(kwargs)

    setattr(owner, getter, classmethod(get))


def _settings(cls: Any, entries: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the class's own defaults: the size of pictures, and the bands of a spectrogram."""
    settings: dict[str, Any] = {}
    picture = entries.get("vision_config") if isinstance(entries.get("vision_config"), Mapping) else entries
    side = (picture or entries).get("image_size")
    if isinstance(side, int) and (usual := _default(cls, "size")) is not None:
        if isinstance(usual, Mapping) and {"height", "width"} <= set(usual):
            settings["size"] = {"height": side, "width": side}
        elif isinstance(usual, Mapping) and set(usual) == {"shortest_edge"} and side == 224:
            settings["size"] = {"shortest_edge": side}
    if isinstance(bands := entries.get("num_mel_bins"), int) and "Whisper" in cls.__name__:
        settings["feature_size"] = bands
    return settings


def _default(cls: Any, name: str) -> Any:
    if (own := getattr(cls, name, None)) is not None and not callable(own):
        return own
    parameter = inspect.signature(cls.__init__).parameters.get(name)
    default = None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default
    return default if default is not None else {"height": 224, "width": 224} if "ViT" in cls.__name__ else None
