"""A language model in plain PyTorch: foretell predict examples/transformer.py:language_model --on h200"""

import torch
from torch import nn

import foretell

VOCABULARY = 32_000


class LanguageModel(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.blocks(self.embed(tokens), mask=causal, is_causal=True))


def language_model(batch: int = 8, seq: int = 512, width: int = 768, layers: int = 12) -> foretell.Workload:
    def loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return foretell.Workload(
        name="language-model",
        model=lambda: LanguageModel(width, layers),
        batch=lambda: torch.randint(VOCABULARY, (batch, seq + 1)),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, fused=True),
        precision="amp-bf16",
        clip_grad_norm=1.0,
        tokens=batch * seq,
    )
