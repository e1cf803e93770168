"""Steps that no model library names: recurrent, recommendation, diffusion, adapters, steps of their own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foretell import Workload
from foretell.precision import PrecisionName
from foretell.sources.named.optimizers import optimizer_named
from foretell_bench.measuring.memory.networks import (
    Adversaries,
    Autoencoder,
    Encoder,
    Forecaster,
    Listener,
    LowRank,
    Recommender,
    Recurrent,
    SparseLanguageModel,
    Tagger,
    Translator,
    UNet,
)

Batch = dict[str, Tensor]


def _classify(model: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(model(b["x"]), b["y"])


def _language(
    name: str,
    model: Callable[[], nn.Module],
    batch: int,
    seq: int,
    precision: PrecisionName,
    optimizer: str,
    vocabulary: int = 20000,
    answers: int | None = None,
) -> Workload:
    return Workload(
        name=name, model=model,
        batch=lambda: {
            "x": torch.randint(vocabulary, (batch, seq)), "y": torch.randint(answers or vocabulary, (batch, seq))
        },
        loss=lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


def lstm(batch: int = 64, seq: int = 70, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("lstm", lambda: Recurrent(nn.LSTM), batch, seq, precision, optimizer)


def gru(batch: int = 64, seq: int = 70, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("gru", lambda: Recurrent(nn.GRU), batch, seq, precision, optimizer)


def tagger(batch: int = 64, seq: int = 70, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("tagger", Tagger, batch, seq, precision, optimizer, answers=45)


def letters(batch: int = 64, seq: int = 128, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    def model() -> nn.Module:
        return Recurrent(nn.LSTM, vocabulary=128, width=1024, layers=1)

    return _language("letters", model, batch, seq, precision, optimizer, vocabulary=128)


def translator(batch: int = 64, seq: int = 35, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    return _language("translator", Translator, batch, seq, precision, optimizer)


def listener(batch: int = 16, seq: int = 512, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    return Workload(
        name="listener", model=Listener,
        batch=lambda: {"x": torch.randn(batch, 1, 80, seq), "y": torch.randint(29, (batch, (seq + 1) // 2))},
        loss=lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


def forecaster(
    batch: int = 256, seq: int = 96, precision: PrecisionName = "fp32", optimizer: str = "adamw"
) -> Workload:
    return Workload(
        name="forecaster", model=Forecaster,
        batch=lambda: {"x": torch.randn(batch, seq, 7), "y": torch.randn(batch, 7)},
        loss=lambda m, b: F.mse_loss(m(b["x"]).float(), b["y"].float()),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


def transformer_lm(
    batch: int = 32, seq: int = 256, precision: PrecisionName = "fp32", optimizer: str = "adamw"
) -> Workload:
    return _language("transformer_lm", Encoder, batch, seq, precision, optimizer)


def mlp(batch: int = 1024, precision: PrecisionName = "fp32", optimizer: str = "adamw") -> Workload:
    widths = [784, 4096, 4096, 4096, 4096, 1000]

    def model() -> nn.Module:
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    return Workload(
        name="mlp", model=model, batch=lambda: {"x": torch.randn(batch, 784), "y": torch.randint(1000, (batch,))},
        loss=_classify, optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


def lora_llama(batch: int = 4, seq: int = 1024, precision: PrecisionName = "bf16") -> Workload:
    def model() -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32,
                             num_key_value_heads=4, vocab_size=32000, use_cache=False)  # fmt: skip
        llama = LlamaForCausalLM(config).requires_grad_(False)
        for layer in llama.model.layers:
            for name in ("q_proj", "v_proj"):
                setattr(layer.self_attn, name, LowRank(getattr(layer.self_attn, name)))
        return llama

    return Workload(
        name="lora_llama", model=model, batch=lambda: {"input_ids": torch.randint(32000, (batch, seq))},
        loss=lambda m, b: m(input_ids=b["input_ids"], labels=b["input_ids"]).loss,
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4), precision=precision,
    )  # fmt: skip


def frozen_backbone(batch: int = 128, precision: PrecisionName = "amp-bf16") -> Workload:
    def model() -> nn.Module:
        import timm

        net = timm.create_model("resnet50").requires_grad_(False)
        net.fc.requires_grad_(True)
        return net

    return Workload(
        name="frozen_backbone", model=model,
        batch=lambda: {"x": torch.randn(batch, 3, 224, 224), "y": torch.randint(1000, (batch,))}, loss=_classify,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), precision=precision,
    )  # fmt: skip


def unet(batch: int = 8, precision: PrecisionName = "amp-bf16", channels_last: bool = False) -> Workload:
    return Workload(
        name="unet", model=UNet,
        batch=lambda: {"x": torch.randn(batch, 4, 64, 64), "t": torch.rand(batch), "noise": torch.randn(batch, 4, 64, 64)},
        loss=lambda m, b: F.mse_loss(m(b["x"], b["t"]), b["noise"]), optimizer=lambda p: torch.optim.AdamW(p),
        precision=precision, channels_last=channels_last,
    )  # fmt: skip


def moe(batch: int = 8, seq: int = 512, precision: PrecisionName = "bf16", optimizer: str = "adamw") -> Workload:
    return _language("moe", SparseLanguageModel, batch, seq, precision, optimizer)


def autoencoder(batch: int = 64, precision: PrecisionName = "amp-bf16") -> Workload:
    return Workload(
        name="autoencoder", model=Autoencoder, batch=lambda: {"x": torch.randn(batch, 3, 128, 128)},
        loss=lambda m, b: F.l1_loss(m(b["x"]), b["x"]), optimizer=lambda p: torch.optim.Adam(p), precision=precision,
    )  # fmt: skip


def tcn(batch: int = 64, precision: PrecisionName = "fp32") -> Workload:
    """Dilated one-dimensional convolutions over a long signal."""

    def model() -> nn.Module:
        layers = [
            nn.Sequential(nn.Conv1d(64, 64, 3, padding=2**i, dilation=2**i), nn.BatchNorm1d(64), nn.ReLU())
            for i in range(8)
        ]
        return nn.Sequential(nn.Conv1d(2, 64, 1), *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10))

    return Workload(
        name="tcn", model=model, batch=lambda: {"x": torch.randn(batch, 2, 8192), "y": torch.randint(10, (batch,))},
        loss=_classify, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), precision=precision,
    )  # fmt: skip


def dlrm(batch: int = 8192, precision: PrecisionName = "fp32", optimizer: str = "sgd") -> Workload:
    return Workload(
        name="dlrm", model=Recommender,
        batch=lambda: {"dense": torch.randn(batch, 13), "sparse": torch.randint(100_000, (batch, 26)), "y": torch.rand(batch)},
        loss=lambda m, b: F.binary_cross_entropy_with_logits(m(b["dense"], b["sparse"]), b["y"]),
        optimizer=optimizer_named(optimizer), precision=precision,
    )  # fmt: skip


def two_optimizers(batch: int = 64) -> Workload:
    """A generator and a critic trained in turn: a step of the user's own."""

    def step(model: Any, optimizer: torch.optim.Optimizer, b: Batch) -> None:
        fake = model.generator(b["z"])
        critic_loss = F.softplus(model.critic(fake.detach())).mean() + F.softplus(-model.critic(b["x"])).mean()
        critic_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        F.softplus(-model.critic(fake)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(
        name="two_optimizers", model=Adversaries,
        batch=lambda: {"x": torch.randn(batch, 3, 32, 32), "z": torch.randn(batch, 128)},
        loss=lambda m, b: m.critic(b["x"]).mean(), optimizer=lambda p: torch.optim.Adam(p), step=step,
    )  # fmt: skip
