"""The configuration behind a name of the hub: entries as its config.json has them."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from foretell.capture.script.pretend.hub import diffusion
from foretell.errors import WorkloadError, did_you_mean
from foretell.sources.named.hub import hub_model, hub_models

# What checkpoints of a type of model are published in, where that is not fp32.
_HALVES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpt_neox", "opt", "phi", "bloom", "gpt_bigcode", "gptj"), "float16"),
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gemma3",
         "phi3", "phimoe", "olmo2", "olmoe", "deepseek_v2", "deepseek_v3", "falcon", "smollm3", "granite", "granitemoe",
         "stablelm", "starcoder2", "gpt_oss", "cohere", "cohere2", "glm", "dbrx", "jamba", "nemotron", "qwen2_vl", "qwen2_5_vl",
         "paligemma"),
        "bfloat16",
    ),
}  # fmt: skip
_FP16_LLAMAS: Final = re.compile(r"llama-?[127]|vicuna|alpaca|open_llama")
_FIRST_LLAMAS: Final = re.compile(r"/llama-(7|13|30|65)b(-hf)?$")
_TELLING: Final = 6  # letters of a name that is found in a path
_CHINESE: Final = 21_128  # words of BERTs for Chinese
_OF_HUB: Final = ("cache_dir", "force_download", "proxies", "token", "use_auth_token", "local_files_only", "revision",
                  "trust_remote_code", "subfolder", "_from_pipeline", "_from_auto", "_commit_hash", "resume_download",
                  "gguf_file", "_configuration_file", "code_revision")  # fmt: skip


class UnknownName(WorkloadError):
    """A name of the hub that nobody here knows."""


def alike(name: str) -> str:
    """The known model that a path or a derived name has in it, longest first; nothing where the name itself is known, or none is."""
    if _architecture(name) is not None:
        return ""
    known: dict[str, str] = {}
    for full in (*hub_models(), *_others()):
        known.setdefault(_plain(full.rpartition("/")[2]), full)
    parts = re.split(r"[/\\]", name.lower().rstrip("/\\"))
    for part in map(_plain, parts[1:] if len(parts) == 2 and parts[0] not in (".", "") else reversed(parts)):
        within = [short for short in known if len(short) >= _TELLING and f"-{short}-" in f"-{part}-"]
        begins = [short for short in known if len(part) >= _TELLING and short.startswith(f"{part}-")]
        if within or begins:
            return known[max(within, key=len) if within else begins[0]]
    return ""


def _plain(name: str) -> str:
    """In small letters, with a dash before each number and for every other mark: `Llama3.2` is `llama-3-2`."""
    return re.sub(r"[^a-z0-9]+|(?<=[a-z])(?=[0-9])", "-", name.lower()).strip("-")


def of_type(model_type: str, name: str) -> dict[str, Any]:
    """What the library takes a model of a type to be when nobody says more."""
    from transformers import CONFIG_MAPPING

    entries: dict[str, Any] = CONFIG_MAPPING[model_type]().to_dict()
    if model_type == "bert" and re.search(r"chinese|zh", name.lower()):
        entries["vocab_size"] = _CHINESE
    return {key: value for key, value in entries.items() if value is not None and key != "transformers_version"}


def entries(name: str, subfolder: str = "") -> dict[str, Any]:
    """What the config.json of a model says."""
    if (part := diffusion.text_part(name, subfolder)) is not None:
        return part
    found = _architecture(name) or _architecture(alike(name))
    if found is None:
        raise UnknownName(
            f"the script loads the model {name!r}, which is not on this machine, and Foretell does not know its configuration. "
            f"{did_you_mean(name.lower(), hub_models())}Download its config.json (a few kilobytes, no weights) into a folder and "
            "give the script that folder's path in place of the name."
        )
    config = found.configured()
    entries: dict[str, Any] = config.to_dict()
    entries["architectures"] = entries.get("architectures") or [found.model_class.__name__]
    entries["use_cache"] = True if "use_cache" in entries else entries.get("use_cache")
    if _FIRST_LLAMAS.search(name.lower()):
        entries["pad_token_id"] = 0  # which trainers look up among the tokens
    if (half := _published_in(name, str(entries.get("model_type")))) is not None:
        entries["dtype"] = entries["torch_dtype"] = half
    for part in (value for value in entries.values() if isinstance(value, dict)):
        for own in ("_name_or_path", "output_attentions"):  # which some parts do not take back
            part.pop(own, None)
    for own in (
        "_name_or_path",
        "transformers_version",
        *(("id2label", "label2id") if len(entries.get("id2label") or ()) == 2 else ()),
    ):
        entries.pop(own, None)
    return {key: value for key, value in entries.items() if value is not None or key in found.unset}


def without_hub_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in _OF_HUB}


def _published_in(name: str, model_type: str) -> str | None:
    if model_type == "llama" and _FP16_LLAMAS.search(name.lower()) and "llama-3" not in name.lower():
        return "float16"
    return _HALVES.get(model_type)


def _architecture(name: str) -> Any:
    from foretell.sources.named import huggingface
    from foretell.sources.named.huggingface.architecture import Architecture

    if not name:
        return None
    known = huggingface.architectures()
    last = name.lower().rstrip("/").rpartition("/")[2]
    entry = hub_model(name) or _by_last(last, hub_models())
    if entry is not None:
        like, changes = known[str(entry["like"])], {k: v for k, v in entry.items() if k != "like"}
        return dataclasses.replace(like, name=name, config={**like.config, **changes})
    if (other := _others().get(name.lower()) or _by_last(last, _others())) is not None:
        changes = {k: v for k, v in other.items() if k != "model"}
        return Architecture(name=name, model=str(other["model"]), config=changes)
    return known.get(last)


def _by_last(last: str, table: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The same model under another account."""
    return next((entry for full, entry in table.items() if full.rpartition("/")[2] == last), None)


@cache
def _others() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("models.toml").read_text(encoding="utf-8"))
