"""torchtext, whose last version does not load beside the torch of today: its fields, iterators, vocabularies and sets.

Scripts of many years are written with it. What is here has its faces of both times: `Field` and `BucketIterator`, and
iterators with `build_vocab_from_iterator`.
"""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from foretell.capture.script.imports import provide
from foretell.capture.script.pretend.texts import fields, iterators, sets, vocabularies
from foretell.capture.script.session import Session

_MARKS: Final = re.compile(r"([.,!?()'\";])")
_FORMER: Final[dict[str, Any]] = {
    **{kind.__name__: kind for kind in (fields.Field, fields.LabelField, fields.RawField, fields.NestedField)},
    **{kind.__name__: kind for kind in (fields.Example, fields.Dataset, fields.TabularDataset, fields.ReversibleField)},
    **{kind.__name__: kind for kind in (iterators.Batch, iterators.Iterator, iterators.BucketIterator, iterators.BPTTIterator)},
    "interleave_keys": lambda a, b: a * 100_000 + b, "batch": iterators.batches, "pool": iterators.pool,
}  # fmt: skip


def install(session: Session) -> None:
    if session.script.fake_data:
        sets.SESSION.append(session)
        contents = _contents()
        provide(lambda name: name in contents, lambda name: _module(name, contents), first=True, to_everyone=True)


def _contents() -> dict[str, Mapping[str, Any]]:
    words: dict[str, Any] = {
        **{kind.__name__: kind for kind in vocabularies.VECTORS}, "Vocab": vocabularies.Vocab,
        "build_vocab_from_iterator": vocabularies.build_vocab_from_iterator, "vocab": vocabularies.vocab,
        "pretrained_aliases": vocabularies.Aliases(),
    }  # fmt: skip
    tools: dict[str, Any] = {"get_tokenizer": get_tokenizer, "ngrams_iterator": _ngrams, **_FORMER}
    known = {**sets.SETS, **{kind.__name__: kind for kind in sets.KINDS}}
    metrics: dict[str, Any] = {"bleu_score": lambda *args, **kwargs: 0.0}
    functional: dict[str, Any] = {"to_map_style_dataset": lambda iterator: list(iterator)}
    found: dict[str, Mapping[str, Any]] = {
        "torchtext": {"__version__": "0.8.1", "disable_torchtext_deprecation_warning": lambda: None},
        "torchtext.legacy": {}, "torchtext.functional": {}, "torchtext.utils": {}, "torchtext.data.functional": functional,
    }  # fmt: skip
    for start in ("torchtext", "torchtext.legacy"):
        found |= {
            f"{start}.data": _FORMER | tools | metrics | functional,
            f"{start}.vocab": words,
            f"{start}.datasets": known,
        }
        for part in ("field", "iterator", "batch", "dataset", "example", "utils", "metrics"):
            found[f"{start}.data.{part}"] = tools | metrics
        for part in ("imdb", "translation", "language_modeling", "sst", "snli", "trec", "sequence_tagging"):
            found[f"{start}.datasets.{part}"] = known
    return found


def _module(name: str, contents: Mapping[str, Mapping[str, Any]]) -> types.ModuleType:
    module: Any = types.ModuleType(name)
    vars(module).update(contents[name])

    def part(wanted: str) -> Any:
        if f"{name}.{wanted}" in contents:
            return importlib.import_module(f"{name}.{wanted}")
        raise AttributeError(f"module '{name}' has no attribute '{wanted}'", name=wanted, obj=module)

    module.__getattr__ = part
    return module  # type: ignore[no-any-return]


def get_tokenizer(tokenizer: Any, language: str = "en") -> Callable[[str], list[str]]:
    """As torchtext's: a function by its name; languages of spaCy by plain splitting."""
    if callable(tokenizer):
        return tokenizer  # type: ignore[no-any-return]
    if tokenizer is None:
        return str.split
    return lambda text: _MARKS.sub(r" \1 ", text.lower() if tokenizer == "basic_english" else text).split()


def _ngrams(tokens: list[str], ngrams: int) -> Iterator[str]:
    for size in range(1, ngrams + 1):
        for i in range(len(tokens) - size + 1):
            yield " ".join(tokens[i : i + size])


fields.TOKENIZERS.append(get_tokenizer)
