"""transformers' models by name: built from their configuration, with the numbers that they begin with."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend import overlay
from foretell.capture.script.pretend.files import contents
from foretell.capture.script.pretend.hub import names, processors, tokenizers
from foretell.capture.script.pretend.hub.quantized import quantize
from foretell.capture.script.session import Session
from foretell.errors import ForetellError

_MISSING: Final = (OSError, ValueError, ForetellError)
_UNREADABLE: Final = (*_MISSING, ImportError, RuntimeError)  # quantizers look for a GPU before the weights
_LOADING: Final = frozenset(
    """device_map max_memory low_cpu_mem_usage quantization_config load_in_4bit load_in_8bit torch_dtype dtype use_safetensors
    variant offload_folder offload_state_dict ignore_mismatched_sizes output_loading_info from_tf from_flax state_dict
    attn_implementation use_flash_attention_2 weights_only tp_plan key_mapping adapter_kwargs generation_config _fast_init
    _from_auto adapter_name""".split()
)


def install(session: Session) -> None:
    contents.SETTINGS[:] = [lambda path: _config_file(session, path)]
    for name in ("transformers.configuration_utils", "transformers.modeling_utils"):
        adapt = _configurations if name.endswith("configuration_utils") else _models
        once_imported(name, lambda module, adapt=adapt: adapt(module, session))  # type: ignore[misc]
    once_imported("transformers.generation.configuration_utils", _generation)
    once_imported("huggingface_hub.constants", lambda module: setattr(module, "HF_HUB_OFFLINE", True))
    tokenizers.install(session)
    processors.install(session)


def _configurations(module: Any, session: Session) -> None:
    kind = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
    read: Callable[..., Any] = kind._get_config_dict.__func__

    def get_config_dict(cls: Any, /, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        found: Any = None
        missing: Exception | None = None
        try:
            found = read(cls, name, **kwargs)
            if found[0] is not None:
                return found
        except _MISSING as error:
            if kwargs.get("gguf_file"):
                raise
            missing = error
        try:
            entries = _entries(session, cls, str(name), kwargs.get("subfolder") or "")
        except names.UnknownName:
            if not os.path.isdir(str(name)):
                raise
            if missing is not None:  # it is here: a tokenizer's folder, say, which needs none
                raise missing from None
            return found
        return entries, names.without_hub_options(kwargs)

    kind._get_config_dict = classmethod(get_config_dict)
    read_file: Callable[..., Any] = kind._dict_from_json_file.__func__

    def dict_from_json_file(cls: Any, json_file: Any) -> Any:
        if overlay.is_there(json_file):
            return read_file(cls, json_file)
        return _entries(session, cls, os.path.dirname(os.fspath(json_file)) or os.fspath(json_file), "")

    kind._dict_from_json_file = classmethod(dict_from_json_file)


def _config_file(session: Session, path: str) -> str | None:
    """A known model's config.json, which the script reads by itself from a folder of its name."""
    folder, name = os.path.split(path)
    if name != "config.json" or not folder:
        return None
    try:
        entries = names.entries(folder)
    except ForetellError:
        return None
    session.stand_in(f"configuration {path}")
    return json.dumps(entries, default=str)


def _entries(session: Session, cls: Any, name: str, subfolder: str) -> dict[str, Any]:
    """By the name, by one that it has in it, or by the class that the script loads."""
    model_type = getattr(cls, "model_type", "")
    try:
        entries = names.entries(name, subfolder)
    except names.UnknownName:
        if not model_type:
            raise
        entries = names.of_type(model_type, name)
        session.stand_in(f"configuration of {name}", f"as {cls.__name__} has it by itself", decides_size=True)
        return entries
    similar = "" if subfolder else names.alike(name)
    session.stand_in(f"configuration of {name}", f"as of {similar}" * bool(similar), decides_size=bool(similar))
    return entries


def _generation(module: Any) -> None:
    kind = module.GenerationConfig
    read: Callable[..., Any] = kind.from_pretrained.__func__

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return read(cls, *args, **kwargs)
        except _MISSING:
            return cls(**names.without_hub_options(kwargs))

    kind.from_pretrained = classmethod(from_pretrained)


def _models(module: Any, session: Session) -> None:
    base = module.PreTrainedModel
    load: Callable[..., Any] = base.from_pretrained.__func__

    def from_pretrained(
        cls: Any, /, pretrained_model_name_or_path: Any = None, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        name = pretrained_model_name_or_path
        given = {} if config is None else {"config": config}
        try:
            return load(cls, name, *args, **given, **kwargs)
        except Exception as error:  # older libraries fail in their own ways where there is no file
            if isinstance(error, names.UnknownName) or (
                os.path.isdir(str(name)) and not isinstance(error, _UNREADABLE)
            ):
                raise
            return _built(session, cls, str(name), config, kwargs)

    base.from_pretrained = classmethod(from_pretrained)


def _built(session: Session, cls: Any, name: str, config: Any, kwargs: Mapping[str, Any]) -> Any:
    own = {key: value for key, value in names.without_hub_options(kwargs).items() if key not in _LOADING}
    if config is None:
        config = cls.config_class.from_pretrained(name, subfolder=kwargs.get("subfolder") or "")
    elif isinstance(config, str):
        config = cls.config_class.from_pretrained(config)
    for key in [key for key in own if hasattr(config, key)]:
        setattr(config, key, own.pop(key))
    _turn_as_before(config, own)
    session.stand_in(f"weights of {name}")
    model = _in_type(cls, config, kwargs, own, session)
    _tie(model)
    model.eval()
    model.name_or_path = config._name_or_path = name
    if (device := kwargs.get("device_map")) is not None:
        model.to("cpu" if device == "cpu" else "cuda")
        model.hf_device_map = {"": 0}
    quantize(model, kwargs)  # last: one of 8 bits refuses to be moved
    loading: dict[str, list[str]] = {
        key: [] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    }
    return (model, loading) if kwargs.get("output_loading_info") else model


def _turn_as_before(config: Any, own: dict[str, Any]) -> None:
    """How positions are turned was said by settings of their own until transformers 5, and is one table since."""
    turned = getattr(config, "rope_parameters", None)
    if isinstance(turned, dict) and "rope_theta" in own:
        turned["rope_theta"] = own.pop("rope_theta")


def _in_type(cls: Any, config: Any, kwargs: Mapping[str, Any], own: Mapping[str, Any], session: Session) -> Any:
    """The model in the type of numbers that the script wants, or that its weights are published in."""
    wanted = (
        kwargs.get("dtype") or kwargs.get("torch_dtype") or ("auto" if tokenizers.is_fifth() else None)
    )  # weights as they are published
    published = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    wanted = published if wanted == "auto" else wanted
    wanted = getattr(torch, wanted, None) if isinstance(wanted, str) else wanted
    attention = kwargs.get("attn_implementation") or getattr(config, "_attn_implementation_internal", None)
    if attention in ("flash_attention_2", "flash_attention_3") or kwargs.get("use_flash_attention_2"):
        session.find_name("kernels", "flash_attn.flash_attn_func")
        attention = "sdpa"
    extra = {} if attention is None else {"attn_implementation": attention}
    # Versions from 4.56 on call it otherwise, and take the former word of a configuration for the same.
    word = "dtype" if tokenizers.is_fifth() or hasattr(type(config), "torch_dtype") else "torch_dtype"
    setattr(config, word, wanted or torch.float32)
    model = cls._from_config(config, **{word: wanted or torch.float32}, **extra, **own)
    return model if wanted is None else model.to(wanted)


def _tie(model: Any) -> None:
    if isinstance(getattr(model, "tie_weights", None), types.MethodType):
        model.tie_weights()
