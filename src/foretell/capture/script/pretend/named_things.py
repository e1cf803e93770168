"""Small things that scripts fetch by name: metrics, encodings, corpora, pipelines of spaCy, models of torch.hub."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.files.line_parts import WORDS
from foretell.capture.script.pretend.files.words import Words
from foretell.capture.script.pretend.lacking import StandInError
from foretell.capture.script.session import Session

# What each metric answers.
_RESULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "accuracy": ("accuracy",), "f1": ("f1",), "precision": ("precision",), "recall": ("recall",), "glue": ("accuracy", "f1"),
    "seqeval": ("overall_precision", "overall_recall", "overall_f1", "overall_accuracy"), "squad": ("exact_match", "f1"),
    "squad_v2": ("exact", "f1", "exact_match"), "rouge": ("rouge1", "rouge2", "rougeL", "rougeLsum"), "bleu": ("bleu",),
    "sacrebleu": ("score", "bleu"), "wer": ("wer",), "cer": ("cer",), "perplexity": ("mean_perplexity",), "mse": ("mse",),
    "mean_iou": ("mean_iou", "mean_accuracy", "overall_accuracy"), "pearsonr": ("pearsonr",), "spearmanr": ("spearmanr",),
    "matthews_correlation": ("matthews_correlation",), "meteor": ("meteor",), "bertscore": ("precision", "recall", "f1"),
    "roc_auc": ("roc_auc",), "super_glue": ("accuracy", "f1"), "exact_match": ("exact_match",), "mae": ("mae",),
}  # fmt: skip
_PLAIN: Final = ("wer", "cer")  # which answer a number
_PER_CLASS: Final = ("per_category_iou", "per_category_accuracy")
# Tokens of tiktoken's encodings.
_ENCODINGS: Final = {"gpt2": 50257, "r50k_base": 50257, "p50k_base": 50281, "p50k_edit": 50284, "cl100k_base": 100277,
                     "o200k_base": 200019}  # fmt: skip
_LLAMA: Final = 128_000  # merges, special tokens apart
_QWEN: Final = 151_643
_OF_MODELS: Final = {"gpt-2": "gpt2", "gpt2": "gpt2", "text-davinci": "p50k_base", "gpt-3.5": "cl100k_base",
                     "gpt-4o": "o200k_base", "gpt-4": "cl100k_base", "text-embedding": "cl100k_base"}  # fmt: skip


def install(session: Session) -> None:
    once_imported("evaluate", lambda module: _metrics(module, "load", session))
    once_imported("evaluate.loading", lambda module: _metrics(module, "load", session))
    for name in ("datasets", "datasets.load"):
        once_imported(name, lambda module: vars(module).setdefault("load_metric", _maker(session)))
    once_imported("tiktoken", lambda module: _encodings(module, session))
    once_imported("tiktoken.registry", lambda module: _encodings(module, session))
    once_imported("tiktoken.load", lambda module: _ranks(module, session))
    once_imported("nltk", lambda module: replace(module, "download", lambda *args, **kwargs: True))
    once_imported("nltk.tokenize", _sentences)
    once_imported("spacy", lambda module: _languages(module, session))
    once_imported("torch.hub", lambda module: _models(module, session))


# Metrics


class Metric:
    """Takes any predictions, and answers zeros under the metric's own names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        if self.name in _PLAIN:
            return 0.0
        found: dict[str, Any] = dict.fromkeys(_RESULTS.get(self.name, (self.name,)), 0.0)
        if self.name == "mean_iou":
            found |= {key: [0.0] * int(kwargs.get("num_labels") or 1) for key in _PER_CLASS}
        return found

    def add_batch(self, *args: Any, **kwargs: Any) -> None:
        return None

    add = add_batch


def _maker(session: Session) -> Callable[..., Metric]:
    def make(path: Any, *args: Any, **kwargs: Any) -> Metric:
        name = str(path).replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py")
        session.stand_in(f"metric {name}")
        return Metric(name)

    return make


def _metrics(module: Any, name: str, session: Session) -> None:
    load, make = getattr(module, name), _maker(session)

    def either(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            return load(*args, **kwargs)
        return make(*args, **kwargs)

    replace(module, name, either)
    combine = getattr(module, "combine", None)
    if combine is not None:
        replace(module, "combine", lambda metrics, *args, **kwargs: make(next(iter(metrics))))


# Encodings of texts


class Encoding(Words):
    """One of tiktoken's own."""

    def __init__(self, name: str) -> None:
        size = _ENCODINGS[name]
        super().__init__(name, size, 50256 if size < 60_000 else size - 20)


def _encodings(module: Any, session: Session) -> None:
    def made(name: str) -> Encoding:
        if name not in _ENCODINGS:
            raise StandInError("tiktoken", f"encoding {name!r}", f"It knows {', '.join(_ENCODINGS)}.")
        session.stand_in(f"encoding {name} of tiktoken")
        return Encoding(name)

    def of_model(name: str) -> Encoding:
        return made(next((encoding for start, encoding in _OF_MODELS.items() if name.startswith(start)), "cl100k_base"))

    for name, make in {"get_encoding": made, "encoding_for_model": of_model}.items():
        if (load := getattr(module, name, None)) is not None:

            def either(wanted: str, load: Any = load, make: Any = make) -> Any:
                with contextlib.suppress(Exception):
                    return load(wanted)
                return make(wanted)

            replace(module, name, either)


def _ranks(module: Any, session: Session) -> None:
    """Files of merges: bytes, what our own words are put together from, and as many others as Llama 3 or Qwen has."""
    read = module.load_tiktoken_bpe

    def either(path: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            return read(path, *args, **kwargs)
        size = _QWEN if "qwen" in str(path).lower() else _LLAMA
        session.stand_in(f"tokenizer {path}", f"{size:,} merges", decides_size=True)
        pieces = dict.fromkeys(
            piece[:n].encode() for piece in re.findall(r" ?[^\s]+", WORDS) for n in range(2, len(piece) + 1)
        )
        known = [*(bytes([i]) for i in range(256)), *pieces]
        return {
            piece: i for i, piece in enumerate([*known, *(b"\xff" + str(i).encode() for i in range(size - len(known)))])
        }

    replace(module, "load_tiktoken_bpe", either)


# Languages


def _sentences(module: Any) -> None:
    """nltk's own need a file of rules."""
    for name, split in {"word_tokenize": str.split, "sent_tokenize": lambda text: text.split(". ")}.items():
        if (read := getattr(module, name, None)) is not None:

            def either(text: str, *args: Any, read: Any = read, split: Any = split, **kwargs: Any) -> Any:
                try:
                    return read(text, *args, **kwargs)
                except LookupError:
                    return split(text)

            replace(module, name, either)


def _languages(spacy: Any, session: Session) -> None:
    load = spacy.load

    def either(name: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(OSError):
            return load(name, *args, **kwargs)
        session.stand_in(f"pipeline {name} of spaCy", "its rules of words alone")
        return spacy.blank(str(name)[:2])

    replace(spacy, "load", either)


# torch.hub


def _models(hub: Any, session: Session) -> None:
    load, names = hub.load, hub.list

    def either(repo_or_dir: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(repo_or_dir, model, *args, **kwargs)
        except Exception as error:
            if isinstance(error, StandInError):
                raise
            return _by_library(str(repo_or_dir), str(model), args, kwargs, session)

    def listed(github: Any, *args: Any, **kwargs: Any) -> Any:
        """Those that timm has, by the repository's name."""
        try:
            return names(github, *args, **kwargs)
        except Exception:
            if importlib.util.find_spec("timm") is None:
                return []
            import timm

            return timm.list_models(str(github).partition(":")[0].rpartition("/")[2] + "*")

    replace(hub, "load", either)
    replace(hub, "list", listed)
    import torch

    torch.hub.load, torch.hub.list = hub.load, hub.list


def _by_library(repo: str, model: str, args: Any, kwargs: dict[str, Any], session: Session) -> Any:
    """Models that torchvision or timm have as well."""
    for own in ("source", "trust_repo", "force_reload", "verbose", "skip_validation", "pretrained"):
        kwargs.pop(own, None)
    session.stand_in(f"{model} of {repo} (torch.hub)")
    if repo.startswith("pytorch/vision"):
        import torchvision

        return getattr(torchvision.models, model)(*args, **kwargs)
    if "timm" in sys.modules or not repo.startswith("facebookresearch/dinov2"):
        with contextlib.suppress(Exception):
            import timm

            return timm.create_model(_TIMM.get(model, model), **kwargs)
    raise StandInError(
        f"torch.hub's {repo}",
        f"model {model!r}",
        "Clone the repository, and let the script load it with source='local'.",
    )


_TIMM: Final = {
    "deit_tiny_patch16_224": "deit_tiny_patch16_224", "dino_vits16": "vit_small_patch16_224", "dino_vitb16": "vit_base_patch16_224",
    "resnext101_32x8d_wsl": "resnext101_32x8d",
}  # fmt: skip
