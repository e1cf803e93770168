"""Methods of transformers' classes that scripts called, or wrote anew, when they were written."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_PADDING: Final = "_get_padding_truncation_strategies"  # where all ways to encode meet


def install(session: Session) -> None:
    once_imported("transformers.tokenization_utils_base", _tokenizers)
    once_imported("transformers.modeling_utils", lambda module: _models(module.PreTrainedModel))
    once_imported("transformers.trainer", _trainers)


def _add_all(kind: Any, methods: Mapping[str, Any]) -> None:
    for name, method in methods.items():
        if not hasattr(kind, name):
            setattr(kind, name, method)


# Tokenizers


def _tokenizers(module: Any) -> None:
    kind = module.PreTrainedTokenizerBase
    _add_all(kind, _OF_TOKENIZERS)
    decide = getattr(kind, _PADDING, None)
    if decide is None:
        return

    @functools.wraps(decide)
    def decided(self: Any, *args: Any, pad_to_max_length: Any = None, **how: Any) -> Any:
        if pad_to_max_length and not args:
            how["padding"] = how.get("padding") or "max_length"
        return decide(self, *args, **how)

    setattr(kind, _PADDING, decided)


def _encode_plus(self: Any, text: Any, text_pair: Any = None, **how: Any) -> Any:
    return self(text, text_pair, **how)


def _batch_encode_plus(self: Any, batch_text_or_text_pairs: Any, **how: Any) -> Any:
    """A batch of texts, or of pairs of them."""
    batch = list(batch_text_or_text_pairs)
    if batch and isinstance(batch[0], tuple) and len(batch[0]) == 2:
        texts, pairs = map(list, zip(*batch, strict=True))
        return self(texts, pairs, **how)
    return self(batch, **how)


def _around(self: Any) -> tuple[list[int], list[int]]:
    """What a text begins and ends with: numbers of tokens."""
    first = self.cls_token_id if self.cls_token_id is not None else self.bos_token_id
    last = self.sep_token_id if self.sep_token_id is not None else self.eos_token_id
    return [first] if first is not None else [], [last] if last is not None else []


def _with_special_tokens(self: Any, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
    first, last = _around(self)
    return [*first, *token_ids_0, *last, *([*token_ids_1, *last] if token_ids_1 is not None else [])]


def _token_types(self: Any, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
    whole = len(_with_special_tokens(self, token_ids_0, token_ids_1))
    second = len(token_ids_1) + len(_around(self)[1]) if token_ids_1 is not None else 0
    return [0] * (whole - second) + [1] * second


def _prepare_for_model(
    self: Any, ids: list[int], pair_ids: list[int] | None = None, add_special_tokens: bool = True,
    truncation: Any = False, max_length: int | None = None, **how: Any,
) -> dict[str, list[int]]:  # fmt: skip
    """Tokens as a model takes them; how they are padded is left to `pad`."""
    first, second = list(ids), list(pair_ids) if pair_ids is not None else None
    if truncation and max_length:
        special = sum(map(len, _around(self))) if add_special_tokens else 0
        first = first[: max(max_length - special - len(second or ()), 0)]
    whole = _with_special_tokens(self, first, second) if add_special_tokens else [*first, *(second or ())]
    types = _token_types(self, first, second) if add_special_tokens else [0] * len(whole)
    return {"input_ids": whole, "token_type_ids": types, "attention_mask": [1] * len(whole)}


@contextlib.contextmanager
def _as_target_tokenizer(self: Any) -> Iterator[None]:
    yield


_OF_TOKENIZERS: Final[Mapping[str, Any]] = {
    "encode_plus": _encode_plus, "batch_encode_plus": _batch_encode_plus, "prepare_for_model": _prepare_for_model,
    "build_inputs_with_special_tokens": _with_special_tokens, "create_token_type_ids_from_sequences": _token_types,
    "as_target_tokenizer": _as_target_tokenizer,
    "additional_special_tokens": property(lambda self: self.extra_special_tokens),
    "additional_special_tokens_ids": property(lambda self: self.extra_special_tokens_ids),
    "max_len": property(lambda self: self.model_max_length),
}  # fmt: skip


# Models


def _models(kind: Any) -> None:
    """Models ended their making with `init_weights`, which newer ones call in `post_init`, after it has made ready for it."""
    _add_all(kind, _OF_MODELS)
    initialize = kind.init_weights

    @functools.wraps(initialize)
    def init_weights(self: Any) -> None:
        if hasattr(kind, "post_init") and not hasattr(self, "all_tied_weights_keys"):
            self.all_tied_weights_keys = {}
            self.post_init()
        else:
            initialize(self)

    kind.init_weights = init_weights


def _extended_mask(
    self: Any, attention_mask: torch.Tensor, input_shape: Any = None, device: Any = None, dtype: Any = None
) -> torch.Tensor:
    """Zeros for what is seen, and the least number for what is not; of a decoder, what comes later is not."""
    mask = attention_mask[:, None, :, :] if attention_mask.dim() == 3 else attention_mask[:, None, None, :]
    kind = dtype if isinstance(dtype, torch.dtype) else self.dtype
    if attention_mask.dim() == 2 and getattr(self.config, "is_decoder", False):
        length = attention_mask.shape[1]
        causal = torch.ones(length, length, device=attention_mask.device, dtype=mask.dtype).tril()
        mask = mask * causal[None, None]
    return (1.0 - mask.to(kind)) * torch.finfo(kind).min


def _inverted_mask(self: Any, encoder_attention_mask: torch.Tensor) -> torch.Tensor:
    mask = encoder_attention_mask
    return _extended_mask(self, mask) if mask.dim() == 3 else _inverted(self, mask[:, None, None, :])


def _inverted(self: Any, mask: torch.Tensor) -> torch.Tensor:
    return (1.0 - mask.to(self.dtype)) * torch.finfo(self.dtype).min


def _head_mask(self: Any, head_mask: Any, num_hidden_layers: int, is_attention_chunked: bool = False) -> Any:
    if head_mask is None:
        return [None] * num_hidden_layers
    layers = head_mask if head_mask.dim() == 2 else head_mask[None].expand(num_hidden_layers, -1)
    mask = layers[:, None, :, None, None].to(self.dtype)
    return mask.unsqueeze(-1) if is_attention_chunked else mask


_OF_MODELS: Final[Mapping[str, Any]] = {
    "get_extended_attention_mask": _extended_mask, "invert_attention_mask": _inverted_mask, "get_head_mask": _head_mask,
}  # fmt: skip


# Trainers


def _trainers(module: Any) -> None:
    """A method that a script wrote anew is given what it takes: newer trainers hand on more."""
    root = module.Trainer
    hears = root.__init_subclass__

    def init_subclass(cls: Any, /, **how: Any) -> None:
        hears(**how)
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and inspect.isfunction(newer := getattr(root, name, None)):
                setattr(cls, name, _given_what_it_takes(method, newer))

    root.__init_subclass__ = classmethod(init_subclass)
    _add_all(root, {"tokenizer": property(_processor, _set_processor), "use_apex": False, "do_grad_scaling": False})


def _processor(self: Any) -> Any:
    return self.processing_class


def _set_processor(self: Any, value: Any) -> None:
    self.processing_class = value


def _given_what_it_takes(method: Callable[..., Any], newer: Callable[..., Any]) -> Callable[..., Any]:
    takes = inspect.signature(method).parameters
    kinds = {parameter.kind for parameter in takes.values()}
    if {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL} & kinds:
        return method
    if not set(inspect.signature(newer).parameters) - set(takes):
        return method
    most = sum(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in takes.values())

    @functools.wraps(method)
    def former(*args: Any, **given: Any) -> Any:
        return method(*args[:most], **{name: value for name, value in given.items() if name in takes})

    return former
