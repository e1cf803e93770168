"""Names in transformers' modules that newer versions do not have, as what they became or as what little they did."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.nothing import Nothing
from foretell.capture.script.session import Session

# Of the package itself: those that others took the place of.
_BECAME: Final[tuple[tuple[str, str], ...]] = (
    (r"(\w+)FeatureExtractor", r"\1ImageProcessor"), (r"(\w+)TokenizerFast", "PreTrainedTokenizerFast"),
    (r"MODEL_WITH_LM_HEAD_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING"), (r"AutoModelWithLMHead", "AutoModelForCausalLM"),
)  # fmt: skip


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _as_it_is(function: Any) -> Any:
    return function


def filtered(
    logits: torch.Tensor, top_k: int = 0, top_p: float = 1.0, filter_value: float = -float("inf"), **how: Any
) -> Any:
    """`top_k_top_p_filtering`, as far as its shapes go."""
    if top_k > 0:
        least = torch.topk(logits, min(top_k, logits.size(-1)))[0][..., -1, None]
        logits = logits.masked_fill(logits < least, filter_value)
    return logits


def install(session: Session) -> None:
    once_imported("transformers", _package)
    for module, names in _FORMER.items():
        once_imported(f"transformers.{module}", functools.partial(_add_all, names))
    once_imported(
        "transformers.trainer_utils", lambda module: _add(module, "EvaluationStrategy", module.IntervalStrategy)
    )


def _add_all(names: Mapping[str, Any], module: Any) -> None:
    for name, value in names.items():
        _add(module, name, value)


def _add(module: Any, name: str, value: Any) -> None:
    """Unless the module has it. One that imports its parts as they are asked for is not asked: others may be half imported."""
    if name in dir(module):
        return
    try:
        found = type(module) is ModuleType and hasattr(module, name)
    except ImportError:
        found = False
    if not found:
        setattr(module, name, value)


def _package(module: Any) -> None:
    """It imports its parts as they are asked for: what it does not have is looked for under its new name."""
    kind: Any = type(module)
    find = kind.__getattr__

    def getattr_(self: Any, wanted: str) -> Any:
        try:
            return find(self, wanted)
        except AttributeError:
            if wanted in _TEXTS:
                return _Texts
            for pattern, now in _BECAME:
                if found := re.fullmatch(pattern, wanted):
                    return find(self, found.expand(now))
            raise

    kind.__getattr__ = getattr_


_TEXTS: Final = ("LineByLineTextDataset", "TextDataset")


class _Texts(torch.utils.data.Dataset[Any]):
    """A text as blocks of tokens, as both data sets had it."""

    def __init__(self, tokenizer: Any, file_path: str, block_size: int, *args: Any, **kwargs: Any) -> None:
        with open(file_path, encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
        self.examples = tokenizer(lines, add_special_tokens=True, truncation=True, max_length=block_size)["input_ids"]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> Any:
        return {"input_ids": torch.tensor(self.examples[i], dtype=torch.long)}


_HELPERS: Final[Mapping[str, Any]] = {
    "cached_property": property, "torch_required": _as_it_is, "is_torch_tpu_available": _no, "is_offline_mode": lambda: True,
    "TRANSFORMERS_CACHE": os.path.expanduser("~/.cache/huggingface/hub"), "is_tf_available": _no, "is_flax_available": _no,
    "add_start_docstrings_to_callable": lambda *text, **how: _as_it_is, "get_full_repo_name": lambda name, *a, **kw: f"user/{name}",
}  # fmt: skip
_FORMER: Final[Mapping[str, Mapping[str, Any]]] = {
    "file_utils": _HELPERS, "utils": _HELPERS, "training_args": {"torch_required": _as_it_is, "default_logdir": lambda: "runs"},
    "trainer_pt_utils": {n: Nothing(n) for n in ("SequentialDistributedSampler", "DistributedTensorGatherer")},
    "trainer_utils": {n: Nothing(n) for n in ("ShardedDDPOption", "default_hp_space")}, "tokenization_utils": {"Trie": Nothing("Trie")},
    "integrations": {"is_fairscale_available": _no, "hp_params": lambda trial: {}},
    "generation.utils": {"top_k_top_p_filtering": filtered, "SampleOutput": Any, "GreedySearchOutput": Any},
    "models.bert.modeling_bert": dict.fromkeys(("BERT_INPUTS_DOCSTRING", "BERT_START_DOCSTRING"), ""),
}  # fmt: skip
