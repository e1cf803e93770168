"""What a language model is trained towards: the next token, preferences, rewards; with the passes that each of them takes.

A sample of a preference is two texts, the chosen and the rejected. What generates texts is no part of these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell.sources.named.adapters import without_adapters
from foretell.sources.named.huggingface.fused_loss import fused_linear_cross_entropy

Objective = Literal["sft", "dpo", "orpo", "kto", "reward", "reward-lm", "grpo", "grpo-reference", "ppo"]
MakeModel = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What an objective needs beside the model."""

    texts: int = 1  # of a sample
    references: int = 0  # passes of a frozen model, or of this one without its adapters, per text
    policies: int = 0  # further passes of the model itself without gradients
    head: Literal["tokens", "score", "both"] = "tokens"


KINDS: Final[dict[Objective, Kind]] = {
    "sft": Kind(), "dpo": Kind(texts=2, references=1), "orpo": Kind(texts=2), "kto": Kind(references=2, policies=1),
    "reward": Kind(texts=2, head="score"), "reward-lm": Kind(texts=2, head="both"),
    "grpo": Kind(), "grpo-reference": Kind(references=1), "ppo": Kind(references=1, head="both"),
}  # fmt: skip


class WithReference(nn.Module):
    """The model that is trained, and a frozen copy of what it was."""

    def __init__(self, policy: nn.Module, reference: nn.Module) -> None:
        super().__init__()
        self.policy, self.reference = policy, reference.requires_grad_(False)

    def forward(self, **batch: Any) -> Any:
        return self.policy(**batch)


def prepared(model: Any, objective: Objective) -> Any:
    """With the head of the objective, where it is one number a text in place of the vocabulary."""
    if KINDS[objective].head == "score":
        model.config.tie_word_embeddings = False
        model.set_output_embeddings(nn.Linear(_width(model), 1, bias=False))
    return model


def _width(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[1])


def finished(model: Any, objective: Objective, adapters: bool, reference: MakeModel) -> nn.Module:
    """The whole that is trained; with adapters, the model without them is its own reference."""
    kind = KINDS[objective]
    if kind.head == "score":
        model.get_output_embeddings().requires_grad_(True)
    if kind.head == "both":
        model.v_head = nn.Linear(_width(model), 1)  # beside the vocabulary's
    return WithReference(model, reference()) if kind.references and not adapters else model


def loss_of(objective: Objective, *, completion: int | None, fused: bool, upcast: bool) -> Callable[[Any, Any], Tensor]:
    """The loss as a function of the model and a batch."""
    kind = KINDS[objective]
    if objective == "sft":
        return _fused if fused else lambda model, b: model(**b).loss
    kept = {} if completion is None else {"logits_to_keep": completion + 1}

    def loss(model: Any, batch: Any) -> Tensor:
        ids = batch["input_ids"]
        policy, reference = (model.policy, model.reference) if isinstance(model, WithReference) else (model, model)
        with torch.no_grad():
            for _ in range(kind.policies):
                _log_probabilities(policy, ids, kept, upcast)
            with without_adapters(reference):
                known = [_log_probabilities(reference, ids, kept, upcast) for _ in range(kind.references)]
        if kind.head != "tokens":
            return _scored(policy, ids, kind)
        own = _log_probabilities(policy, ids, kept, upcast)
        gain = own.sum(-1) - (known[0].sum(-1) if known else 0.0)
        if kind.texts == 2:
            chosen, rejected = gain.chunk(2)
            return -F.logsigmoid(0.1 * (chosen - rejected)).mean()
        return -torch.sigmoid(gain).mean()

    return loss


def _log_probabilities(model: Any, ids: Tensor, kept: dict[str, Any], upcast: bool) -> Tensor:
    """Of the tokens, row by row: the distribution over the vocabulary is made for one text at a time."""
    logits = model(input_ids=ids, **kept).logits[:, :-1]
    labels = ids[:, -logits.shape[1] :]
    if upcast:
        chosen: Tensor = logits.float().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return chosen
    rows = zip(logits, labels, strict=True)
    return torch.stack([F.log_softmax(row, -1).gather(-1, label.unsqueeze(-1)).squeeze(-1) for row, label in rows])


def _scored(model: Any, ids: Tensor, kind: Kind) -> Tensor:
    if kind.head == "score":
        scores = model(input_ids=ids).logits[:, -1, 0]
    else:  # the vocabulary's logits are made too, and read in fp32
        made = model(input_ids=ids, output_hidden_states=True)
        made.logits.float()
        scores = model.v_head(made.hidden_states[-1].to(model.v_head.weight.dtype)).squeeze(-1)[:, -1]
    if kind.texts == 2:
        chosen, rejected = scores.float().chunk(2)
        return -F.logsigmoid(chosen - rejected).mean()
    squared: Tensor = scores.float().square().mean()
    return squared


def _fused(model: Any, batch: Any) -> Tensor:
    """The head and its loss together, piece by piece: the logits of a batch are never there at once."""
    hidden = model.base_model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
    head = model.get_output_embeddings()
    head = getattr(head, "base_layer", head)
    return fused_linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]), head.weight, batch["labels"][:, 1:].reshape(-1)
    )
