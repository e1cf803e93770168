"""diffusers' models by name: parts of published ones from what their configurations say."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session
from foretell.errors import WorkloadError

_TEXT_PARTS: Final = {f"tokenizer{n}": f"text_encoder{n}" for n in ("", "_2", "_3")}
_TYPES: Final = ("torch_dtype", "dtype")


class UnknownParts(WorkloadError):
    """A diffusion model that nobody here knows."""


def install(session: Session) -> None:
    once_imported("diffusers.configuration_utils", lambda module: _configurations(module, session))
    once_imported("diffusers.models.modeling_utils", lambda module: _models(module, session))
    once_imported("diffusers.pipelines.pipeline_utils", lambda module: _pipelines(module, session))


def text_part(name: str, subfolder: str) -> dict[str, Any] | None:
    """The configuration of a text encoder, or of what a tokenizer is for; None of a model that has none."""
    part = _TEXT_PARTS.get(subfolder, subfolder)
    entries = _parts(name).get(part) if part.startswith("text_encoder") else None
    return None if entries is None else dict(entries)


def _parts(name: str) -> Mapping[str, Any]:
    last = name.lower().rstrip("/").rpartition("/")[2]
    table = _table()
    for entry in table.values():
        if any(re.fullmatch(pattern.lower(), last) for pattern in entry["names"]):
            return _whole(entry, table)
    return {}


def _whole(entry: Mapping[str, Any], table: Mapping[str, Any]) -> Mapping[str, Any]:
    like = _whole(table[entry["like"]], table) if "like" in entry else {}
    parts: dict[str, Any] = {key: dict(value) for key, value in like.items() if isinstance(value, Mapping)}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            same = parts.get(key, {}).get("_class_name") == value.get(
                "_class_name", parts.get(key, {}).get("_class_name")
            )
            parts[key] = {**(parts.get(key, {}) if same or key == "scheduler" else {}), **value}
    return parts | {key: value for key, value in entry.items() if key == "whole"}


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("diffusion.toml").read_text(encoding="utf-8"))


def _configuration(session: Session, name: str, subfolder: str, kind: str) -> dict[str, Any]:
    parts = _parts(name)
    part = subfolder or parts.get("whole") or ("scheduler" if kind.endswith("Scheduler") else "")
    if part not in parts:
        raise UnknownParts(
            f"the script loads {name!r}{f' ({subfolder})' * bool(subfolder)}, which is not on this machine, and Foretell does not "
            f"know the configuration of its {kind}. Download its config.json files (no weights) into folders of the same names "
            "and give the script their folder's path in place of the name."
        )
    session.stand_in(f"configuration of {name} {subfolder}".rstrip())
    return dict(parts[part])


def _configurations(module: Any, session: Session) -> None:
    owner = module.ConfigMixin
    read: Callable[..., Any] = owner.load_config.__func__

    def load_config(cls: Any, /, pretrained_model_name_or_path: Any, return_unused_kwargs: bool = False, return_commit_hash: bool = False,
                    **kwargs: Any) -> Any:  # fmt: skip
        name = pretrained_model_name_or_path
        try:
            return read(
                cls, name, return_unused_kwargs=return_unused_kwargs, return_commit_hash=return_commit_hash, **kwargs
            )
        except Exception:
            config = _configuration(session, str(name), kwargs.pop("subfolder", None) or "", cls.__name__)
            extra = ([kwargs] if return_unused_kwargs else []) + ([None] if return_commit_hash else [])
            return (config, *extra) if extra else config

    owner.load_config = classmethod(load_config)


def _models(module: Any, session: Session) -> None:
    owner = module.ModelMixin
    load: Callable[..., Any] = owner.from_pretrained.__func__

    def from_pretrained(cls: Any, /, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        try:
            return load(cls, name, **kwargs)
        except Exception as error:
            if isinstance(error, UnknownParts):
                raise
            config = cls.load_config(name, subfolder=kwargs.get("subfolder"))
            own = {key: value for key, value in kwargs.items() if key in config}
            made = cls.from_config(config, **own)
            session.stand_in(f"weights of {name} {kwargs.get('subfolder') or ''}".rstrip())
            dtype = next((kwargs[key] for key in _TYPES if kwargs.get(key) is not None), None)
            made.eval()
            return made if dtype is None else made.to(dtype)

    owner.from_pretrained = classmethod(from_pretrained)


def _pipelines(module: Any, session: Session) -> None:
    """A pipeline of which all parts are known."""
    owner = module.DiffusionPipeline
    load: Callable[..., Any] = owner.from_pretrained.__func__

    def from_pretrained(cls: Any, /, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        try:
            return load(cls, name, **kwargs)
        except Exception:
            return _pipeline(cls, str(name), kwargs)

    owner.from_pretrained = classmethod(from_pretrained)


def _pipeline(cls: Any, name: str, kwargs: Mapping[str, Any]) -> Any:
    import inspect

    import diffusers
    import transformers

    parts = _parts(name)
    if "unet" not in parts:
        raise UnknownParts(
            f"the script loads the pipeline {name!r}, which is not on this machine, and Foretell does not know its parts. "
            "Let it load the parts that it trains by themselves, from folders with their config.json."
        )
    types = {key: value for key, value in kwargs.items() if key in _TYPES}
    kind = cls if cls.__name__ != "DiffusionPipeline" else diffusers.StableDiffusionPipeline
    made: dict[str, Any] = {}
    for part in inspect.signature(kind.__init__).parameters:
        if part in kwargs:
            made[part] = kwargs[part]
        elif part.startswith("tokenizer") and _TEXT_PARTS[part] in parts:
            made[part] = transformers.CLIPTokenizer.from_pretrained(name, subfolder=part)  # nosec B615  # made here
        elif part.startswith("text_encoder") and part in parts:
            made[part] = getattr(transformers, parts[part]["architectures"][0]).from_pretrained(
                name, subfolder=part, **types
            )
        elif part in parts:
            loaded = getattr(diffusers, parts[part]["_class_name"])
            made[part] = loaded.from_pretrained(name, subfolder=part, **({} if part == "scheduler" else types))
        elif part in ("safety_checker", "feature_extractor", "image_encoder"):
            made[part] = None
    if "requires_safety_checker" in inspect.signature(kind.__init__).parameters:
        made["requires_safety_checker"] = False
    return kind(**made)
