"""Texts that a model of transformers generates, token by token: a few are, and the others follow without a pass."""

from __future__ import annotations

from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_FEW: Final = 2  # tokens that are generated


def install(session: Session) -> None:
    once_imported("transformers.generation.utils", lambda module: _shorten(module.GenerationMixin, session))


def _shorten(mixin: Any, session: Session) -> None:
    run = mixin.generate

    def generate(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        first = inputs if inputs is not None else kwargs.get("input_ids", kwargs.get("inputs_embeds"))
        wanted = _new_tokens(self, first, args, kwargs)
        if wanted <= _FEW:
            return run(self, inputs, *args, **kwargs)
        session.passes.leave_out(self, wanted, () if first is None else tuple(first.shape))
        kwargs = {name: value for name, value in kwargs.items() if name not in ("max_length", "min_length")}
        kwargs |= {"max_new_tokens": _FEW, "min_new_tokens": _FEW}
        with session.updates.aside():
            made = run(self, inputs, *args, **kwargs)
            if isinstance(made, torch.Tensor):
                return _longer(made, wanted - _FEW)
            made.sequences = _longer(made.sequences, wanted - _FEW)
            return made

    mixin.generate = generate


def _longer(tokens: torch.Tensor, by: int) -> torch.Tensor:
    return torch.cat([tokens, tokens[:, -1:].expand(-1, by)], dim=1)


def _new_tokens(model: Any, inputs: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """How many are wanted at most, where the call or a configuration has a number."""
    configs = (kwargs.get("generation_config"), args[0] if args else None, getattr(model, "generation_config", None))
    for source in (kwargs, *(vars(config) for config in configs if config is not None)):
        if (count := source.get("max_new_tokens")) is not None:
            return int(count)
        if (length := source.get("max_length")) is not None:
            decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
            given = 1 if decodes or inputs is None or inputs.dim() != 2 else int(inputs.shape[1])
            return int(length) - given
    return 0
