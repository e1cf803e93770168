"""Tokenizers by name: of the model's vocabulary and special tokens, about four letters a token."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.files.line_parts import WORDS
from foretell.capture.script.pretend.files.words import size_of
from foretell.capture.script.pretend.hub import names
from foretell.capture.script.session import Session
from foretell.errors import ForetellError

_FEW_WORDS: Final = 64  # special ones alone
_PIECE: Final = r" ?[^\s]{1,4}|\s"
_UNLIMITED: Final = int(1e30)
# Tokens that a tokenizer knows, where its model has room for more: by type of model and size of its vocabulary.
_KNOWN_WORDS: Final[Mapping[tuple[str, int], int]] = {
    ("t5", 32128): 32100, ("opt", 50272): 50265, ("bloom", 250880): 250680, ("gpt_neox", 50304): 50277, ("phi", 51200): 50295,
    ("gpt_neox", 50432): 50277, ("gpt_neox", 50688): 50277, ("qwen2", 151936): 151665, ("qwen2", 152064): 151665,
    ("qwen3", 151936): 151669, ("deberta-v2", 128100): 128001, ("gptj", 50400): 50257, ("phi3", 32064): 32011,
    ("codegen", 51200): 50295, ("mt5", 250112): 250100, ("gpt_neox", 50280): 50277,
}  # fmt: skip
# Names of special tokens as their families write them, and how a text is wrapped in them.
_BERT: Final = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
_ROBERTA: Final = {
    "bos": "<s>",
    "cls": "<s>",
    "pad": "<pad>",
    "eos": "</s>",
    "sep": "</s>",
    "unk": "<unk>",
    "mask": "<mask>",
}
_LLAMA: Final = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
_END: Final = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"}
_T5: Final = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
_CLIP: Final = {"bos": "<|startoftext|>", "eos": "<|endoftext|>", "pad": "<|endoftext|>", "unk": "<|endoftext|>"}
_QWEN: Final = {"eos": "<|im_end|>", "pad": "<|endoftext|>"}
_LLAMA3: Final = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}
_SPECIAL: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    (r"bert|electra|mpnet|layoutlm$|distilbert|mobilebert|albert|funnel|splinter|tapas|roc_bert", _BERT),
    (r".*roberta.*|camembert|bart|mbart|longformer|led|deberta|layoutlmv3|esm|xlm.*|m2m_100|nllb|big_bird|marian|xglm", _ROBERTA),
    (r"deberta-v2|xlnet", _BERT), (r".*t5|pegasus.*|switch_.*", _T5), (r"clip.*|owlvit|.*clip.*", _CLIP),
    (r"qwen.*", _QWEN), (r"opt", {"bos": "</s>", "eos": "</s>", "pad": "<pad>", "unk": "</s>"}),
    (r"bloom|gemma.*", {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}),
    (r"whisper", {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|endoftext|>"}),
    (r"wav2vec2.*|hubert|wavlm|sew.*|unispeech.*|data2vec-audio", {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}),
    (r"gpt.*|codegen|phi|starcoder2|stablelm|mpt|falcon|rwkv|mamba2?", _END),
    (r".*", _LLAMA),
)  # fmt: skip
_CHAT: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CHATS: Final = re.compile(r"instruct|chat|-it\b|zephyr|qwen|vicuna|smoltalk|hermes|sft|dpo|r1-distill")


def install(session: Session) -> None:
    once_imported("transformers.tokenization_utils_base", lambda module: _concrete(module, session))
    once_imported("transformers.models.auto.tokenization_auto", lambda module: _auto(module, session))


def _concrete(module: Any, session: Session) -> None:
    base = module.PreTrainedTokenizerBase
    load: Callable[..., Any] = base.from_pretrained.__func__

    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        with contextlib.suppress(Exception):
            return with_words(load(cls, name, *args, **kwargs))
        return stand_in(session, str(name), kwargs, cls.__name__)

    base.from_pretrained = classmethod(from_pretrained)
    if is_fifth():
        for part in ("pad", "eos", "bos", "unk", "cls", "sep", "mask"):  # as they were kept before
            setattr(base, f"_{part}_token", property(attrgetter(f"{part}_token")))
    apply = base.apply_chat_template

    def apply_chat_template(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self, "foretell_chat") and self.chat_template is None and kwargs.get("chat_template") is None:
            kwargs["chat_template"] = _CHAT
        return apply(self, *args, **kwargs)

    base.apply_chat_template = apply_chat_template


def is_fifth() -> bool:
    """Whether the library is of its fifth version, or a later one."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


def _auto(module: Any, session: Session) -> None:
    kind = module.AutoTokenizer
    load: Callable[..., Any] = kind.from_pretrained.__func__

    def from_pretrained(cls: Any, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        name = pretrained_model_name_or_path
        with contextlib.suppress(Exception):
            return with_words(load(cls, name, *args, **kwargs))
        return stand_in(session, str(name), kwargs)

    kind.from_pretrained = classmethod(from_pretrained)


def with_words(loaded: Any) -> Any:
    """A tokenizer whose files are not here may come without its vocabulary."""
    words = getattr(getattr(loaded, "tokenizer", loaded), "get_vocab", lambda: range(_FEW_WORDS))()
    if len(words) < _FEW_WORDS and not getattr(loaded, "foretell_chat", False) and not _reads_files(loaded):
        raise ForetellError(f"a tokenizer of {len(words)} words")
    return loaded


def _reads_files(loaded: Any) -> bool:
    """Whether its words are in a file that is here, however few: letters of a language, or bytes."""
    file = getattr(loaded, "vocab_file", None)
    return bool(file)


def stand_in(session: Session, name: str, kwargs: Mapping[str, Any], kind: str = "") -> Any:
    """By the model's name; else by the class that the script loads, or as large as its sources say."""
    try:
        entries = names.entries(name, kwargs.get("subfolder") or "")
        session.stand_in(f"tokenizer of {_shown(name)}", "four letters a token")
    except names.UnknownName:
        if (model_type := _type_of(kind)) is not None:
            entries = names.of_type(model_type, name)
            known = f"{entries.get('vocab_size', 0):,} words"
            session.stand_in(f"tokenizer of {_shown(name)}", f"{known}, as {kind} has it", decides_size=True)
        elif (size := size_of(session.script.arguments, usual=0)) > 0:
            entries = {"model_type": "llama", "vocab_size": size}
            session.stand_in(f"tokenizer of {_shown(name)}", f"{size:,} words", decides_size=True)
        else:
            raise
    return _made(entries, name, kwargs)


def _shown(name: str) -> str:
    """A name, or the last of a path that a library has made of it."""
    return os.path.basename(name.rstrip("/")).replace("--", "/") if name.startswith(tempfile.gettempdir()) else name


def _type_of(kind: str) -> str | None:
    """The type of model whose tokenizers are of that class."""
    from transformers import CONFIG_MAPPING

    wanted = kind.removesuffix("Fast").removesuffix("Tokenizer").lower()
    return next((str(known) for known in CONFIG_MAPPING if re.sub("[-_]", "", known) == wanted), None)


def _made(entries: Mapping[str, Any], name: str, kwargs: Mapping[str, Any]) -> Any:
    import tokenizers
    import transformers

    text = entries.get("text_config") if isinstance(entries.get("text_config"), Mapping) else entries
    kind, room = (
        str(entries.get("model_type")),
        int((text or entries).get("vocab_size") or entries.get("vocab_size") or 32000),
    )
    special = dict(_specials(kind, room))
    known = _KNOWN_WORDS.get((kind, room), room)
    words = _words(dict.fromkeys(special.values()), text or entries, special, known)
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=special.get("unk") or "the"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_PIECE), "isolated")
    plain.post_processor = _wrapped(tokenizers, kind, special, words)
    given = {
        k: v
        for k, v in names.without_hub_options(kwargs).items()
        if k not in ("use_fast", "legacy", "config", "tokenizer_type")
    }
    longest = _longest(kind, text or entries)
    settings = {f"{part}_token": word for part, word in special.items()} | {"model_max_length": longest} | given
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, name_or_path=name, **settings)
    made.foretell_chat = True
    made.chat_template = _CHAT if _CHATS.search(name.lower()) else None
    return made


def _specials(kind: str, room: int) -> Mapping[str, str]:
    if kind == "llama" and room > 100_000:
        return _LLAMA3
    if kind == "llama" and room in (49152, 49280):
        return _END
    return next(special for pattern, special in _SPECIAL if re.fullmatch(pattern, kind))


def _words(
    special: Mapping[str, None], entries: Mapping[str, Any], parts: Mapping[str, str], count: int
) -> dict[str, int]:
    """Every token with its number; special ones where the configuration says that they are."""
    places: dict[str, int] = {}
    for part, word in parts.items():
        place = entries.get(f"{part}_token_id")
        if isinstance(place, int) and 0 <= place < count and place not in places.values():
            places.setdefault(word, place)
    free = (i for i in range(count) if i not in set(places.values()))
    pieces = dict.fromkeys(re.findall(_PIECE, WORDS))
    letters = [*special, *pieces, *(chr(i) for i in range(32, 127)), "\n"]
    for word in dict.fromkeys(letters):
        if word not in places:
            places[word] = next(free)
    return places | {f"<{i}>": i for i in free}


def _wrapped(tokenizers: Any, kind: str, special: Mapping[str, str], words: Mapping[str, int]) -> Any:
    """What a text begins and ends with."""
    if "cls" in special:
        start, end = special["cls"], special["sep"]
        pair = f"{start} $A {end} $B:1 {end}:1"
    elif "bos" in special and kind.startswith(("llama", "mistral", "mixtral", "gemma", "opt", "clip", "phi3")):
        start, end = special["bos"], special["eos"] if kind.startswith("clip") else ""
        pair = f"{start} $A {start} $B:1"
    elif kind.endswith("t5") or kind.startswith(("pegasus", "switch")):
        start, end, pair = "", special["eos"], f"$A {special['eos']} $B:1 {special['eos']}:1"
    else:
        return None
    used = [(word, words[word]) for word in dict.fromkeys((start, end)) if word]
    return tokenizers.processors.TemplateProcessing(single=f"{start} $A {end}".strip(), pair=pair, special_tokens=used)


def _longest(kind: str, entries: Mapping[str, Any]) -> int:
    """Texts that are cut to what the model takes: by those with a table of positions."""
    if kind.endswith("t5"):
        return 512
    found = entries.get("max_position_embeddings") or entries.get("n_positions")
    if not isinstance(found, int) or kind.startswith(("llama", "mistral", "mixtral", "opt", "bloom")):
        return _UNLIMITED
    return found - 2 if kind in ("roberta", "xlm-roberta", "camembert") else found
